"""The tools of the `agent` proposer: what each takes, what it does, what it answers.

A tool that did nothing raises ToolRefused; its message is the model's result.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from bco_graph.config import nearest
from bco_graph.errors import ToolRefused
from bco_graph.proposers import searching
from bco_graph.proposers.editing import edit
from bco_graph.proposers.intake import explain
from bco_graph.proposers.paging import page_of, page_of_file
from bco_graph.proposers.tree import Tree, lay, snapshot, write_file
from bco_graph.proposers.workspace import NOTES, Workspace
from bco_graph.signature import expression_fault
from bco_graph.state import JSON

SEARCH_LIMIT_S = 20.0
_MATCHES = 2000
"""Matches that one search keeps; the count of all is always told."""

Line = Annotated[int, Field(ge=1)]
CandidateName = Annotated[str, StringConstraints(pattern=r"^iter_\d{3,}$")]


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ListFiles(Arguments):
    """List a folder: names and sizes in bytes, folders with a '/' at their end. `depth` counts levels of folders."""

    path: str = "."
    depth: Annotated[int, Field(ge=1, le=10)] = 1
    start_line: Line = 1


class ReadFile(Arguments):
    """Read a text file from `start_line` on; a long answer is cut with a mark that says how to read on."""

    path: str
    start_line: Line = 1
    lines: Annotated[int, Field(ge=1)] | None = None
    start_column: Line = 1


class Search(Arguments):
    """Find the lines that match a Python regular expression, in one file or in all files below a folder."""

    pattern: Annotated[str, StringConstraints(min_length=1)]
    path: str = "."
    start_line: Line = 1


class EditFile(Arguments):
    """Replace `old`, which must stand in the file exactly once, by `new`. Indentation counts."""

    path: str
    old: str
    new: str


class WriteFile(Arguments):
    """Create a file, or replace all of its content."""

    path: str
    content: str


class DeleteFile(Arguments):
    """Delete a file."""

    path: str


class StartFrom(Arguments):
    """Make scaffold/ equal to a candidate's source, such as iter_002; without one, to what it held when the step
    began. Edits made in this step are lost."""

    candidate: CandidateName | None = None


TOOLS: Mapping[str, type[Arguments]] = {
    "list_files": ListFiles,
    "read_file": ReadFile,
    "search": Search,
    "edit_file": EditFile,
    "write_file": WriteFile,
    "delete_file": DeleteFile,
    "start_from": StartFrom,
}
WRITING = frozenset({"edit_file", "write_file", "delete_file", "start_from"})
READING = frozenset(TOOLS) - WRITING
SUBMIT = "submit"


def definitions(names: frozenset[str]) -> list[dict[str, JSON]]:
    """Name, description and JSON schema of the arguments, in a fixed order."""
    return [
        {"name": name, "description": _flat(tool.__doc__), "parameters": bare_schema(tool)}
        for name, tool in TOOLS.items()
        if name in names
    ]


def bare_schema(model: type[BaseModel]) -> dict[str, JSON]:
    """JSON schema of a tool's arguments, without the texts that pydantic adds for people."""
    schema = model.model_json_schema()
    schema.pop("description", None)
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    return schema


def _flat(text: str | None) -> str:
    return " ".join((text or "").split())


Held = tuple[Tree, bytes | None]
"""The scaffold, and the notes where there are any."""


@dataclass
class Counts:
    """What the tools did in one step; `trace_reads` counts read_file on paths with a folder `traces`."""

    trace_reads: int = 0
    edits_applied: int = 0
    edits_refused: int = 0


