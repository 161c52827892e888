"""Folder trees: held in memory and laid back exactly, and sealed so that a change to evidence shows."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """A regular file, or a symbolic link whose target is `content`. `mode` holds the permission bits of a file."""

    kind: str
    content: bytes
    mode: int = 0o644


Tree = Mapping[str, Entry]
"""POSIX path relative to the root -> entry. Folders are implied; empty ones and special files are not held."""


def snapshot(root: Path) -> dict[str, Entry]:
    """What stands below `root`; links are held as links and never followed."""
    tree = {}
    for path in _walk(root):
        status = path.lstat()
        name = path.relative_to(root).as_posix()
        if stat.S_ISLNK(status.st_mode):
            tree[name] = Entry("link", os.fsencode(path.readlink()))
        elif stat.S_ISREG(status.st_mode):
            tree[name] = Entry("file", path.read_bytes(), stat.S_IMODE(status.st_mode))
    return tree


def lay(root: Path, tree: Tree) -> None:
    """Make `root` hold exactly `tree`: what is not in it is removed, what equals it already is not touched."""
    if root.is_symlink() or (root.exists() and not root.is_dir()):
        root.unlink()
    root.mkdir(parents=True, exist_ok=True)
    now = snapshot(root)
    for path in _walk(root):
        if path.relative_to(root).as_posix() not in tree:
            path.unlink()
    _drop_empty_folders(root)
    for name, entry in tree.items():
        if now.get(name) != entry:
            _put(root / name, entry, root)


def write_file(path: Path, content: bytes, *, beside: Path) -> None:
    """Replace a file at once, never through a link, and keep its permission bits.

    The new bytes are first written to a temporary file in `beside`, a folder of the same file system, so that a kill
    leaves no half file at `path`.
    """
    mode = stat.S_IMODE(path.lstat().st_mode) if path.exists() and not path.is_symlink() else 0o644
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=beside, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _put(path: Path, entry: Entry, root: Path) -> None:
    if entry.kind == "file":
        write_file(path, entry.content, beside=root.parent)
        path.chmod(entry.mode)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(os.fsdecode(entry.content))


def _walk(root: Path) -> list[Path]:
    """Everything below `root` but folders, sorted; links to folders count as links."""
    found = []
    for folder, names, files in os.walk(root):
        links = [name for name in names if (Path(folder) / name).is_symlink()]
        found += [Path(folder) / name for name in [*files, *links]]
    return sorted(found)


def _drop_empty_folders(root: Path) -> None:
    for folder, _, _ in os.walk(root, topdown=False):
        if folder != str(root) and not any(Path(folder).iterdir()):
            Path(folder).rmdir()


# -- the seal ------------------------------------------------------------------------------------------------

_Look = tuple[int, ...]
"""What lstat says; equal means the bytes are equal, for the change time cannot be set back."""


@dataclass
class Seal:
    """What stands below `root`, but for paths that `is_open` says may change. Cheap to check: only files whose
    lstat changed since they were last looked at are read again.
    """

    root: Path
    is_open: Callable[[str], bool] = lambda _: False
    _digests: dict[str, tuple[_Look, str]] = field(default_factory=dict)
    _sealed: dict[str, str] = field(default_factory=dict)

    def close(self, is_open: Callable[[str], bool]) -> None:
        """Remember what stands there now; `is_open` takes a POSIX path relative to the root."""
        self.is_open = is_open
        self._sealed = self._look()

    def altered(self) -> list[str]:
        """Sealed paths that are gone or hold something else now, sorted."""
        now = self._look()
        return sorted(name for name, digest in self._sealed.items() if now.get(name) != digest)

    def remove_added(self) -> list[str]:
        """Remove what was not there at `close` and is not open; returns the paths, sorted."""
        added = sorted(self._look().keys() - self._sealed.keys())
        for name in reversed(added):
            path = self.root / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        return added

    def _look(self) -> dict[str, str]:
        found = {}
        for folder, names, files in os.walk(self.root):
            for name in [*names, *files]:
                path = Path(folder) / name
                relative = path.relative_to(self.root).as_posix()
                if not self.is_open(relative):
                    found[relative] = self._digest(relative, path)
            names[:] = [n for n in names if not self.is_open((Path(folder) / n).relative_to(self.root).as_posix())]
        return found

    def _digest(self, relative: str, path: Path) -> str:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            return "folder"
        look = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        known = self._digests.get(relative)
        if known is None or known[0] != look:
            known = self._digests[relative] = (look, _content_digest(path, status.st_mode))
        return known[1]


def _content_digest(path: Path, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return f"link {path.readlink()}"
    if not stat.S_ISREG(mode):
        return "special"
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
