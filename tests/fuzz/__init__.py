"""Bytes of strangers against every parser they reach: refused in our own words, or taken and kept, never a crash.

Runs are the same each time and take seconds. To look for more, with other inputs each time:

    HYPOTHESIS_PROFILE=long python -m pytest tests/fuzz -q --timeout=0 [-k NAME]

A failure prints the input; pin it with `@example(...)` on the test once its fault is mended.
"""
