"""docs/COMPOSE.md does what it says: its blocks run, one after the other, with scripted models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bco_graph.config import RunConfig
from tests.compose_room import Room, wrong
from tests.toy import toy_config, two_edits

PAGE = (Path(__file__).parents[1] / "docs" / "COMPOSE.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    with Room(tmp_path) as made:
        yield made


def test_the_page_runs_from_top_to_end(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(room.folder)
    config = toy_config(room.folder, room.server)
    names: dict[str, Any] = {"config": config, "suite": room.suite, "proposer": two_edits()}
    found = blocks("python")
    assert len(found) > 8
    for number, block in enumerate(found, 1):
        exec(compile(block, f"COMPOSE.md, block {number}", "exec", dont_inherit=True), names)
    runs = sorted(path.name for path in config.run_dir.parent.iterdir())
    assert runs == ["apart", "awaited", "by-hand", "held", "inside", "kept", "other", "toy", "wide"]
    assert [name for name in runs if wrong(config.run_dir.parent / name)] == []


def test_the_keys_that_the_page_shows_are_keys_of_the_config() -> None:
    shown = [key for block in blocks("yaml") for key in yaml.safe_load(block)]
    assert shown == ["nodes"]
    assert set(shown) <= RunConfig.model_fields.keys()
