"""What a candidate must pass before it costs a model call."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bco_graph.evaluation import LeakPatterns, check_candidate
from bco_graph.protocols import Interface, Task

AGENT = """import asyncio
WORDS = "plain"

async def solve(task, target):
    return await target.chat([{"role": "user", "content": "x"}])
"""
INTERFACE = Interface(placeholders={"prompt.md": ["{question}", "{notes}"]})
LEAKS = LeakPatterns.build([Task("geo-017", "x", {"q": "Which city?"})], {"geo-017": "Quillabamba"})


@dataclass
class CountingProbe:
    """Counts the imports that were asked for."""

    problems: list[str] = field(default_factory=list)
    asked: int = 0

    def import_problems(self, source: Path, interface: Interface) -> list[str]:
        self.asked += 1
        return self.problems


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    (tmp_path / "prompt.md").write_text("{notes}\n\nQ: {question}\n", encoding="utf-8")
    return tmp_path


def reasons(source: Path, interface: Interface = INTERFACE) -> list[str]:
    """The reasons without an import, which must not be tried when there are any."""
    probe = CountingProbe()
    found = check_candidate(source, interface, LEAKS, probe)
    assert probe.asked == (0 if found else 1)
    return found


def test_a_sound_candidate_passes_with_a_real_import(source: Path) -> None:
    assert check_candidate(source, INTERFACE, LEAKS) == []
    assert not (source / "__pycache__").exists()


def test_what_the_import_says_is_a_reason(source: Path) -> None:
    (source / "agent.py").write_text("import nowhere_to_be_found\n" + AGENT, encoding="utf-8")
    assert check_candidate(source, INTERFACE, LEAKS) == [
        "importing agent.py:solve failed: ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    ]


def test_a_lost_placeholder_is_named_with_its_file(source: Path) -> None:
    (source / "prompt.md").write_text("{notes}\nQ: {quest}\n", encoding="utf-8")
    assert reasons(source) == ["prompt.md: lacks the placeholder '{question}', which the interface declares"]
    (source / "prompt.md").rename(source / "prompts.md")
    assert reasons(source) == [
        "prompt.md: is missing (did you mean 'prompts.md'?); the interface declares it, with '{question}' and "
        "'{notes}' in it"
    ]


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        ("async def solve2(task, target)", "agent.py: defines no 'solve' (did you mean 'solve2'?)"),
        ("async def solve(task)", "agent.py, line 4: solve(task) does not take two positional arguments"),
        ("async def solve(task, target, more)", "solve(task, target, more) does not take two"),
        ("async def solve(task, *, target)", "solve(task, *, target) does not take two"),
        ("async def solve(task, target, *, more)", "solve(task, target, *, more) does not take two"),
    ],
)
def test_an_entry_point_with_another_signature_is_refused(source: Path, signature: str, reason: str) -> None:
    text = AGENT.replace("async def solve(task, target)", signature)
    (source / "agent.py").write_text(text, encoding="utf-8")
    found = reasons(source)
    assert len(found) == 1
    assert reason in found[0]


@pytest.mark.parametrize(
    "definition",
    [
        "def solve(task, target, extra=1): target.chat",
        "def solve(*args): target.chat",
        "def solve(task, /, target, *, more=2): target.chat",
        "if True:\n    def solve(task, target): target.chat",
        "def make(): return lambda task, target: target.chat\nsolve = make()",
        "from other import solve\nchat = target.complete",
        "class Solver:\n    def __call__(self, task, target): target.chat\nsolve = Solver()",
    ],
)
def test_other_ways_to_define_the_entry_point_are_left_to_the_import(source: Path, definition: str) -> None:
    (source / "agent.py").write_text(definition, encoding="utf-8")
    assert reasons(source) == []


def test_what_does_not_compile_is_refused_with_its_line(source: Path) -> None:
    (source / "agent.py").write_text(AGENT + "\nx = (\n", encoding="utf-8")
    assert reasons(source) == ["agent.py, line 7: does not compile: '(' was never closed"]
    (source / "agent.py").write_bytes(b"x = '\xff'\n")
    assert len(reasons(source)) == 1
    (source / "agent.py").write_text("(" * 5_000, encoding="utf-8")
    assert "does not compile" in reasons(source)[0]
    (source / "agent.py").unlink()
    assert "agent.py: is missing" in reasons(source)[0]


def test_a_warning_of_the_compiler_is_no_reason(source: Path) -> None:
    (source / "agent.py").write_text(AGENT + "\nx = '\\d'\n", encoding="utf-8")
    assert reasons(source) == []


def test_a_scaffold_that_never_asks_the_target_is_refused(source: Path) -> None:
    (source / "agent.py").write_text("def solve(task, target): return 'always this'", encoding="utf-8")
    assert "no code calls target.chat or target.complete" in reasons(source)[0]
    assert reasons(source, Interface(must_call_target=False)) == []
    (source / "calls.py").write_text("async def ask(target, m): return await target.complete(m)", encoding="utf-8")
    assert reasons(source) == []


def test_a_leak_is_refused_before_the_code_is_run(source: Path) -> None:
    (source / "agent.py").write_text(AGENT.replace("plain", "Quillabamba"), encoding="utf-8")
    assert reasons(source) == ["agent.py, line 2: holds a gold answer; a scaffold may hold nothing of the task set"]


def test_what_is_no_scaffold_is_refused_alone(source: Path) -> None:
    (source / "agent.py").unlink()
    (source / "link").symlink_to("/etc/passwd")
    assert reasons(source) == ["link: is a symbolic link; only plain files and folders are admitted"]


def test_all_reasons_come_together(source: Path) -> None:
    (source / "prompt.md").write_text("Quillabamba", encoding="utf-8")
    (source / "agent.py").write_text("x = 1", encoding="utf-8")
    assert len(reasons(source)) == 5
