"""Paths as a proposer names them: relative to the workspace, contained in it, writable only where the step says."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from bco_graph.config import nearest
from bco_graph.errors import ToolRefused
from bco_graph.protocols import Step

SCAFFOLD = "scaffold"
NOTES = "agent_notes.md"
_RESERVED = frozenset({".git", "__pycache__"})


class Workspace:
    """The workspace of one step. Every refusal is a ToolRefused that names the path and what would do."""

    def __init__(self, step: Step[Any]) -> None:
        self.root = step.workspace.resolve()
        self.step = step.name
        self.writable = writable_paths(step)
        self.scaffold = self.root / SCAFFOLD

    def to_read(self, path: str) -> Path:
        """The existing file or folder that `path` names; links are followed as long as they stay inside."""
        relative = _relative(path)
        try:
            found = (self.root / relative).resolve()
        except RuntimeError as error:
            raise ToolRefused(f"{path!r} is a link that leads to itself") from error
        if not found.is_relative_to(self.root):
            raise ToolRefused(f"{path!r} is a link that leads out of the workspace")
        if not found.exists():
            raise ToolRefused(f"{path!r} does not exist; {self._instead(relative)}")
        return found

    def to_write(self, path: str) -> Path:
        """Where `path` may be written or deleted; it need not exist."""
        relative = _relative(path)
        if not self.writable:
            raise ToolRefused(f"{path!r} cannot be written: the step {self.step!r} writes no file, it ends with submit")
        if relative.parts[:1] == (SCAFFOLD,) and len(relative.parts) > 1 and SCAFFOLD in self.writable:
            _check_names(path, relative)
        elif str(relative) not in self.writable or str(relative) == SCAFFOLD:
            allowed = " and ".join(f"{name}/" if name == SCAFFOLD else name for name in self.writable)
            hint = f" (did you mean '{SCAFFOLD}/{relative}'?)" if (self.scaffold / relative).exists() else ""
            raise ToolRefused(f"{path!r} cannot be written{hint}; this step writes below {allowed} only")
        target = self.root / relative
        if target.is_symlink() or any(parent.is_symlink() for parent in target.parents):
            raise ToolRefused(f"{path!r} is, or lies behind, a symbolic link; write to the file itself")
        if target.is_dir():
            raise ToolRefused(f"{path!r} is a folder; name a file in it")
        return target

    def to_edit(self, path: str) -> Path:
        """As `to_write`, for a regular file that exists."""
        target = self.to_write(path)
        if not target.is_file():
            raise ToolRefused(f"{path!r} does not exist; {self._instead(_relative(path))}; write_file creates a file")
        return target

    def _instead(self, relative: PurePosixPath) -> str:
        """What stands in the deepest folder of the path that exists, the nearest name first."""
        folder = relative.parent
        missing = relative.name
        while folder.parts and not (self.root / folder).is_dir():
            missing, folder = folder.name, folder.parent
        names = sorted(f"{p.name}/" if p.is_dir() else p.name for p in (self.root / folder).iterdir())
        shown = ", ".join(names[:30]) + (f", … ({len(names)} in all)" if len(names) > 30 else "")
        return f"{str(folder)!r} holds{nearest(missing, names)}: {shown or 'nothing'}"


def writable_paths(step: Step[Any]) -> tuple[str, ...]:
    """What a step may write, relative to the workspace: a folder's name stands for all that is below it."""
    if step.name != "propose":
        return ()
    return (SCAFFOLD, NOTES) if step.method == "notes" else (SCAFFOLD,)


def _relative(path: str) -> PurePosixPath:
    if not path.strip() or not path.isprintable() or "\\" in path:
        raise ToolRefused(f"{path!r} is no path: give one relative to the workspace, with '/' between its parts")
    relative = PurePosixPath(path)
    if relative.is_absolute() or path.startswith("~") or ".." in relative.parts:
        raise ToolRefused(f"{path!r} leaves the workspace: give a path relative to it, without '..'")
    return relative


def _check_names(path: str, relative: PurePosixPath) -> None:
    for name in relative.parts:
        if name.casefold() in _RESERVED:
            raise ToolRefused(f"{path!r} holds {name!r}, which is kept out of every candidate")
        if name != name.strip() or name.endswith(".") or len(name.encode("utf-8")) > 200:
            raise ToolRefused(
                f"{path!r} holds the odd name {name!r}: no blanks around it, no dot at its end, 200 bytes"
            )
