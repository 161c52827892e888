"""The world model document of a run, drawn from the receipts: HEAD, the Calibration block, and all of HISTORY."""

from __future__ import annotations

from bco_graph.calibration import CalibrationRecord, Computed, calibration_block, record_of
from bco_graph.config import RunConfig
from bco_graph.prediction import Prediction
from bco_graph.receipts import Receipts
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


def document_text(receipts: Receipts, *, calibration: bool) -> str:
    """`world_model_calibration.md` as it should stand now. `calibration`: with the block of the proposer's record."""
    block = calibration_block(calibration_records(receipts)) if calibration else ""
    return render_document(document_of(receipts), calibration_block=block or None)


def shows_calibration(config: RunConfig) -> bool:
    """Off by config, and in `grading: paper`, where the figures are the proposer's own."""
    return config.world_model.calibration_block and config.grading != "paper"
