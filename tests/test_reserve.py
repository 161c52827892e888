"""A run that searches leaves enough of its budget for the held-out evaluation of baseline and best."""

from __future__ import annotations

from pathlib import Path

import pytest

from bco_graph.console import measure_heldout
from bco_graph.driver import drive
from bco_graph.errors import ConfigError
from bco_graph.testing import ScriptedModelServer
from tests.toy import BOTH, SHORT, ScriptedProposer, ToySuite, prompt_edit, toy_config


async def test_the_heldout_evaluation_fits_into_the_budget_that_ended_the_search(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    """Eight train and four held-out tasks of one call each: of 26 calls, 16 are for two evaluations and 8 are kept."""
    suite = ToySuite(tmp_path / "initial")
    proposer = ScriptedProposer({1: prompt_edit(SHORT, "asked-alone"), 2: prompt_edit(BOTH, "asked-alone")})
    config = toy_config(tmp_path, server, budget={"calls": 26})
    ended = await drive(config, suite=suite, proposer=proposer)
    assert ended.stop == "budget"
    assert len(server.requests) <= 18
    facts, _ = await measure_heldout(config.run_dir, (), quiet=True, suite=suite, proposer=proposer)
    assert [row["coverage"] for row in facts["candidates"]] == [1.0, 1.0]
    assert len(server.requests) <= 26


async def test_a_budget_that_ends_before_the_baseline_is_measured_is_refused_before_the_first_call(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    suite, proposer = ToySuite(tmp_path / "initial"), ScriptedProposer({})
    said = r"budget\.calls is 15, but the baseline takes 8 and 8 for the held-out.*budget\.reserve_heldout: false"
    with pytest.raises(ConfigError, match=said):
        await drive(toy_config(tmp_path, server, budget={"calls": 15}), suite=suite, proposer=proposer)
    small = toy_config(tmp_path, server, budget={"calls": 7, "reserve_heldout": False})
    with pytest.raises(ConfigError, match=r"budget\.calls is 7, but the baseline takes 8: raise it$"):
        await drive(small, suite=suite, proposer=proposer)
    assert server.requests == []
    assert not (tmp_path / "runs" / "toy" / "run.json").exists()
