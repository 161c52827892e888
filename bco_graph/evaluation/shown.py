"""What of this machine a confined process is shown: the system's programs and libraries, and our Python."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PACKAGE = Path(__file__).parents[1]


def system_binds() -> list[str]:
    """bubblewrap's arguments for /usr and what belongs to it."""
    binds = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM_FOLDERS:
        folder = Path("/", name)
        if folder.is_symlink():
            binds += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            binds += ["--ro-bind", str(folder), str(folder)]
    for path in SYSTEM_FILES:
        binds += ["--ro-bind-try", path, path]
    return binds


def python_binds(shown: Sequence[Path]) -> list[str]:
    """bubblewrap's arguments for folders of Python, and for the links that lead to it from elsewhere."""
    binds = [word for folder in shown for word in ("--ro-bind", str(folder), str(folder))]
    for link, to in _links_to_python(shown):
        binds += ["--symlink", to, link]
    return binds


def python_folders() -> list[Path]:
    """Folders outside of /usr that hold our Python and its packages, as they are named and as they resolve."""
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    # A Python that was started as `../venv/bin/python` keeps the dots.
    named = [Path(os.path.normpath(prefix)) for prefix in prefixes]
    found: list[Path] = []
    for folder in [*named, *(prefix.resolve() for prefix in named)]:
        if not any(folder.is_relative_to(known) for known in [Path("/usr"), *found]):
            found.append(folder)
    return found


def executable() -> str:
    """Our Python, by a path that is the same inside."""
    return os.path.normpath(sys.executable)


def _links_to_python(shown: Sequence[Path]) -> list[tuple[str, str]]:
    """The links that lead from our executable to a file that is shown, each with what it points to."""
    links = []
    path = Path(executable())
    while path.is_symlink():
        to = path.readlink()
        if not any(path.is_relative_to(folder) for folder in [Path("/usr"), *shown]):
            links.append((str(path), str(to)))
        path = Path(os.path.normpath(path.parent / to))
    return links


def to_hide(hide: Iterable[Path], shown: Iterable[Path]) -> list[Path]:
    """Which folders lie in what is shown and must not be seen: some given ones, and our package with the suites and
    their gold answers, this copy and an installed one."""
    places = list(shown)
    installed = [Path(sysconfig.get_path(name), _PACKAGE.name) for name in ("purelib", "platlib")]
    folders = [_PACKAGE, *installed, *hide]
    both = dict.fromkeys(form for folder in folders for form in (folder.absolute(), folder.resolve()))
    seen = [path for path in both if path.is_dir() and any(path.is_relative_to(folder) for folder in places)]
    # A folder inside of a hidden one is gone already, and could not be mounted over.
    return [path for path in seen if not any(other in path.parents for other in seen)]


def below_tmp() -> list[str]:
    return [str(folder) for folder in python_folders() if folder.is_relative_to("/tmp")]


def readable(hide: Sequence[Path], more: Sequence[Path] = ()) -> tuple[list[str], list[str]]:
    """Where rules can only allow: paths to read with all that is below them, and folders of which only names show.
    `more` are files and folders beside the system and our Python."""
    folders = [Path("/usr"), *(Path("/", name) for name in _SYSTEM_FOLDERS), *python_folders(), *more]
    hidden = [path.resolve() for path in to_hide(hide, folders)]
    read: list[str] = [path for path in SYSTEM_FILES if Path(path).exists()]
    read += [str(path.resolve()) for path in more if path.is_file()]
    listed: list[str] = []
    for folder in dict.fromkeys(folder.resolve() for folder in folders if folder.is_dir()):
        for path, whole in _around(folder, hidden):
            (read if whole else listed).append(str(path))
    return read, listed


def _around(folder: Path, hidden: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """A folder as the parts that hold nothing hidden (True) and the folders on the way to what is hidden (False)."""
    if not any(path.is_relative_to(folder) for path in hidden):
        yield folder, True
    elif folder not in hidden:
        yield folder, False
        for child in _children(folder):
            if child.is_dir() and not child.is_symlink():
                yield from _around(child, hidden)
            elif child.exists():
                yield child, True


def _children(folder: Path) -> list[Path]:
    """None where this user may not list them: then nothing that it starts may."""
    try:
        return list(folder.iterdir())
    except PermissionError:
        return []
