"""Prints `name==version` for the lowest version that pyproject.toml allows of each dependency and each extra.

As constraints they make an installation fail whose bounds cannot be met, where a resolver alone would take higher ones.
The extra `local` is left out: its models are tried on the newest versions.
"""

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
wanted = [*project["dependencies"], *(line for name in extras if name != "local" for line in extras[name])]
for requirement in wanted:
    found = re.match(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)(?:,|$)", requirement)
    if not found:
        raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound of the form NAME>=VERSION")
    print(f"{found[1]}=={found[2]}")
