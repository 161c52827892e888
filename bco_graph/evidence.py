"""The evidence surface: draws what the proposer may read, the same for every method less what the method lacks.

Everything here is a view of receipts and candidates and can be drawn again; nothing reads it back but the proposer,
`signature_hits` (raw traces) and the notes of method `notes`.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from bco_graph.candidates import CandidateStore
from bco_graph.protocols import Task
from bco_graph.receipts import Receipts, ResultRow
from bco_graph.run_folder import DOCUMENTS, RunFolder, below, write_text
from bco_graph.signature import signature_hits
from bco_graph.state import JSON, Method
from bco_graph.task_tables import task_means


class EvidenceSurface:
    """Writes below `workspace/` only. Task ids become file names by percent-encoding."""

    def __init__(self, folder: RunFolder, method: Method, store: CandidateStore, receipts: Receipts) -> None:
        self.folder = folder
        self.root = folder.workspace
        self.document = DOCUMENTS[method]
        self._store = store
        self._receipts = receipts
        self._drawn: list[str] = []
        self._cells: dict[str, str] = {}
        self._listed: list[str] = []

    # -- before and during a step ------------------------------------------------------------------------------

    def open_scaffold(self, iteration: int, tree: str) -> None:
        """Lay `scaffold/` for an iteration once; edits already made for that iteration are left alone."""
        marker = self.folder.root / "scaffold_opened"
        wanted = f"{iteration} {tree}\n"
        if marker.exists() and marker.read_text(encoding="utf-8") == wanted and self.scaffold.exists():
            return
        self._store.checkout(tree, self.scaffold)
        write_text(marker, wanted)

    def reset_scaffold(self, tree: str) -> None:
        """Lay `scaffold/` anew: a failed step's edits are kept nowhere, for they may hold what was refused."""
        self._store.checkout(tree, self.scaffold)

    @property
    def scaffold(self) -> Path:
        return self.root / "scaffold"

    def has(self, path: str) -> bool:
        """Whether an evidence path (relative to the workspace) leads to a file inside of it."""
        found = below(self.root, path)
        return found is not None and found.is_file()

    def notes(self) -> str:
        """The free file of method `notes`, or nothing."""
        path = self.root / "agent_notes.md"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    # -- what a step left --------------------------------------------------------------------------------------

    def write_skill(self, text: str) -> None:
        write_text(self.root / "SKILL.md", text)
        if self.document and not (self.root / self.document).exists():
            write_text(self.root / self.document, "")
            self.folder.show(self.document)

    def write_document(self, text: str) -> None:
        if self.document:
            write_text(self.root / self.document, text)

    def write_candidate(self, iteration: int, proposal: Mapping[str, JSON], *, tree: str, parent_tree: str) -> None:
        folder = self.folder.iteration(iteration)
        write_json(folder / "proposal.json", proposal)
        write_text(folder / "diff.patch", self._store.diff(parent_tree, tree))
        self._store.checkout(tree, folder / "source")

    def write_baseline(self, tree: str) -> None:
        self._store.checkout(tree, self.folder.iteration(0) / "source")

    def write_text(self, iteration: int, name: str, text: str) -> None:
        write_text(self.folder.iteration(iteration) / name, text)

    def write_trace(self, iteration: int, trace: Mapping[str, JSON]) -> None:
        write_trace(self.folder.iteration(iteration) / "traces", trace)

    def write_outcome(self, iteration: int, outcome: Mapping[str, JSON], rows: Sequence[ResultRow]) -> None:
        listed = [
            {"task": r.task, "repeat": r.repeat, "type": r.type, "outcome": r.kind, "score": r.score,
             "answer": r.answer, "note": r.note, "error": r.error, "seconds": round(r.seconds, 3),
             "calls": r.calls, "tokens": r.tokens, "trace": f"traces/{trace_name(r.task, r.repeat)}"}
            for r in rows
        ]  # fmt: skip
        write_json(self.folder.iteration(iteration) / "outcome.json", {**outcome, "rows": listed})

    def write_scores(self, tasks: Sequence[Task], candidates: Sequence[str]) -> None:
        """`task_score_matrix.csv`: a column for each candidate; a blank cell is no real result.

        Rows of evaluated candidates do not change: each column is drawn once and kept.
        """
        if not self._drawn:
            self._cells = {task.id: _csv([[task.id, task.type]]).removesuffix("\n") for task in tasks}
        for name in candidates[len(self._drawn) :]:
            means = task_means(self._receipts.scores("train", name))
            for task in tasks:
                self._cells[task.id] += f",{_cell(means.get(task.id))}"
            self._drawn.append(name)
        lines = [",".join(["task", "type", *self._drawn]), *self._cells.values()]
        write_text(self.root / "task_score_matrix.csv", "\n".join(lines) + "\n")

    def write_candidates(self, candidates: Sequence[Mapping[str, JSON]]) -> None:
        """`candidates.csv`; the line of all but the newest, whose verdict comes later, is kept as it was drawn."""
        columns = ["candidate", "parent", "name", "mean", "coverage", "passed", "tasks"]
        columns += ["verdict"] if self.document == DOCUMENTS["bco"] else []
        del self._listed[-1:]
        new = candidates[len(self._listed) :]
        self._listed += [_csv([[_cell(candidate.get(column)) for column in columns]]) for candidate in new]
        write_text(self.root / "candidates.csv", _csv([columns]) + "".join(self._listed))

    # -- reading traces back -----------------------------------------------------------------------------------

    def signature_hits(self, pattern: str, candidate: str) -> int | None:
        """In how many of a candidate's task traces the live signature occurs; None: not searchable in time."""
        return signature_hits(pattern, self.root / "iterations" / candidate / "traces")


def trace_name(task: str, repeat: int) -> str:
    name = quote(task, safe="")
    return f"{name}.json" if repeat == 0 else f"{name}__r{repeat}.json"


def write_trace(folder: Path, trace: Mapping[str, JSON]) -> None:
    """A trace as a JSON file; bytes of its `raw` lie beside it, under the names that stand there instead."""
    name = trace_name(str(trace["task"]), int(trace["repeat"]))
    files = {stream: f"{name.removesuffix('.json')}.{stream}.bin" for stream in trace.get("raw", {})}
    for stream, file in files.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(base64.b64decode(trace["raw"][stream]))
    write_json(folder / name, {**trace, "raw": files} if files else trace)


def write_json(path: Path, value: JSON) -> None:
    write_text(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def _cell(value: JSON) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
