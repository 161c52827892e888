"""What may be in a scaffold, and the only ways to list, copy and name its content.

A scaffold is a tree of plain files with portable names, so that every machine, git and a sandbox see the same one.
Caches that tools leave behind (`LEFT_OUT`) are passed over; whatever else is not admitted is a problem, never
skipped. Links are not followed: a scaffold cannot show what lies outside of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bco_graph.errors import CandidateRefused, ConfigError

LEFT_OUT = ("__pycache__/", ".pytest_cache/", "*.pyc", ".DS_Store")
"""The rule for what is passed over: folders end with a slash, `*` stands for the start of a name."""
MAX_FILES = 2_000
MAX_BYTES = 20_000_000

_KINDS = {
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}
_DEVICE_NAME = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³])", re.IGNORECASE)
_GIT_NAMES = frozenset({".git", "git~1"})
_NOT_PORTABLE = frozenset('<>:"|?*\\')


@dataclass
class _Scan:
    files: dict[str, os.stat_result] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)
    """Each path by the form in which a file system that ignores case would see it."""


def scan_tree(root: Path) -> list[str]:
    """Everything that keeps a folder from being a scaffold, as sentences; empty when it may be one."""
    return _scan(root).problems


def files(root: Path) -> list[str]:
    """Relative paths (with `/`) of the admitted files, sorted. Raises CandidateRefused that lists all problems."""
    return sorted(_admitted(root))


def copy_tree(source: Path, target: Path) -> None:
    """Copy exactly the admitted files, and which of them are executable, to a folder that is new or empty.

    Raises CandidateRefused as `files` does, ConfigError when the target holds something.
    """
    admitted = _admitted(source)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise ConfigError(f"cannot copy a scaffold to {str(target)!r}: the folder is not empty; name a new one")
    for path, facts in sorted(admitted.items()):
        copy = target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(read_file(source, path))
        copy.chmod(0o755 if _executable(facts) else 0o644)


def tree_digest(root: Path) -> str:
    """sha256 over path, executable bit and bytes of each admitted file, in the order of paths."""
    digest = hashlib.sha256()
    for path, facts in sorted(_admitted(root).items()):
        content = read_file(root, path)
        digest.update(f"{len(path)} {path} {int(_executable(facts))} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def read_file(root: Path, path: str) -> bytes:
    """Bytes of an admitted file. Raises CandidateRefused when something else took its place since the scan."""
    try:
        handle = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise CandidateRefused([f"{path}: cannot be read: {error.strerror}"]) from error
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise CandidateRefused([f"{path}: is no longer a plain file"])
        return file.read(MAX_BYTES + 1)


def _executable(facts: os.stat_result) -> bool:
    return bool(facts.st_mode & stat.S_IXUSR)


def _admitted(root: Path) -> dict[str, os.stat_result]:
    scan = _scan(root)
    if scan.problems:
        raise CandidateRefused(scan.problems)
    return scan.files


def _scan(root: Path) -> _Scan:
    scan = _Scan()
    if root.is_symlink() or not root.is_dir():
        scan.problems.append(f"{root}: a scaffold is a folder, and this is {_what(root)}")
        return scan
    for path, entry in _walk(root, scan):
        _judge_name(path, scan)
        facts = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(facts.st_mode):
            scan.files[path] = facts
            if facts.st_nlink > 1:
                scan.problems.append(f"{_shown(path)}: has {facts.st_nlink} hard links; a scaffold holds plain copies")
        elif not stat.S_ISDIR(facts.st_mode):
            kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "special file")
            scan.problems.append(f"{_shown(path)}: is a {kind}; only plain files and folders are admitted")
    _judge_size(scan)
    return scan


def _walk(root: Path, scan: _Scan) -> Iterator[tuple[str, os.DirEntry[str]]]:
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(root / folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            scan.problems.append(f"{_shown(folder) or '.'}: cannot be listed: {error.strerror}")
            continue
        for entry in listed:
            is_folder = entry.is_dir(follow_symlinks=False)
            if _left_out(entry.name, is_folder):
                continue
            path = f"{folder}{entry.name}"
            yield path, entry
            # A repository inside a scaffold is one problem, not thousands.
            if is_folder and entry.name.casefold() not in _GIT_NAMES:
                folders.append(f"{path}/")
        if len(scan.files) > 2 * MAX_FILES:
            return


def _left_out(name: str, is_folder: bool) -> bool:
    for rule in LEFT_OUT:
        if rule.endswith("/"):
            if is_folder and name == rule[:-1]:
                return True
        elif name.endswith(rule[1:]) if rule.startswith("*") else name == rule:
            return True
    return False


def _judge_name(path: str, scan: _Scan) -> None:
    name = path.rpartition("/")[2]
    reason = _name_problem(name)
    if reason:
        scan.problems.append(f"{_shown(path)}: {reason}")
    alike = scan.seen.setdefault(unicodedata.normalize("NFC", path).casefold(), path)
    if alike != path:
        scan.problems.append(f"{_shown(path)}: differs from {_shown(alike)} only by case or accent form")


def _name_problem(name: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in name):
        return "its name is not UTF-8"
    if any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") for char in name):
        return "its name holds a control or invisible character"
    if name.casefold() in _GIT_NAMES:
        return "belongs to git; a scaffold is no repository"
    if _DEVICE_NAME.fullmatch(name.partition(".")[0].rstrip(" ")):
        return "its name is a device on Windows"
    if name.endswith((" ", ".")):
        return "its name ends with a space or a dot, which Windows drops"
    if not _NOT_PORTABLE.isdisjoint(name):
        return f"its name holds one of {' '.join(sorted(_NOT_PORTABLE))}"
    return ""


def _judge_size(scan: _Scan) -> None:
    if len(scan.files) > MAX_FILES:
        scan.problems.append(f"more than {MAX_FILES:,} files (at least {len(scan.files):,})")
    total = sum(facts.st_size for facts in scan.files.values())
    if total > MAX_BYTES:
        scan.problems.append(f"{total:,} bytes in all; at most {MAX_BYTES:,} are admitted")


def _what(root: Path) -> str:
    try:
        mode = root.lstat().st_mode
    except OSError as error:
        return f"missing ({error.strerror})"
    return "a file" if stat.S_ISREG(mode) else f"a {_KINDS.get(stat.S_IFMT(mode), 'special file')}"


def _shown(path: str) -> str:
    return ascii(path) if not path.isprintable() else path
