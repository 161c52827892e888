"""The configured kind picks the proposer; the page of documentation holds configurations that load."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bco_graph.config import ProposerConfig
from bco_graph.errors import ConfigError
from bco_graph.proposers import make_proposer
from bco_graph.proposers.agent import AgentProposer
from bco_graph.proposers.command import CommandProposer
from bco_graph.proposers.handoff import HandoffProposer
from bco_graph.proposers.replay import ReplayProposer
from bco_graph.protocols import Proposer
from tests.proposer_contract import ScriptedCalls


def make(**config: Any) -> Proposer:
    return make_proposer(
        ProposerConfig(**config),
        calls=ScriptedCalls(),
        capabilities=lambda _: {},
        gateway_url="",
        token_for=lambda _: "",
    )


def test_each_kind_gives_its_proposer(tmp_path: Path) -> None:
    assert isinstance(make(), AgentProposer)
    assert isinstance(make(kind="command", command=[sys.executable]), CommandProposer)
    assert isinstance(make(kind="handoff"), HandoffProposer)
    assert isinstance(make(kind="replay", recording=str(tmp_path)), ReplayProposer)


def test_an_unknown_kind_names_the_nearest_and_all_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'agnet' is unknown \(did you mean 'agent'\?\); available: agent, command"):
        make(kind="agnet")


def test_replay_needs_a_recording() -> None:
    with pytest.raises(ConfigError, match=r"proposer\.recording must name"):
        make(kind="replay")


def test_a_strangers_proposer_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "stranger.py").write_text(
        "def build(config, **services):\n    return (config.kind, sorted(services))\n"
    )
    info = tmp_path / "stranger-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[bco_graph.proposers]\nstranger = stranger:build\n")
    code = (
        "from bco_graph.config import ProposerConfig\nfrom bco_graph.proposers import make_proposer\n"
        "print(make_proposer(ProposerConfig(kind='stranger'), calls=1, capabilities=2, gateway_url=3, token_for=4))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "('stranger', ['calls', 'capabilities', 'gateway_url', 'token_for'])"


def test_importing_and_making_proposers_loads_neither_langgraph_nor_litellm() -> None:
    code = (
        "import sys, bco_graph.proposers.agent, bco_graph.proposers.command, bco_graph.proposers.handoff,"
        " bco_graph.proposers.replay, bco_graph.proposers.contract\n"
        "print([name for name in ('langgraph', 'litellm', 'pytest') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_every_configuration_on_the_page_about_proposers_is_one() -> None:
    page = (Path(__file__).parent.parent / "docs/PROPOSERS.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)]
    configs = [ProposerConfig.model_validate(block["proposer"]) for block in blocks]
    assert {config.kind for config in configs} == {"agent", "command", "handoff", "replay"}
    assert {config.command[0] for config in configs if config.command} >= {"claude", "codex"}
