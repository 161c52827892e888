"""`bco doctor`: is everything there that a run needs? One cheap call for each role, no retries."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, TypedDict

from bco_graph.config import RunConfig
from bco_graph.errors import BcoError
from bco_graph.scratch import scratch

FREE_DISK_BYTES = 1_000_000_000


class Check(TypedDict):
    """`what` was looked at, whether it is `ok`, and what was seen or is to be done."""

    what: str
    ok: bool
    found: str


async def examine(config: RunConfig) -> list[Check]:
    """Every check, also after one has failed. Nothing is written to the run folder."""
    checks = [_suite(config), _sandbox(config), _proposer(config), _disk(config), _git()]
    return [*checks, *await examine_roles(config)]


async def examine_roles(config: RunConfig) -> list[Check]:
    """One cheap call for each role that the run uses."""
    with scratch("doctor") as folder:
        return await _roles(config, folder)


def _suite(config: RunConfig) -> Check:
    from bco_graph.suites import load_suite

    try:
        suite = load_suite(config)
        train, heldout = len(suite.tasks("train")), len(suite.tasks("heldout"))
    except BcoError as error:
        return Check(what=f"suite {config.suite}", ok=False, found=str(error))
    return Check(what=f"suite {config.suite}", ok=True, found=f"{train} train and {heldout} held-out tasks")


def _sandbox(config: RunConfig) -> Check:
    from bco_graph.evaluation import pick_sandbox

    try:
        sandbox = pick_sandbox(config.evaluation.sandbox, config.evaluation.isolation)
    except BcoError as error:
        return Check(what="sandbox", ok=False, found=str(error))
    return Check(what="sandbox", ok=True, found=sandbox.describe())


def _proposer(config: RunConfig) -> Check:
    """Whether it can be made; its model, where it has one, is a role and is asked with the others."""
    from bco_graph.proposers import describe_proposer

    what = f"proposer {config.proposer.kind}"
    try:
        return Check(what=what, ok=True, found=describe_proposer(config.proposer))
    except BcoError as error:
        return Check(what=what, ok=False, found=str(error))


def _disk(config: RunConfig) -> Check:
    place = Path(config.runs)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    return Check(what="disk", ok=free >= FREE_DISK_BYTES, found=f"{free / 1e9:.1f} GB free at {place.resolve()}")


def _git() -> Check:
    where = shutil.which("git")
    return Check(what="git", ok=where is not None, found=where or "not on PATH: the candidate store needs it")


async def _roles(config: RunConfig, scratch: Path) -> list[Check]:
    from bco_graph.receipts import Receipts

    names = {role: name for role, name in config.roles.model_dump().items() if name is not None}
    if config.proposer.kind != "agent":
        names.pop("proposer", None)
    elif config.roles.proposer is None:
        names["proposer"] = None
    receipts = Receipts(scratch / "receipts.sqlite")
    try:
        return [await _role(config, role, name, receipts, scratch) for role, name in names.items()]
    finally:
        receipts.close()


async def _role(config: RunConfig, role: str, name: str | None, receipts: Any, scratch: Path) -> Check:
    """One role's deployment, alone in a gateway of its own, so that another's fault does not hide its state."""
    from bco_graph.config import Budget, Roles
    from bco_graph.gateway import Gateway
    from bco_graph.ledger import Ledger

    what = f"role {role} ({name or 'none'})"
    if name is None:
        return Check(what=what, ok=False, found=f"roles.{role} names no deployment of models.model_list")
    models = config.models.model_copy(update={"retries": 0})
    try:
        with Gateway(models, Roles(target=name), Ledger(Budget(), receipts), receipts, run_dir=scratch) as gateway:
            return Check(what=what, ok=True, found=await gateway.check("target"))
    except BcoError as error:
        # It plays the target in this gateway; which role it has in the run, `what` says.
        return Check(what=what, ok=False, found=str(error).removeprefix("role 'target', "))


def render_checks(checks: list[Check]) -> Any:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in checks:
        mark = "[green]ok[/]" if check["ok"] else "[red]no[/]"
        table.add_row(mark, check["what"], check["found"])
    return table
