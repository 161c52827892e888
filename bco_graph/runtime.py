"""RunContext: everything that stays fixed in a run, built once from the config; and how it is opened and closed."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from bco_graph import prompts
from bco_graph.baseline import copy_baseline
from bco_graph.candidates import CandidateStore
from bco_graph.config import RunConfig
from bco_graph.document import RunDocument
from bco_graph.errors import ConfigError, RunMismatch, RunUnreadable, Tampered
from bco_graph.evaluation import LeakPatterns, LocalExecutor, check_candidate
from bco_graph.evaluation.judge import GatewayJudge
from bco_graph.evaluation.service import Evaluator, Trace
from bco_graph.evaluation.worker import remove_tree
from bco_graph.events import Events
from bco_graph.evidence import EvidenceSurface
from bco_graph.gateway import Gateway
from bco_graph.ledger import Ledger
from bco_graph.model_sections import CODE
from bco_graph.proposers import make_proposer
from bco_graph.protocols import JudgedSuite, Proposer, Role, Suite, Task
from bco_graph.receipts import Receipts, ResultRow, dumps
from bco_graph.records import Records
from bco_graph.redaction import Redactor, inline_keys, surely_keys_in
from bco_graph.reserve import heldout_reserve
from bco_graph.run_folder import RunFolder, RunLock
from bco_graph.scaffold_tree import scan_tree
from bco_graph.scratch import scratch, sweep
from bco_graph.sinks import Feeds, make_sinks
from bco_graph.state import JSON, Split, candidate_id
from bco_graph.suites import asks_judge, digest_of, load_suite, moved_tasks, take
from bco_graph.tampering import Digests, digest_of_all, digests, guarded_files, require_same, suite_home

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


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

    def keep_for_heldout(self, best: str | None) -> None:
        """Hold back from the budgets what the held-out evaluation of baseline and best will take."""
        if self.config.budget.reserve_heldout:
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


def open_run(
    config: RunConfig,
    *,
    suite: Suite | None = None,
    proposer: Proposer | None = None,
    target: str | None = None,
    models: Mapping[Role, BaseChatModel] | None = None,
    baseline: Path | None = None,
    overwrite: bool = False,
    extra_cache: Path | None = None,
    offline: bool = False,
    fresh: bool = False,
    preflight: bool = False,
) -> RunContext:
    """Open the run folder of a config, made when it is not there (`fresh`: it must not be there).

    `preflight` makes one cheap call for each role of a new run, so that a wrong key ends it before anything is paid.
    Raises ConfigError, RunLocked, RunExists, RunMismatch, RunUnreadable, or what a role's first call raised; then no
    run is left behind.
    """
    config = _with_models(_with_target(config, target), models or {})
    sinks = make_sinks(config.sinks)
    suite = suite or load_suite(config)
    folder = RunFolder(config.run_dir.resolve())
    tasks = take(suite.tasks("train"), config.evaluation.train)
    scaffold = Path(config.scaffold) if config.scaffold else suite.initial_scaffold()
    if not scaffold.is_dir():
        raise ConfigError(f"the initial scaffold {str(scaffold)!r} is no folder")
    sweep(remove_tree)
    if asks_judge(suite) and config.roles.judge is None:
        raise ConfigError(f"the suite {suite.name!r} is graded by a model: roles.judge must name its deployment")
    lock = folder.lock()
    opened: _Opened | None = None
    try:
        opened = _open_folder(
            config,
            folder,
            suite,
            tasks,
            fresh=fresh,
            overwrite=overwrite,
            extra_cache=extra_cache,
            offline=offline,
            models=models,
        )
        _require_no_key(config, scaffold, opened.gateway.redactor)
        run = _assemble(config, folder, suite, tasks, scaffold, opened, proposer, baseline, lock)
        if not folder.exists():
            _require_room(run)
            if preflight and not offline:
                _check_roles(run)
        best = run.records.best(config.evaluation.coverage_floor)
        run.keep_for_heldout(best["id"] if best else None)
        # Last: what fails before leaves no run behind that would have to be overwritten.
        folder.write(opened.manifest)
        return replace(run, feeds=Feeds.started(sinks, folder, config, run.events))
    except BaseException:
        if opened is not None:
            opened.gateway.close()
            opened.receipts.close()
        lock.release()
        raise


def _require_no_key(config: RunConfig, scaffold: Path, redactor: Redactor) -> None:
    """Refuse what would carry a key in use into run.json or the candidate store."""
    for deployment in config.models.model_list:
        if inline := inline_keys(deployment.litellm_params):
            raise ConfigError(
                f"deployment {deployment.model_name!r}: litellm_params.{inline[0]} holds the key itself, which "
                "run.json would keep: export it as an environment variable, and write os.environ/NAME there"
            )
    if problems := redactor.problems(scaffold, allow=surely_keys_in(scaffold)):
        raise ConfigError(f"the initial scaffold {str(scaffold)!r} cannot be used: {'; '.join(problems)}")


def _with_target(config: RunConfig, target: str | None) -> RunConfig:
    if target is None:
        return config
    roles = config.roles.model_copy(update={"target": target})
    return RunConfig.model_validate(config.model_copy(update={"roles": roles}).model_dump())


def _require_room(run: RunContext) -> None:
    """Refuse a budget of calls that ends before the baseline is measured; warn where it allows a proposal or none."""
    calls, reserve = run.config.budget.calls, run.config.budget.reserve_heldout
    if calls is None or not run.suite.interface.must_call_target:
        return
    baseline = len(run.tasks) * run.config.evaluation.repeats
    final = 2 * len(run.heldout_tasks()) * run.config.evaluation.repeats if reserve else 0
    kept = f" and {final} for the held-out evaluation of baseline and best" if final else ""
    if calls < baseline + final:
        way = ", lower evaluation.train or evaluation.heldout, or set budget.reserve_heldout: false" if final else ""
        raise ConfigError(f"budget.calls is {calls}, but the baseline takes {baseline}{kept}: raise it{way}")
    proposals = (calls - final) // baseline - 1
    if proposals <= 1 < run.config.iterations:
        last = f", the held-out evaluation {final}" if final else ""
        run.events.warn(
            "budget",
            f"{calls} calls allow {proposals} of {run.config.iterations} proposals: the baseline and each candidate "
            f"take {baseline}{last}",
        )


def _check_roles(run: RunContext) -> None:
    for role in _roles_in_use(run.config, run.suite):
        # A thread of its own: the caller may be inside of a running loop.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, run.gateway.check(role)).result()


def _roles_in_use(config: RunConfig, suite: Suite) -> list[Role]:
    agent = config.proposer.kind == "agent"
    in_use: dict[Role, bool] = {
        "target": True, "proposer": agent, "judge": asks_judge(suite), "predictor": agent and config.method == "bco",
    }  # fmt: skip
    return [role for role, used in in_use.items() if used and getattr(config.roles, role) is not None]


def _warn_of_idle_roles(config: RunConfig, suite: Suite, events: Events) -> None:
    for role in get_args(Role):
        name = getattr(config.roles, role)
        if name is not None and role not in _roles_in_use(config, suite):
            events.warn("config", f"roles.{role} names {name!r}, but nothing in this run asks it: {_ASKED_BY[role]}")


_ASKED_BY = {
    "proposer": "proposer.kind agent does",
    "judge": "a suite does whose grader asks a model, such as jsonl with match: judge",
    "predictor": "proposer.kind agent does, in method bco",
}


def _with_models(config: RunConfig, models: Mapping[Role, BaseChatModel]) -> RunConfig:
    """A role that only the code names is on record as such."""
    roles: dict[str, str] = {role: CODE for role in models if getattr(config.roles, role, None) is None}
    return config.model_copy(update={"roles": config.roles.model_copy(update=roles)})


@dataclass(frozen=True)
class _Opened:
    receipts: Receipts
    ledger: Ledger
    gateway: Gateway
    guarded: Digests
    manifest: dict[str, JSON]


def _open_folder(
    config: RunConfig,
    folder: RunFolder,
    suite: Suite,
    tasks: Sequence[Task],
    *,
    fresh: bool,
    overwrite: bool,
    extra_cache: Path | None,
    offline: bool,
    models: Mapping[Role, BaseChatModel] | None,
) -> _Opened:
    folder.claim(fresh=fresh, overwrite=overwrite)
    stored = folder.read() if folder.exists() else None
    if stored is not None:
        folder.require_receipts()
    receipts = Receipts(folder.receipts)
    gateway: Gateway | None = None
    try:
        ledger = Ledger(config.budget, receipts)
        gateway = Gateway(
            config.models,
            config.roles,
            ledger,
            receipts,
            run_dir=folder.root,
            extra_cache=extra_cache,
            offline=offline,
            chat_models=models,
        )
        gateway.start()
        guarded = digests(guarded_files(suite, config.suite_options, Path(config.base)))
        manifest = _manifest(config, suite, tasks, gateway, guarded)
        if stored is not None:
            measured = {row.task for row in receipts.results("train", candidate_id(0))}
            _same_run(stored, manifest, folder, moved_tasks(measured, tasks))
    except BaseException:
        if gateway is not None:
            gateway.close()
        receipts.close()
        raise
    return _Opened(receipts, ledger, gateway, guarded, manifest)


def _manifest(
    config: RunConfig, suite: Suite, tasks: Sequence[Task], gateway: Gateway, guarded: Digests
) -> dict[str, JSON]:
    return {
        "name": config.name,
        "config": config.model_dump(mode="json"),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "prompts": prompts.digests(),
        "fingerprint": gateway.fingerprint("target"),
        "judge": gateway.fingerprint("judge") if asks_judge(suite) else None,
        "prices": gateway.prices(),
        "suite": {
            "name": suite.name,
            "train": digest_of(suite, tasks),
            "heldout": digest_of(suite, take(suite.tasks("heldout"), config.evaluation.heldout)),
            "files": digest_of_all(guarded),
        },
    }


_PACKAGES = ("bco-graph", "langgraph", "langchain-core", "litellm", "pydantic", "llama-cpp-python")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _decisive(manifest: dict[str, Any]) -> dict[str, JSON]:
    """What a run may not change while it goes on."""
    config = manifest["config"]
    return {
        "method": config["method"], "grading": config["grading"], "repeats": config["evaluation"]["repeats"],
        "target": manifest["fingerprint"], "judge": manifest["judge"], "suite": manifest["suite"],
    }  # fmt: skip


def _same_run(stored: dict[str, Any], now: dict[str, Any], folder: RunFolder, moved: Sequence[str]) -> None:
    """Refuse to continue a run with another method, target, task set or grading than it was made with.

    `moved` names the tasks that came and went, which digests do not.
    """
    try:
        made_with = _decisive(stored)
    except (KeyError, TypeError) as error:
        raise RunUnreadable(f"{folder.manifest} is torn: {error}; it was left as it is") from error
    different = [
        f"{label}: the run has {dumps(old)}, now asked is {dumps(new)}"
        for (label, new), old in zip(_decisive(now).items(), made_with.values(), strict=True)
        if old != new
    ]
    if different:
        raise RunMismatch(
            f"{folder.root} cannot be continued with what is asked:\n  " + "\n  ".join([*different, *moved]) + "\n"
            "Continue it as it was, or start another run with `--name NAME`"
        )


def _assemble(
    config: RunConfig,
    folder: RunFolder,
    suite: Suite,
    tasks: Sequence[Task],
    scaffold: Path,
    opened: _Opened,
    proposer: Proposer | None,
    baseline: Path | None,
    lock: RunLock,
) -> RunContext:
    store = CandidateStore(folder.candidates)
    events = Events(folder.events)
    opened.gateway.warn(events.warn)
    evidence = EvidenceSurface(folder, config.method, store, opened.receipts)
    evidence.write_skill(prompts.skill(config.method, surface=suite.surface(), task=_task(suite, tasks)))
    executor = LocalExecutor(config.evaluation, socket_path=opened.gateway.socket_path, hide=_hidden(folder, suite))
    _warn_of_idle_roles(config, suite, events)
    if isinstance(suite, JudgedSuite) and suite.asks_judge:
        suite.use_judge(GatewayJudge(opened.gateway))
    evaluator = Evaluator(
        suite, executor, opened.receipts, events, opened.gateway.token,
        repeats=config.evaluation.repeats, grader_timeout_s=config.evaluation.grader_timeout_s,
        redactor=opened.gateway.redactor,
    )  # fmt: skip
    return RunContext(
        config=config, folder=folder, suite=suite, tasks=tasks, initial_scaffold=scaffold,
        proposer=proposer or _proposer(config, opened.gateway, _hidden(folder, suite)), candidates=store,
        receipts=opened.receipts, ledger=opened.ledger, gateway=opened.gateway, evaluator=evaluator,
        evidence=evidence, events=events,
        executor=executor, leaks=_leaks(suite, scaffold),
        records=Records(opened.receipts), document=RunDocument(opened.receipts),
        guarded=opened.guarded, baseline=baseline, lock=lock,
    )  # fmt: skip


def _hidden(folder: RunFolder, suite: Suite) -> list[Path]:
    """What no candidate may see: the run, and the package in which the suite keeps its grader and gold."""
    home = suite_home(suite)
    return [folder.root, *([home] if home else [])]


def _task(suite: Suite, tasks: Sequence[Task]) -> str:
    return (
        f"Raise the mean score of the scaffold in `scaffold/` on the {len(tasks)} train tasks of the suite "
        f"`{suite.name}`, by changes that will also help on tasks of the same types that nobody here has seen."
    )


def _proposer(config: RunConfig, gateway: Gateway, hide: Sequence[Path]) -> Proposer:
    if config.proposer.kind == "agent" and config.roles.proposer is None:
        names = ", ".join(deployment.model_name for deployment in config.models.model_list)
        raise ConfigError(
            f"proposer.kind is 'agent', so roles.proposer must name a deployment of models.model_list: {names}; "
            "or choose kind command, handoff or replay"
        )
    return make_proposer(
        config.proposer, calls=gateway, capabilities=gateway.capabilities, gateway_url=gateway.base_url,
        token_for=gateway.token, gateway_socket=gateway.socket_path, hide=hide,
        predictor=config.roles.predictor is not None,
    )  # fmt: skip


_SPLITS: tuple[Split, ...] = ("train", "heldout")


def _leaks(suite: Suite, scaffold: Path) -> LeakPatterns:
    tasks = [task for split in _SPLITS for task in suite.tasks(split)]
    return LeakPatterns.build(tasks, {task.id: suite.gold(task) for task in tasks}, allow=scaffold)
