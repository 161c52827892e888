"""Opening a run: the folder of a config, and the services that its RunContext holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bco_graph import prompts
from bco_graph.candidates import CandidateStore
from bco_graph.config import RunConfig
from bco_graph.document import RunDocument
from bco_graph.errors import ConfigError
from bco_graph.evaluation import LeakPatterns, LocalExecutor
from bco_graph.evaluation.judge import GatewayJudge
from bco_graph.evaluation.service import Evaluator
from bco_graph.evaluation.worker import remove_tree
from bco_graph.events import Events
from bco_graph.evidence import EvidenceSurface
from bco_graph.gateway import Gateway
from bco_graph.ledger import Ledger
from bco_graph.manifest import manifest_of, require_same_run
from bco_graph.model_sections import CODE
from bco_graph.preflight import check_roles, require_no_key, require_room, warn_of_idle_roles
from bco_graph.proposers import make_proposer
from bco_graph.protocols import JudgedSuite, Proposer, Role, Suite, Task
from bco_graph.receipts import Receipts
from bco_graph.records import Records
from bco_graph.run_folder import RunFolder, RunLock
from bco_graph.runtime import RunContext
from bco_graph.scratch import sweep
from bco_graph.sinks import Feeds, make_sinks
from bco_graph.state import JSON, Split, candidate_id
from bco_graph.suites import asks_judge, load_suite, moved_tasks, take
from bco_graph.tampering import Digests, digests, guarded_files, suite_home

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


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
        require_no_key(config, scaffold, opened.gateway.redactor)
        run = _assemble(config, folder, suite, tasks, scaffold, opened, proposer, baseline, lock)
        if not folder.exists():
            require_room(run)
            if preflight and not offline:
                check_roles(run)
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


def _with_target(config: RunConfig, target: str | None) -> RunConfig:
    if target is None:
        return config
    roles = config.roles.model_copy(update={"target": target})
    return RunConfig.model_validate(config.model_copy(update={"roles": roles}).model_dump())


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
        manifest = manifest_of(config, suite, tasks, gateway, guarded)
        if stored is not None:
            measured = {row.task for row in receipts.results("train", candidate_id(0))}
            require_same_run(stored, manifest, folder, moved_tasks(measured, tasks))
    except BaseException:
        if gateway is not None:
            gateway.close()
        receipts.close()
        raise
    return _Opened(receipts, ledger, gateway, guarded, manifest)


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
    warn_of_idle_roles(config, suite, events)
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
