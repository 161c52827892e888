"""Beliefs that people change: at a review, or by `bco believe` on a run that stands still.

Either way it is on record as a change of the document after the newest update, beside those that a program makes
(`outside`), so that document, HISTORY and every later reader go by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bco_graph.config import RunConfig, check_config
from bco_graph.document import RunDocument, shows_calibration
from bco_graph.errors import ConfigError, RunUnreadable
from bco_graph.events import Events
from bco_graph.receipts import Receipts
from bco_graph.redaction import Redactor, credentials_of
from bco_graph.run_folder import DOCUMENTS, RunFolder, below, write_text
from bco_graph.state import JSON
from bco_graph.world_model import HumanChange, WorldModel, apply_human, compact, human_record


def change_of(
    head: WorldModel,
    changes: Sequence[HumanChange],
    *,
    iteration: int,
    by: str,
    token_budget: int,
    evidence_exists: Callable[[str], bool],
) -> dict[str, JSON] | None:
    """The record of what a person does to the HEAD that an iteration left; None where it is nothing. Raises
    SubmissionRefused, also where the HEAD would pass its token budget."""
    if not changes:
        return None
    applied = apply_human(head, changes, iteration=iteration, evidence_exists=evidence_exists)
    fitted = compact(applied.head, token_budget, keep_ids=frozenset())
    history = human_record(iteration, applied, changes, by=by, removed_text=fitted.removed_text)
    return {"head": fitted.head.to_json(), "changes": applied.changes, "history": f"{history.markdown}\n", "by": by}


def record_once(receipts: Receipts, iteration: int, change: dict[str, JSON]) -> None:
    """Put the change of a review, which names it under `review`, on record, unless it is there: a kill may have struck
    right after that."""
    if not any(record.get("review") == change["review"] for _, _, record in receipts.changes()):
        receipts.add_change(iteration, change)


def believe(folder: Path, changes: Sequence[HumanChange], *, by: str = "") -> dict[str, JSON]:
    """Change the beliefs of a run that nobody drives; returns the record. Raises SubmissionRefused with every reason,
    RunLocked, RunUnreadable, and ConfigError for a method without beliefs."""
    run = RunFolder(folder)
    lock = run.lock()
    try:
        raw = run.read().get("config")
        config = check_config(raw if isinstance(raw, dict) else {}, source=str(run.manifest))
        if config.method != "bco":
            raise ConfigError(f"{folder} has no beliefs: its method is {config.method!r}")
        run.require_receipts()
        receipts = Receipts(run.receipts)
        try:
            return _believe(run, config, receipts, changes, by)
        finally:
            receipts.close()
    finally:
        lock.release()


def _believe(
    run: RunFolder, config: RunConfig, receipts: Receipts, changes: Sequence[HumanChange], by: str
) -> dict[str, JSON]:
    document = RunDocument(receipts)
    newest = document.newest()
    if newest is None:
        raise RunUnreadable(f"{run.root} has no beliefs yet: the update after the baseline has not ended")
    change = change_of(
        document.head(newest), changes, iteration=newest, by=by, token_budget=config.world_model.token_budget,
        evidence_exists=partial(_has, run.workspace),
    )  # fmt: skip
    if change is None:
        raise ConfigError("no change is given: nothing was written")
    change = dict(Redactor(credentials_of(os.environ)).plain(change))
    receipts.add_change(newest, change)
    write_text(run.workspace / str(DOCUMENTS["bco"]), document.text(calibration=shows_calibration(config)))
    Events(run.events).emit(
        "decided", receipts.last_iteration(), step="believe", decision="changed", reason="", by=by,
        changes=change["changes"],
    )  # fmt: skip
    return change


def _has(workspace: Path, path: str) -> bool:
    found = below(workspace, path)
    return found is not None and found.is_file()
