"""All four proposers pass one contract suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from bco_graph.proposers.contract import ProposerContract, Subject
from tests.proposer_contract import AgentSubject, CommandSubject, HandoffSubject, ReplaySubject


class TestAgent(ProposerContract):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return AgentSubject(tmp_path)


class TestCommand(ProposerContract):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return CommandSubject(tmp_path)


class TestHandoff(ProposerContract):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return HandoffSubject(tmp_path)


class TestReplay(ProposerContract):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return ReplaySubject(tmp_path)
