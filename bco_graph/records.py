"""What the earlier iterations say, read from the receipts: the views that nodes and reports share."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import TypedDict, cast

from bco_graph.calibration import Computed, SignatureHits, compute
from bco_graph.evaluation.service import sum_up
from bco_graph.prediction import Prediction
from bco_graph.receipts import Receipts
from bco_graph.selection import Standing, best, rank
from bco_graph.state import JSON, REJECTED, Best, CandidateSummary, Outcome, Verdict, candidate_id
from bco_graph.task_tables import Flips, task_means, unstable_tasks

SHOWN = 20
"""Candidates that a proposer is shown of the best, and of the newest; `candidates.csv` has them all."""


class CandidateRecord(TypedDict):
    """One evaluated candidate. Means and coverage in [0, 1]; `verdict` only in method `bco`."""

    candidate: str
    iteration: int
    parent: str | None
    name: str
    mean: float | None
    coverage: float
    passed: int
    tasks: int
    verdict: Verdict | None


class Records:
    """Kept in memory: built from the receipts when it is first asked, then extended by what they have gained.

    So a question costs the same however many iterations there were. Nothing is here that the receipts do not say.
    """

    def __init__(self, receipts: Receipts) -> None:
        self._receipts = receipts
        self._read: dict[str, int] = {}
        self._names: dict[int, str] = {0: "baseline"}
        self._attacked: Counter[str] = Counter()
        self._candidates: dict[int, CandidateRecord] = {}
        self._standings: list[Standing] = []
        self._flips = Flips()
        self._failed_in_a_row = 0
        self._rejected: deque[str] = deque(maxlen=SHOWN)

    def candidates(self) -> list[CandidateRecord]:
        """Every evaluated candidate in the order of iterations, the baseline first."""
        self._take_in()
        return list(self._candidates.values())

    def summaries(self) -> list[CandidateSummary]:
        return [
            CandidateSummary(id=r["candidate"], parent=r["parent"], mean=r["mean"], coverage=r["coverage"])
            for r in self.candidates()
        ]

    def best(self, coverage_floor: float) -> Best | None:
        """The best candidate by the one ranking function, the baseline among them; None while nothing is eligible."""
        self._take_in()
        first = best(self._standings, coverage_floor=coverage_floor)
        return Best(id=first.id, mean=cast(float, first.mean)) if first else None

    def failed_in_a_row(self) -> int:
        """How many of the newest iterations have no candidate, back to the last one that has, or that a person
        rejected: there the proposer had made an edit that could be evaluated."""
        self._take_in()
        return self._failed_in_a_row

    def rejections(self) -> list[str]:
        """The newest edits that a person rejected, each with the reason, as lines; at most `SHOWN`."""
        self._take_in()
        return list(self._rejected)

    def attempts_on(self, failure_mode: str) -> int:
        """How many proposals before the newest attacked a failure mode of this very name."""
        self._take_in()
        return max(0, self._attacked[_plain(failure_mode)] - 1)

    def stable_tasks(self, candidate: str, *, before: int) -> list[str]:
        """Tasks of a candidate that no evidence from before an iteration calls unstable."""
        self._take_in()
        rows = self._receipts.results("train", candidate)
        return sorted({row.task for row in rows} - unstable_tasks([rows], self._flips.before(before)))

    def computed_grade(
        self,
        prediction: Prediction,
        candidate: str,
        iteration: int,
        *,
        hits: Callable[[str], int | None],
        coverage_floor: float,
    ) -> Computed:
        """The mechanical grade of a candidate, from the rows as they stand.

        `hits` counts the traces of a candidate that hold the live signature; what it cannot search in time (None)
        counts as not found, so that no belief moves on it.
        """
        self._take_in()
        return compute(
            prediction,
            candidate_rows=self._receipts.results("train", candidate),
            parent_rows=self._receipts.results("train", prediction.base),
            # The graded candidate itself is no evidence of noise: a repaired task that breaks now is a regression.
            flipping=self._flips.before(iteration),
            signature_hits=SignatureHits(candidate_tasks=hits(candidate) or 0, parent_tasks=hits(prediction.base) or 0),
            coverage_floor=coverage_floor,
        )

    def candidates_table(self, coverage_floor: float) -> str:
        """The candidates as a Markdown table; of many, the best and the newest, with a line that says so."""
        found = self.candidates()
        shown = found
        if len(found) > 2 * SHOWN:
            top = set(rank(self._standings, coverage_floor=coverage_floor)[:SHOWN])
            top |= {record["candidate"] for record in found[-SHOWN:]}
            shown = [record for record in found if record["candidate"] in top]
        lines = ["| candidate | parent | name | mean score | coverage |", "| --- | --- | --- | --- | --- |"]
        lines += [_table_line(record) for record in shown]
        if len(shown) < len(found):
            lines += [
                "",
                f"[kept {len(shown)} of {len(found)} candidates, the {SHOWN} best and the {SHOWN} newest; all of them "
                "are in candidates.csv]",
            ]
        return "\n".join(lines)

    def _take_in(self) -> None:
        # Verdicts and outcomes are read first: what they rest on was written before them, also by another process.
        verdicts = [(iteration, record["verdict"]) for iteration, record in self._new("graded")]
        outcomes = [(iteration, cast(Outcome, record)) for iteration, record in self._new("evaluate")]
        for iteration, proposal in self._new("propose"):
            if result := proposal["result"]:
                self._names[iteration] = result["name"]
                self._attacked[_plain(result["failure_mode"])] += 1
        for iteration, outcome in outcomes:
            self._take_in_outcome(iteration, outcome)
        for iteration, verdict in verdicts:
            self._candidates[iteration]["verdict"] = verdict

    def _new(self, step: str) -> Iterator[tuple[int, dict[str, JSON]]]:
        for iteration, record in self._receipts.steps_after(self._read.get(step, -1), step):
            self._read[step] = iteration
            yield iteration, record

    def _take_in_outcome(self, iteration: int, outcome: Outcome) -> None:
        failure = outcome["failure"]
        rejected = failure is not None and failure["cause"] == REJECTED
        self._failed_in_a_row = self._failed_in_a_row + 1 if failure and not rejected else 0
        if failure and rejected:
            name, why = self._names.get(iteration, ""), "; ".join(failure["reasons"])
            self._rejected.append(f"- {candidate_id(iteration)}, {name}: {' '.join(why.split())}")
        candidate = outcome["candidate"]
        if candidate is None:
            return
        record = CandidateRecord(
            candidate=candidate, iteration=iteration, parent=outcome["parent"], name=self._names.get(iteration, ""),
            mean=outcome["mean"], coverage=outcome["coverage"], passed=outcome["passed"], tasks=outcome["tasks"],
            verdict=None,
        )  # fmt: skip
        n = round(record["coverage"] * record["tasks"])
        self._candidates[iteration] = record
        self._standings.append(Standing(candidate, iteration, record["mean"], record["coverage"], n))
        self._flips.add(iteration, task_means(self._receipts.scores("train", candidate)))


def staged_tree(receipts: Receipts, iteration: int) -> str | None:
    """Tree of an iteration's edit as it went on: the proposer's, or what a person put in its place. None where there
    was none, or a person rejected it."""
    decided = [receipts.step(iteration, step) or {} for step in ("approve", "afford")]
    if any(answer.get("failure") for answer in decided):
        return None
    proposed = (receipts.step(iteration, "propose") or {}).get("result") or {}
    return decided[0].get("tree") or proposed.get("tree")


def _plain(failure_mode: str) -> str:
    return " ".join(failure_mode.lower().split())


def _table_line(record: CandidateRecord) -> str:
    mean = "none" if record["mean"] is None else f"{record['mean']:.3f}"
    name, parent = record["name"], record["parent"] or ""
    return f"| {record['candidate']} | {parent} | {name} | {mean} | {record['coverage']:.2f} |"


def cut(text: str, limit: int, where: str) -> str:
    """The text, or its beginning with a mark that says how much is shown and where the whole is."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[... kept {limit} of {len(text)} characters; the whole is {where} ...]"


def heldout_records(receipts: Receipts) -> dict[str, dict[str, JSON]]:
    """Mean and coverage on the held-out split of each candidate that was measured there."""
    rows = receipts.results("heldout")
    names = sorted({row.candidate for row in rows})
    return {name: dict(sum_up(0, name, None, [row for row in rows if row.candidate == name])) for name in names}
