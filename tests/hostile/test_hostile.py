"""Candidates that mean harm do none: a slice of what `tests/bench/hostile.py` runs by the thousand."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path

import pytest

from bco_graph.evaluation import Sandbox, landlock, pick_sandbox
from tests.hostile.candidates import KINDS, PIECES, generate
from tests.hostile.range import ALLOWED, MEMORY_GROWTH_MB, Range, firing_range

KILLERS = [122]
TASK, CANDIDATE, LANDLOCK = (
    Sandbox("bubblewrap", "task"),
    Sandbox("bubblewrap", "candidate"),
    Sandbox("landlock", "none"),
)


async def _shoot(folder: Path, sandbox: Sandbox, seeds: Collection[int], monkeypatch: pytest.MonkeyPatch) -> Range:
    if sandbox.name == "bubblewrap" and pick_sandbox("auto").name != "bubblewrap":
        pytest.skip(f"no sandbox here: {pick_sandbox('auto').reason}")
    if sandbox.name == "landlock" and landlock.abi() < landlock.SCOPE_ABI:
        pytest.skip(f"the kernel's Landlock has ABI {landlock.abi()}")
    (folder / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "temporary"))
    with firing_range(folder / "range", sandbox) as range_:
        await range_.shoot(list(seeds))
    assert list(range_.faults) == []
    assert range_.rows == 2 * len(seeds)
    assert range_.good_rows
    return range_


async def test_hostile_candidates_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece of hostile code is in it, and every kind of it was really begun."""
    range_ = await _shoot(tmp_path, TASK, range(len(PIECES) + 21), monkeypatch)
    assert {PIECES[name] for name in range_.did} == set(KINDS)
    assert len(range_.did) > 0.9 * len(PIECES)
    assert range_.descriptors[-1] <= range_.descriptors[0] + 8
    assert range_.memory_mb[-1] <= range_.memory_mb[0] + MEMORY_GROWTH_MB


async def test_one_sandbox_for_all_tasks_of_a_candidate_keeps_its_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first of them kills the process that runs its candidate's tasks, as often as it is started.
    await _shoot(tmp_path, CANDIDATE, KILLERS + list(range(0, 40, 4)), monkeypatch)


async def test_landlock_keeps_its_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await _shoot(tmp_path, LANDLOCK, range(0, 34, 3), monkeypatch)


def test_a_seed_gives_the_same_candidate_and_all_pieces_come_in_turn() -> None:
    assert generate(7).source(["/canary"]) == generate(7).source(["/canary"])
    for allowed in ALLOWED.values():
        some = [generate(seed, allowed) for seed in range(len(PIECES))]
        assert {name for one in some for name in (*one.at_import, *one.in_solve)} == allowed
