"""Held-out: the sealed split, measured only here, with every look written down before its first call."""

from __future__ import annotations

from collections.abc import Sequence

from bco_graph.errors import ConfigError
from bco_graph.evaluation.service import Trace, sum_up
from bco_graph.evidence import write_json, write_trace
from bco_graph.ledger import Reserve
from bco_graph.receipts import ResultRow
from bco_graph.runtime import RunContext
from bco_graph.state import Outcome, candidate_id


async def heldout(run: RunContext, candidates: Sequence[str], *, reason: str) -> dict[str, Outcome]:
    """Outcome on the held-out tasks for each candidate; rows that exist are not made again.

    Traces go to `heldout/`, which is never part of a workspace.
    """
    known = run.candidates.ids()
    for name in candidates:
        if name not in known:
            raise ConfigError(f"{name!r} is no candidate of {run.folder.root}; there are: {', '.join(known)}")
    return {name: await _measure(run, name, reason) for name in dict.fromkeys(candidates)}


def chosen(run: RunContext, best: str | None) -> list[str]:
    """The untouched baseline and the best candidate: never one without the other."""
    return list(dict.fromkeys([candidate_id(0), *([best] if best else [])]))


async def _measure(run: RunContext, candidate: str, reason: str) -> Outcome:
    tasks = run.heldout_tasks()
    if not tasks:
        raise ConfigError(f"suite {run.suite.name!r} has no held-out tasks: its train score is a fit score")
    rows: Sequence[ResultRow] = run.receipts.results("heldout", candidate)
    if len(rows) < len(tasks) * run.config.evaluation.repeats or any(row.score is None for row in rows):
        run.receipts.log_heldout(candidate, reason)
        iteration = int(candidate.removeprefix("iter_"))
        folder = run.folder.heldout / candidate

        def keep(trace: Trace) -> None:
            write_trace(folder, trace)

        # What was kept back is for this.
        run.ledger.keep(Reserve())
        tree = run.candidates.tree(candidate)
        rows = await run.measure("heldout", candidate, tree, tasks, iteration=iteration, keep_trace=keep)
    outcome = sum_up(int(candidate.removeprefix("iter_")), candidate, None, rows)
    write_json(run.folder.heldout / f"{candidate}.json", dict(outcome))
    # Also where the rows were there: a process may have been killed before it said so. Readers know it by its facts.
    run.events.emit(
        "heldout", outcome["iteration"], candidate=candidate, mean=outcome["mean"], coverage=outcome["coverage"],
        tasks=outcome["tasks"], passed=outcome["passed"], looks=run.receipts.heldout_looks(until=candidate),
    )  # fmt: skip
    return outcome
