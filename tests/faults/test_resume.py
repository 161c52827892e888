"""Kills, torn files, extended runs: nothing is paid twice, nothing starts from zero, nothing finished is rewritten."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import check_config
from bco_graph.driver import drive
from bco_graph.errors import StepFailed
from bco_graph.protocols import Step, StepResult, T
from bco_graph.testing import ScriptedModelServer
from tests.faults.play import BARE, SOLVES_SHORT, TARGET, bco, models, raw_config, receipts_of, submit, write_config
from tests.toy import SHORT, ScriptedProposer, ToySuite, prompt_edit


def fails(step: Step[Any]) -> Any:
    raise StepFailed(step.name, cause="empty", reasons=["the reply was empty"])


class Dying(ScriptedProposer):
    """Takes the process down at one iteration, the first time."""

    def __init__(self, at: int, *given: Any) -> None:
        super().__init__(*given)
        self.at: int | None = at

    async def perform(self, step: Step[T]) -> StepResult[T]:
        if step.iteration == self.at:
            self.at = None
            raise ConnectionResetError("the process died here")
        return await super().perform(step)


def test_failed_iterations_count_as_done_and_an_extended_run_goes_on_after_them(tmp_path: Path) -> None:
    """Three of six proposals fail and the process dies among them: six records, then eight; the seed stands once."""
    failing: dict[tuple[int, str], Any] = {(n, "propose"): fails for n in (2, 4, 5)}
    proposer = Dying(5, {n: prompt_edit(SHORT + "\n" * n) for n in range(1, 9)}, failing)
    suite = ToySuite(tmp_path / "initial")
    with models() as server:

        def configured(iterations: int) -> Any:
            raw = raw_config(tmp_path, server, runs=str(tmp_path / "runs"), iterations=iterations, max_failures=9)
            return check_config(raw)

        with pytest.raises(ConnectionResetError):
            asyncio.run(drive(configured(6), suite=suite, proposer=proposer))
        first = asyncio.run(drive(configured(6), suite=suite, proposer=proposer))
        asked = len(server.requests_of(TARGET))
        second = asyncio.run(drive(configured(8), suite=suite, proposer=proposer))
    with receipts_of(tmp_path / "runs/toy") as receipts:
        outcomes = [(iteration, record["candidate"]) for iteration, _, record in receipts.steps("evaluate")]
    assert (first.stop, first.state["iteration"], second.stop, second.state["iteration"]) == (
        "iterations", 6, "iterations", 8
    )  # fmt: skip
    assert outcomes == [
        (0, "iter_000"), (1, "iter_001"), (2, None), (3, "iter_003"), (4, None), (5, None), (6, "iter_006"),
        (7, "iter_007"), (8, "iter_008"),
    ]  # fmt: skip
    assert asked == 8 * 4
    status = bco(tmp_path, "status", "runs/toy", "--json").json
    assert status["proposals"] == {"made": 8, "parsed": 5, "applied": 5, "evaluated": 5}


# -- torn files ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ScriptedModelServer]]:
    folder = tmp_path_factory.mktemp("finished")
    with models({(1, "propose"): [[*SOLVES_SHORT, *submit(BARE)]]}) as server:
        write_config(folder, server, iterations=1)
        bco(folder, "run", "bco.yaml")
        yield folder, server


def torn_at(share: float) -> Callable[[bytes], bytes]:
    return lambda content: content[: int(len(content) * share)]


TEARS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "one byte": lambda content: content[:1],
    "half": torn_at(0.5),
    "the end missing": lambda content: content[:-2],
    "another type": lambda content: b"[]\n",
}


@pytest.mark.parametrize("how", TEARS)
@pytest.mark.parametrize("name", ["run.json", "receipts.sqlite"])
def test_a_torn_truth_is_refused_by_every_command_and_left_to_the_byte(
    finished: tuple[Path, ScriptedModelServer], name: str, how: str
) -> None:
    """Never taken for an empty run: no call to a model, no second baseline over what was paid."""
    folder, server = finished
    run = copy_of(folder / "runs/toy")
    (run / name).write_bytes(TEARS[how]((run / name).read_bytes()))
    before, asked = (run / name).read_bytes(), len(server.requests)
    for command in ("resume", "status"):
        said = bco(folder, command, "runs/torn", code=1)
        assert name in said.text
        assert "RunUnreadable" in said.text
    assert "already holds a run" in bco(folder, "run", "bco.yaml", "--name", "torn", code=1).text
    assert (run / name).read_bytes() == before
    assert len(server.requests) == asked


@pytest.mark.parametrize("how", TEARS)
def test_torn_checkpoints_are_refused_or_drawn_again_and_never_paid_for_again(
    finished: tuple[Path, ScriptedModelServer], how: str
) -> None:
    """They only say where the graph stands; whoever moves them away goes through the receipts."""
    folder, server = finished
    run = copy_of(folder / "runs/toy")
    checkpoints = run / "checkpoints.sqlite"
    checkpoints.write_bytes(TEARS[how](checkpoints.read_bytes()))
    before, asked = checkpoints.read_bytes(), len(server.requests)
    if len(before) > 1:
        for command in ("resume", "status"):
            said = bco(folder, command, "runs/torn", code=1)
            assert "checkpoints.sqlite is torn" in said.text
        assert checkpoints.read_bytes() == before
        checkpoints.unlink()
    bco(folder, "resume", "runs/torn")
    assert len(server.requests) == asked
    old, new = (bco(folder, "status", f"runs/{name}", "--json").json for name in ("toy", "torn"))
    assert {**new, "run": old["run"], "name": old["name"]} == old


def copy_of(run: Path) -> Path:
    copied = run.with_name("torn")
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(run, copied, symlinks=True)
    return copied