class Toolbox:
    """Carries out calls in one workspace. `names` are the tools there are; others are refused."""

    def __init__(self, workspace: Workspace, names: frozenset[str], *, search_limit_s: float = SEARCH_LIMIT_S) -> None:
        self.workspace = workspace
        self.names = names
        self.counts = Counts()
        self._search_limit_s = search_limit_s
        self._opening: Tree | None = None

    async def call(self, name: str, arguments: Mapping[str, JSON]) -> str:
        """The result as text; raises ToolRefused where nothing was done."""
        if name not in self.names:
            known = sorted({*self.names, SUBMIT})
            raise ToolRefused(f"there is no tool {name!r}{nearest(name, known)}; available: {', '.join(known)}")
        try:
            asked = TOOLS[name].model_validate(arguments)
        except ValidationError as error:
            raise ToolRefused(f"the arguments do not fit: {'; '.join(explain(error, TOOLS[name]))}") from error
        if name in WRITING and self._opening is None and self.workspace.writable:
            self._opening = snapshot(self.workspace.scaffold)
        try:
            result = getattr(self, f"_{name}")(asked)
            return str(await result) if asyncio.iscoroutine(result) else str(result)
        except OSError as error:
            raise ToolRefused(f"the operating system refused it: {error.strerror or error}") from error

    def held(self) -> Held | None:
        """All that may be written, as it stands now, for `put_back`; None where nothing may."""
        if not self.workspace.writable:
            return None
        notes = self.workspace.root / NOTES
        return snapshot(self.workspace.scaffold), notes.read_bytes() if notes.is_file() else None

    def put_back(self, held: Held) -> None:
        tree, notes = held
        lay(self.workspace.scaffold, tree)
        path = self.workspace.root / NOTES
        if NOTES in self.workspace.writable and notes is not None:
            write_file(path, notes, beside=self.workspace.root)
        elif NOTES in self.workspace.writable:
            path.unlink(missing_ok=True)

    # -- reading -----------------------------------------------------------------------------------------------

    def _list_files(self, asked: ListFiles) -> str:
        folder = self.workspace.to_read(asked.path)
        if not folder.is_dir():
            raise ToolRefused(f"{asked.path!r} is a file; read_file shows it")
        return page_of(_listing(folder, asked.depth), start_line=asked.start_line, unit="entry")

    def _read_file(self, asked: ReadFile) -> str:
        path = self.workspace.to_read(asked.path)
        if not path.is_file():
            raise ToolRefused(f"{asked.path!r} is no file; list_files shows what a folder holds")
        shown = path.relative_to(self.workspace.root).as_posix()
        page = page_of_file(
            path, shown, start_line=asked.start_line, start_column=asked.start_column, lines=asked.lines
        )  # fmt: skip
        self.counts.trace_reads += "/traces/" in shown
        return page

    async def _search(self, asked: Search) -> str:
        if fault := expression_fault(asked.pattern):
            raise ToolRefused(
                f"{asked.pattern!r} is no regular expression: {fault}; as plain text it is {re.escape(asked.pattern)!r}"
            )
        start = self.workspace.to_read(asked.path)
        lines, summary = await _run_search(self.workspace.root, start, asked.pattern, self._search_limit_s)
        found = page_of(lines, start_line=asked.start_line, unit="match")
        more = f"; the first {_MATCHES:,} can be shown" if summary["matches"] > _MATCHES else ""
        return f"{found}\n[{summary['matches']:,} matching line(s) in {summary['files']:,} file(s) searched{more}]"

    # -- writing -----------------------------------------------------------------------------------------------

    def _edit_file(self, asked: EditFile) -> str:
        path = self.workspace.to_edit(asked.path)
        edited = edit(path.read_bytes(), asked.old, asked.new)
        write_file(path, edited.content, beside=self.workspace.root)
        how = "" if edited.match == "exact" else " (matched but for trailing blanks)"
        return f"edited {asked.path} at line {edited.line}{how}"

    def _write_file(self, asked: WriteFile) -> str:
        path = self.workspace.to_write(asked.path)
        before = path.stat().st_size if path.exists() else None
        content = asked.content.encode("utf-8")
        if not content and before:
            raise ToolRefused(f"{asked.path!r} holds {before:,} bytes and would be emptied; delete_file removes a file")
        self._check_folders(path, asked.path)
        write_file(path, content, beside=self.workspace.root)
        what = "created" if before is None else f"replaced {before:,} bytes of"
        return f"{what} {asked.path}: {len(content):,} bytes"

    def _check_folders(self, path: Path, shown: str) -> None:
        for parent in path.relative_to(self.workspace.root).parents:
            if (self.workspace.root / parent).is_file():
                raise ToolRefused(f"{shown!r} cannot be written: {str(parent)!r} is a file, not a folder")

    def _delete_file(self, asked: DeleteFile) -> str:
        path = self.workspace.to_edit(asked.path)
        path.unlink()
        folder = path.parent
        while folder not in (self.workspace.scaffold, self.workspace.root) and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent
        return f"deleted {asked.path}"

    def _start_from(self, asked: StartFrom) -> str:
        if self._opening is None:
            raise ToolRefused(f"the step {self.workspace.step!r} writes no file, it ends with submit")
        tree, origin = self._opening, "what it held when the step began"
        if asked.candidate is not None:
            origin = f"iterations/{asked.candidate}/source"
            tree = snapshot(self.workspace.to_read(origin))
        lay(self.workspace.scaffold, tree)
        return f"scaffold/ now equals {origin}: {len(tree)} file(s)"


def _listing(folder: Path, depth: int, indent: str = "") -> list[str]:
    lines = []
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        size = "" if is_folder else f"  {path.lstat().st_size:,}"
        lines.append(f"{indent}{path.name}{'/' if is_folder else ''}{size}")
        if is_folder and depth > 1:
            lines += _listing(path, depth - 1, indent + "  ")
    return lines


async def _run_search(root: Path, start: Path, pattern: str, limit_s: float) -> tuple[list[str], dict[str, JSON]]:
    """Matching lines, and the counts of matches and files; raises ToolRefused after `limit_s` seconds."""
    asked = {"root": str(root), "start": str(start), "pattern": pattern, "limit": _MATCHES}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", searching.__file__,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(json.dumps(asked).encode()), limit_s)
    except TimeoutError as error:
        raise ToolRefused(
            f"the search took longer than {limit_s:g} s and was stopped; narrow the path or simplify the pattern"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ToolRefused(f"the search failed: {last or f'exit status {process.returncode}'}")
    *lines, summary = out.decode("utf-8").split("\n")
    found: dict[str, Any] = json.loads(summary)
    return lines, found
