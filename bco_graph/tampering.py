"""Grader, gold and tasks are hashed before and after each evaluation: a score counts only while they are the same."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from bco_graph.errors import Tampered
from bco_graph.protocols import Suite

_CHUNK = 1 << 20

Digests = Mapping[Path, str]
"""Each guarded file with the digest of its content, or `missing`."""


def suite_home(suite: Suite) -> Path | None:
    """The package folder in which a suite keeps its grader and gold; None for a suite that is a single file: what
    lies beside it, such as all of site-packages, is not its own."""
    module = sys.modules.get(type(suite).__module__)
    home = Path(module.__file__).parent if module and module.__file__ else None
    return home if home and (home / "__init__.py").is_file() else None


def guarded_files(suite: Suite, options: Mapping[str, object], base: Path) -> list[Path]:
    """The file that defines the suite (all of its folder where that is a package of its own) and the files that its
    options name; not its initial scaffold."""
    module = sys.modules.get(type(suite).__module__)
    defined = Path(module.__file__) if module and module.__file__ else None
    places = [base / value for value in options.values() if isinstance(value, str) and value]
    places = [path for path in places if path.is_file()]
    if defined:
        places.append(defined.parent if defined.name == "__init__.py" else defined)
    initial = suite.initial_scaffold().resolve()
    found = [path for place in places for path in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    return [path for path in dict.fromkeys(found) if _is_source(path) and not path.resolve().is_relative_to(initial)]


def _is_source(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"


def digests(files: Iterable[Path]) -> Digests:
    return {path: _digest(path) for path in files}


def digest_of_all(digests: Digests) -> str:
    """One digest of the contents, whatever folder the files lie in: what a run is made with."""
    return hashlib.blake2b(" ".join(digests.values()).encode(), digest_size=16).hexdigest()


def require_same(before: Digests, what: str) -> None:
    """Raises Tampered where a guarded file is no longer what it was."""
    changed = sorted(str(path) for path, digest in before.items() if _digest(path) != digest)
    if changed:
        raise Tampered(
            f"while {what} was evaluated, files that decide its score were changed: {', '.join(changed)}. Its results "
            "are void and were dropped; restore the files, then continue with `bco resume RUN`"
        )


def _digest(path: Path) -> str:
    found = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
    except FileNotFoundError:
        return "missing"
    return found.hexdigest()
