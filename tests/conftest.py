"""What several modules stand on: the toy world's model server and suite, and generated examples that stay the same.

tests/fuzz has a longer profile that finds new examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from bco_graph.testing import ScriptedModelServer
from tests.toy import ToySuite, answer

settings.register_profile("suite", derandomize=True)
settings.load_profile("suite")


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer({"toy-model": answer}) as started:
        yield started


@pytest.fixture
def suite(tmp_path: Path) -> ToySuite:
    return ToySuite(tmp_path / "initial")
