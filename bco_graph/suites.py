"""Finding a suite by the name in the config, and taking its tasks."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Collection, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from bco_graph.config import RunConfig, nearest
from bco_graph.errors import ConfigError, SuiteBroken
from bco_graph.protocols import JudgedSuite, Suite, Task
from bco_graph.receipts import dumps
from bco_graph.state import JSON

GROUP = "bco_graph.suites"


def load_suite(config: RunConfig) -> Suite:
    """The suite that `config.suite` names: an entry point of the group `bco_graph.suites`, `package.module:Class`,
    or `path/to/file.py:Class`. `suite_options` are its keyword arguments; one that takes `base` gets the folder that
    relative paths start from."""
    factory = find(config.suite, Path(config.base), group=GROUP, what="suite")
    options = dict(config.suite_options)
    if "base" in inspect.signature(factory).parameters:
        options.setdefault("base", config.base)
    try:
        suite = factory(**options)
    except TypeError as error:
        raise ConfigError(
            f"suite {config.suite!r} does not take suite_options {config.suite_options}: {error}"
        ) from error
    if not isinstance(suite, Suite):
        raise ConfigError(f"suite {config.suite!r} lacks a method or attribute of bco_graph.protocols.Suite")
    _check_splits(suite)
    return suite


def find(name: str, base: Path, *, group: str, what: str) -> Any:
    """What a name leads to: an entry point of a group, `package.module:Attribute`, or `path/to/file.py:Attribute` from
    `base` on. `what` is the word for it in a ConfigError."""
    installed = {entry.name: entry for entry in entry_points(group=group)}
    if name in installed:
        return installed[name].load()
    where, colon, attribute = name.rpartition(":")
    if not colon:
        raise ConfigError(
            f"unknown {what} {name!r}{nearest(name, installed)}; installed: {', '.join(sorted(installed)) or 'none'}; "
            "or give path/to/file.py:Name"
        )
    module = _load_file(base / where, what) if where.endswith(".py") else _load_module(where, what)
    if not hasattr(module, attribute):
        raise ConfigError(f"{what} {name!r}: {where} defines no {attribute!r}{nearest(attribute, vars(module))}")
    return getattr(module, attribute)


def _load_file(path: Path, what: str) -> Any:
    if not path.is_file():
        raise ConfigError(f"the {what} file {str(path)!r} is not there")
    spec = importlib.util.spec_from_file_location(f"bco_{what}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"the {what} file {str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the {what} module {name!r} cannot be imported: {error}") from error


def _check_splits(suite: Suite) -> None:
    train, heldout = ([task.id for task in suite.tasks(split)] for split in ("train", "heldout"))
    if not train:
        raise SuiteBroken(f"suite {suite.name!r} has no train tasks")
    twice = sorted({name for name in train + heldout if (train + heldout).count(name) > 1})
    if twice:
        raise SuiteBroken(
            f"suite {suite.name!r} uses these task ids more than once: {', '.join(map(repr, twice[:10]))}"
        )


def asks_judge(suite: Suite) -> bool:
    """Whether its grader asks the model of `roles.judge` (`protocols.JudgedSuite`)."""
    return isinstance(suite, JudgedSuite) and suite.asks_judge


def take(tasks: Sequence[Task], count: int | None) -> list[Task]:
    """The first `count` tasks when they are drawn from each type in turn; None: all, in their own order."""
    if count is None or count >= len(tasks):
        return list(tasks)
    by_type: dict[str, list[Task]] = {}
    for task in tasks:
        by_type.setdefault(task.type, []).append(task)
    turns = [queue[turn] for turn in range(len(tasks)) for queue in by_type.values() if turn < len(queue)]
    chosen = {task.id for task in turns[:count]}
    return [task for task in tasks if task.id in chosen]


def moved_tasks(measured: Collection[str], tasks: Sequence[Task]) -> list[str]:
    """In words, which ids came to those that were measured and which went; nothing where none did or none were."""
    ids, known = {task.id for task in tasks}, set(measured)
    moves = [("added", ids - known), ("removed", known - ids)] if known else []
    said = [
        f"{how}: {', '.join(map(repr, sorted(names)[:10]))}{f' and {len(names) - 10} more' if len(names) > 10 else ''}"
        for how, names in moves
        if names
    ]
    return [f"train tasks {'; '.join(said)}"] if said else []


def digest_of(suite: Suite, tasks: Sequence[Task]) -> dict[str, JSON]:
    """What a split is: how many tasks, their ids' digest, and the digest of their content with the gold."""
    content = [[task.id, task.type, dict(task.inputs), suite.gold(task)] for task in tasks]
    ids = [task.id for task in tasks]
    return {"tasks": len(ids), "ids": _sha(ids), "content": _sha(content)}


def _sha(value: JSON) -> str:
    return hashlib.sha256(dumps(value).encode()).hexdigest()[:16]
