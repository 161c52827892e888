"""Generated examples are the same in every run of the suite; tests/fuzz has a longer profile that finds new ones."""

from hypothesis import settings

settings.register_profile("suite", derandomize=True)
settings.load_profile("suite")
