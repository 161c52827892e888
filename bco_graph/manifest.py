"""What a run is made with, as run.json keeps it, and the refusal to go on with anything else."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bco_graph import prompts
from bco_graph.config import RunConfig
from bco_graph.errors import RunMismatch, RunUnreadable
from bco_graph.gateway import Gateway
from bco_graph.protocols import Suite, Task
from bco_graph.receipts import dumps
from bco_graph.run_folder import RunFolder
from bco_graph.state import JSON
from bco_graph.suites import asks_judge, digest_of, take
from bco_graph.tampering import Digests, digest_of_all


def manifest_of(
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


def require_same_run(stored: dict[str, Any], now: dict[str, Any], folder: RunFolder, moved: Sequence[str]) -> None:
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
