"""`bco estimate`: what a config implies, before anything is paid."""

from __future__ import annotations

from typing import Any

from bco_graph.config import RunConfig
from bco_graph.receipts import dumps
from bco_graph.state import JSON

TOKENS_PER_CHARACTER = 0.25
SCAFFOLD_TOKENS = 200
"""Assumed for a scaffold's own prompt text in one call."""
DEFAULT_COMPLETION = 1024
"""Assumed for a completion where the deployment pins no max_tokens."""


def estimate(config: RunConfig, *, calls_per_task: int) -> dict[str, JSON]:
    """Upper bounds: evaluations, calls, tokens and money (None where a price is not known).

    Prompt tokens of the target are the mean length of a train task's inputs at four characters a token, with
    200 for the scaffold's own text; the proposer is taken at its full `max_tokens` in every step.
    """
    from bco_graph.suites import load_suite, take

    suite = load_suite(config)
    tasks = take(suite.tasks("train"), config.evaluation.train)
    evaluations = (config.iterations + 1) * len(tasks) * config.evaluation.repeats
    length = sum(len(dumps(dict(task.inputs))) for task in tasks) / len(tasks)
    prompt = round(length * TOKENS_PER_CHARACTER) + SCAFFOLD_TOKENS
    completion = int(_params(config, "target").get("max_tokens") or DEFAULT_COMPLETION)
    calls = evaluations * calls_per_task
    steps = config.iterations * (4 if config.method == "bco" else 1) + (1 if config.method == "bco" else 0)
    agent = config.proposer.kind == "agent"
    proposer_tokens = steps * config.proposer.max_tokens if agent else 0
    target_usd = _usd(config, "target", calls * prompt, calls * completion)
    proposer_usd = _usd(config, "proposer", proposer_tokens, 0) if agent else 0.0
    total = None if target_usd is None or proposer_usd is None else target_usd + proposer_usd
    return {
        "train_tasks": len(tasks), "task_runs": evaluations, "target_calls": calls,
        "target_tokens": calls * (prompt + completion), "proposer_steps": steps,
        "proposer_tokens_at_most": proposer_tokens, "usd_target": target_usd, "usd_proposer_at_most": proposer_usd,
        "usd_at_most": total, "budget": config.budget.model_dump(), "warnings": _warnings(config, len(tasks), calls),
    }  # fmt: skip


def _params(config: RunConfig, role: str) -> dict[str, Any]:
    name = getattr(config.roles, role)
    return next((d.litellm_params for d in config.models.model_list if d.model_name == name), {})


def _usd(config: RunConfig, role: str, prompt: int, completion: int) -> float | None:
    from bco_graph.gateway.prices import price_of

    name = getattr(config.roles, role)
    deployment = next((d for d in config.models.model_list if d.model_name == name), None)
    price = price_of(deployment) if deployment else None
    return None if price is None else price.usd(prompt_tokens=prompt, completion_tokens=completion)


def _warnings(config: RunConfig, tasks: int, calls: int) -> list[str]:
    found = []
    per_evaluation = calls // (config.iterations + 1)
    if config.budget.calls and config.budget.calls < calls:
        rounds = max(0, config.budget.calls // max(1, per_evaluation) - 1)
        found.append(f"budget.calls {config.budget.calls} allows at most {rounds} of {config.iterations} iterations")
    if tasks < 20:
        found.append(f"{tasks} train tasks: a change of one task moves the mean by {1 / tasks:.2f}")
    return found


def render_estimate(facts: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for key, label in [
        ("task_runs", "task runs"), ("target_calls", "target calls"), ("target_tokens", "target tokens, about"),
        ("proposer_steps", "proposer steps"), ("proposer_tokens_at_most", "proposer tokens, at most"),
    ]:  # fmt: skip
        table.add_row(label, f"{facts[key]:,}")
    usd = facts["usd_at_most"]
    table.add_row("spend, at most", "unknown: a model has no price" if usd is None else f"{usd:,.2f} USD")
    for warning in facts["warnings"]:
        table.add_row("[yellow]note[/]", warning)
    return table
