"""The README says what is so: its commands exist, its configurations load, its files are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from bco_graph.cli import main
from bco_graph.config import ProposerConfig

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_every_command_that_is_shown_exists() -> None:
    shown = set(re.findall(r"`?bco ([a-z]+)", README))
    assert shown <= set(main.commands)
    assert shown >= {"init", "doctor", "estimate", "run", "status", "heldout", "export", "resume", "demo"}


@pytest.mark.parametrize("block", blocks("yaml"))
def test_every_proposer_configuration_loads(block: str) -> None:
    ProposerConfig.model_validate(yaml.safe_load(block)["proposer"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_file_of_the_architecture_page_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:bco_graph|tests|nodes|prompts|benchmarks)/[\w/]+(?:\.py|/)?)`", text)
    assert len(named) > 15
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_make_targets_that_are_shown_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_help_is_for_people() -> None:
    said = CliRunner().invoke(main, ["run", "--help"]).output
    assert "--baseline" in said
    assert "Start a run." in said
