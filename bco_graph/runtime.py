"""RunContext: everything that stays fixed in a run, built once from the config (`opening.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bco_graph.baseline import copy_baseline
from bco_graph.candidates import CandidateStore
from bco_graph.config import RunConfig
from bco_graph.document import RunDocument, shows_calibration
from bco_graph.errors import Tampered
from bco_graph.evaluation import LeakPatterns, LocalExecutor, check_candidate
from bco_graph.evaluation.service import Evaluator, Trace
from bco_graph.events import Events
from bco_graph.evidence import EvidenceSurface
from bco_graph.gateway import Gateway
from bco_graph.ledger import Ledger
from bco_graph.protocols import Proposer, Suite, Task
from bco_graph.receipts import Receipts, ResultRow
from bco_graph.records import Records
from bco_graph.redaction import surely_keys_in
from bco_graph.reserve import heldout_reserve
from bco_graph.run_folder import RunFolder, RunLock
from bco_graph.scaffold_tree import scan_tree
from bco_graph.scratch import scratch
from bco_graph.sinks import Feeds
from bco_graph.state import Split, candidate_id
from bco_graph.suites import take
from bco_graph.tampering import Digests, require_same


@dataclass(frozen=True)
class RunContext:
    """What nodes call. `tasks` are the train tasks; `initial_scaffold` is the folder of the baseline; `guarded`
    are the files that decide scores, as they were when the run was opened."""

    config: RunConfig
    folder: RunFolder
    suite: Suite
    tasks: Sequence[Task]
    initial_scaffold: Path
    proposer: Proposer
    candidates: CandidateStore
    receipts: Receipts
    ledger: Ledger
    gateway: Gateway
    evaluator: Evaluator
    evidence: EvidenceSurface
    events: Events
    executor: LocalExecutor
    leaks: LeakPatterns
    records: Records
    document: RunDocument
    guarded: Digests
    baseline: Path | None = None
    lock: RunLock | None = field(default=None, repr=False)
    feeds: Feeds = field(default_factory=Feeds, repr=False)

    def heldout_tasks(self) -> list[Task]:
        return take(self.suite.tasks("heldout"), self.config.evaluation.heldout)

    def check_scaffold(self, folder: Path) -> list[str]:
        """Reasons why a scaffold may not be evaluated; empty when it may. Costs no model call."""
        redactor = self.gateway.redactor
        keys = scan_tree(folder) or redactor.problems(folder, allow=surely_keys_in(self.initial_scaffold))
        keys += [
            f"agent_notes.md, line {line}: holds a credential; take it out"
            for line in redactor.holds_credential(self.evidence.notes())
        ]
        return keys or check_candidate(folder, self.suite.interface, self.leaks, self.executor)

    @contextmanager
    def source(self, tree: str) -> Iterator[Path]:
        """A fresh copy of a tree, outside of the run folder, for as long as the block lasts."""
        with scratch("source") as apart:
            folder = apart / "scaffold"
            self.candidates.checkout(tree, folder)
            yield folder

    async def measure(
        self,
        split: Split,
        candidate: str,
        tree: str,
        tasks: Sequence[Task],
        *,
        iteration: int,
        keep_trace: Callable[[Trace], None],
    ) -> list[ResultRow]:
        """Every row of a candidate on some tasks, the missing ones made now. Raises Tampered, with all of its rows on
        the split dropped, where a guarded file is not what it was."""
        require_same(self.guarded, candidate)
        with self.source(tree) as source:
            try:
                return await self.evaluator.evaluate(
                    split, candidate, source, tasks, iteration=iteration, keep_trace=keep_trace
                )
            finally:
                self._void_if_tampered(split, candidate)

    def _void_if_tampered(self, split: Split, candidate: str) -> None:
        try:
            require_same(self.guarded, candidate)
        except Tampered:
            self.receipts.drop_results(split, candidate)
            raise

    def write_document(self) -> None:
        """Draw the world model document anew, as the receipts have it now."""
        self.evidence.write_document(self.document.text(calibration=shows_calibration(self.config)))

    def keep_for_heldout(self, best: str | None) -> None:
        """Hold back from the budgets what the held-out evaluation of baseline and best will take."""
        budget = self.config.budget
        if budget.reserve_heldout and (budget.calls, budget.tokens, budget.usd) != (None, None, None):
            runs = len(self.heldout_tasks()) * self.config.evaluation.repeats
            self.ledger.keep(heldout_reserve(self.receipts, self.ledger.totals().get("target", {}), best, runs))

    def reuse_baseline(self, tree: str) -> None:
        """Take iteration 0's rows and traces from another run, where everything that decides them is equal."""
        if self.baseline is not None and not self.receipts.results("train", candidate_id(0)):
            copy_baseline(RunFolder(self.baseline), self.folder, self.receipts, tree)

    def close(self) -> None:
        with ExitStack() as last_first:
            if self.lock is not None:
                last_first.callback(self.lock.release)
            last_first.callback(self.receipts.close)
            last_first.callback(self.gateway.close)
            last_first.callback(self.feeds.close)
