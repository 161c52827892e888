"""What a new run must have before anything is paid: no key in it, room in the budget, models that answer."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from bco_graph.apart import run_apart
from bco_graph.config import RunConfig
from bco_graph.errors import ConfigError
from bco_graph.events import Events
from bco_graph.protocols import Role, Suite
from bco_graph.redaction import Redactor, inline_keys, surely_keys_in
from bco_graph.runtime import RunContext
from bco_graph.suites import asks_judge


def require_no_key(config: RunConfig, scaffold: Path, redactor: Redactor) -> None:
    """Refuse what would carry a key in use into run.json or the candidate store."""
    for deployment in config.models.model_list:
        if inline := inline_keys(deployment.litellm_params):
            raise ConfigError(
                f"deployment {deployment.model_name!r}: litellm_params.{inline[0]} holds the key itself, which "
                "run.json would keep: export it as an environment variable, and write os.environ/NAME there"
            )
    if problems := redactor.problems(scaffold, allow=surely_keys_in(scaffold)):
        raise ConfigError(f"the initial scaffold {str(scaffold)!r} cannot be used: {'; '.join(problems)}")


def require_room(run: RunContext) -> None:
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


def check_roles(run: RunContext) -> None:
    for role in _roles_in_use(run.config, run.suite):
        run_apart(run.gateway.check(role))


def _roles_in_use(config: RunConfig, suite: Suite) -> list[Role]:
    agent = config.proposer.kind == "agent"
    in_use: dict[Role, bool] = {
        "target": True, "proposer": agent, "judge": asks_judge(suite), "predictor": agent and config.method == "bco",
    }  # fmt: skip
    return [role for role, used in in_use.items() if used and getattr(config.roles, role) is not None]


def warn_of_idle_roles(config: RunConfig, suite: Suite, events: Events) -> None:
    for role in get_args(Role):
        name = getattr(config.roles, role)
        if name is not None and role not in _roles_in_use(config, suite):
            events.warn("config", f"roles.{role} names {name!r}, but nothing in this run asks it: {_ASKED_BY[role]}")


_ASKED_BY = {
    "proposer": "proposer.kind agent does",
    "judge": "a suite does whose grader asks a model, such as jsonl with match: judge",
    "predictor": "proposer.kind agent does, in method bco",
}
