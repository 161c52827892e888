"""Folders in the system's temporary folder that do not stay for ever when their owner is killed.

The owner holds a lock on a file in its folder. The system frees it when the owner ends, however it ends; whoever can
take it knows that the folder is nobody's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_OWNER = ".owner"


@dataclass(frozen=True)
class Scratch:
    """A new private folder of this process, `path`; it holds one hidden file."""

    path: Path
    _lock: IO[str]

    @classmethod
    def make(cls, kind: str, *, within: str | None = None) -> Scratch:
        """Raises OSError. `within` is the folder to make it in; None: the system's temporary one."""
        while True:
            path = Path(tempfile.mkdtemp(prefix=f"bco-{kind}-", dir=within))
            lock = (path / _OWNER).open("w", encoding="utf-8")
            # Before it is locked, somebody who tidies up may take it for a dead one's.
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock.fileno()), (path / _OWNER).stat()):
                    return cls(path, lock)
            lock.close()

    def remove(self, how: Callable[[Path], None] | None = None) -> None:
        """Remove it with all that is in it; what cannot be removed stays."""
        (how or _remove)(self.path)
        self._lock.close()


@contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """A new private folder for as long as the block lasts."""
    made = Scratch.make(kind)
    try:
        yield made.path
    finally:
        made.remove()


def sweep(how: Callable[[Path], None] | None = None) -> None:
    """Remove this user's scratch folders whose owners are gone."""
    for temporary in {tempfile.gettempdir(), "/tmp"}:
        for file in Path(temporary).glob(f"bco-*/{_OWNER}"):
            with suppress(OSError), file.open("r+", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if file.parent.lstat().st_uid == os.getuid():
                    (how or _remove)(file.parent)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
