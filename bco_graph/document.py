"""The world model document of a run, drawn from the receipts: HEAD, the Calibration block, and all of HISTORY."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from bco_graph.calibration import CalibrationRecord, Computed, calibration_block, record_of
from bco_graph.config import RunConfig
from bco_graph.errors import RunUnreadable
from bco_graph.prediction import Prediction
from bco_graph.receipts import Receipts
from bco_graph.state import JSON, WorldModelReference
from bco_graph.world_model import Document, HistoryRecord, WorldModel, render_document, render_record


class RunDocument:
    """Kept in memory: built from the receipts when it is first asked, then extended by what they have gained, so that
    no update reads or renders HISTORY again."""

    def __init__(self, receipts: Receipts) -> None:
        self._receipts = receipts
        self._updated, self._changed, self._graded = -1, 0, -1
        self._head = WorldModel()
        self._history = ""
        self._calibration: list[CalibrationRecord] = []

    def newest(self) -> int | None:
        """The iteration of the last update that has ended, or None."""
        self._take_in()
        return self._updated if self._updated >= 0 else None

    def head(self, iteration: int) -> WorldModel:
        """The HEAD as the update of an iteration left it, or as it was changed from outside after that."""
        self._take_in()
        if iteration == self._updated:
            return self._head
        record = self._receipts.last_change(iteration) or self._receipts.step(iteration, "document")
        if record is None:
            raise RunUnreadable(
                f"{self._receipts.path} has no document of iteration {iteration}, which the checkpoint names: "
                "the two files do not belong together"
            )
        return WorldModel.from_json(record["head"])

    def text(self, *, calibration: bool) -> str:
        """`world_model_calibration.md` as it should stand now, as `document_text` says it."""
        self._take_in()
        block = calibration_block(self._calibration) if calibration else ""
        until_history = render_document(Document(head=self._head), calibration_block=block or None)
        return f"{until_history.removesuffix(chr(10))}{self._history}\n"

    def _take_in(self) -> None:
        newest: JSON = None
        changes = self._receipts.changes(after=self._changed)
        for iteration, record in _in_order(self._receipts.steps_after(self._updated, "document"), changes):
            self._updated, newest = iteration, record["head"]
            self._history += f"\n\n{render_record(HistoryRecord(iteration=iteration, text=record['history']))}"
        self._changed = changes[-1][0] if changes else self._changed
        if newest is not None:
            self._head = WorldModel.from_json(newest)
        for iteration, grade in self._receipts.steps_after(self._graded, "graded"):
            self._graded = iteration
            prediction = self._receipts.step(iteration, "predict") or {}
            self._calibration.append(_calibration_record(prediction["result"]["content"], grade["computed"]))


def reference_to(iteration: int, head: WorldModel) -> WorldModelReference:
    """What the state holds of the HEAD that stands after an iteration."""
    return WorldModelReference(iteration=iteration, beliefs=len(head.beliefs), experiments=len(head.experiments))


def document_of(receipts: Receipts) -> Document:
    """HEAD and HISTORY as the last finished update left them; an empty document before the first."""
    records = documents(receipts)
    head = WorldModel.from_json(records[-1][1]["head"]) if records else WorldModel()
    history = tuple(HistoryRecord(iteration=i, text=record["history"]) for i, record in records)
    return Document(head=head, history=history)


def documents(receipts: Receipts) -> list[tuple[int, dict[str, JSON]]]:
    """(iteration, record) of every update and of each change from outside, in the order in which they came to be."""
    updates = ((iteration, record) for iteration, _, record in receipts.steps("document"))
    return list(_in_order(updates, receipts.changes()))


def _in_order(
    updates: Iterable[tuple[int, dict[str, JSON]]], changes: Iterable[tuple[int, int, dict[str, JSON]]]
) -> Iterator[tuple[int, dict[str, JSON]]]:
    """Updates and the changes from outside that followed each; one update at a time is held."""
    first = ((iteration, 0, record) for iteration, record in updates)
    then = ((iteration, 1, record) for _, iteration, record in changes)
    for iteration, _, record in heapq.merge(first, then, key=lambda entry: entry[:2]):
        yield iteration, record


def document_text(receipts: Receipts, *, calibration: bool) -> str:
    """The whole of `world_model_calibration.md`, from nothing but the receipts. `calibration`: with the block of the
    proposer's record."""
    grades = {iteration: record for iteration, _, record in receipts.steps("graded")}
    records = [
        _calibration_record(record["result"]["content"], grades[iteration]["computed"])
        for iteration, _, record in receipts.steps("predict")
        if record["result"] and iteration in grades
    ]
    block = calibration_block(records) if calibration else ""
    return render_document(document_of(receipts), calibration_block=block or None)


def _calibration_record(prediction: JSON, computed: JSON) -> CalibrationRecord:
    """Stated confidence against verdict, for one graded prediction."""
    return record_of(Prediction.from_json(prediction), Computed.model_validate(computed))


def shows_calibration(config: RunConfig) -> bool:
    """Off by config, and in `grading: paper`, where the figures are the proposer's own."""
    return config.world_model.calibration_block and config.grading != "paper"
