"""The world model document of a run, drawn from the receipts: HEAD, the Calibration block, and all of HISTORY."""

from __future__ import annotations

from bco_graph.calibration import CalibrationRecord, Computed, calibration_block, record_of
from bco_graph.prediction import Prediction
from bco_graph.receipts import Receipts
from bco_graph.runtime import RunContext
from bco_graph.world_model import Document, HistoryRecord, WorldModel, render_document


def document_of(receipts: Receipts) -> Document:
    """HEAD and HISTORY as the last finished update left them; an empty document before the first."""
    records = receipts.steps("document")
    head = WorldModel.from_json(records[-1][2]["head"]) if records else WorldModel()
    history = tuple(HistoryRecord(iteration=i, text=record["history"]) for i, _, record in records)
    return Document(head=head, history=history)


def calibration_records(receipts: Receipts) -> list[CalibrationRecord]:
    """Stated confidence against verdict, for every graded prediction."""
    grades = {iteration: record for iteration, _, record in receipts.steps("graded")}
    return [
        record_of(
            Prediction.from_json(record["result"]["content"]), Computed.model_validate(grades[iteration]["computed"])
        )
        for iteration, _, record in receipts.steps("predict")
        if record["result"] and iteration in grades
    ]


def draw_document(run: RunContext) -> None:
    """Write `world_model_calibration.md`. The Calibration block is off in `grading: paper`."""
    block = None
    if run.config.world_model.calibration_block and run.config.grading != "paper":
        block = calibration_block(calibration_records(run.receipts)) or None
    run.evidence.write_document(render_document(document_of(run.receipts), calibration_block=block))
