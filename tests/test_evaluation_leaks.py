"""The leak scan finds what belongs to the tasks, in any of the usual disguises, and nothing else."""

from __future__ import annotations

import base64
import codecs
import hashlib
import random
import time
from pathlib import Path

import pytest

from bco_graph.evaluation import LeakPatterns
from bco_graph.evaluation.leaks import Finding
from bco_graph.protocols import Task
from bco_graph.state import JSON

SENTENCE = (
    "The lighthouse keeper of Vardø wrote down nineteen ships that passed the cape during the storm of March 1911"
)
TEMPLATE = "Answer the question below in as few words as you can and do not explain your answer to anybody"
ITEMS: dict[str, tuple[str, JSON]] = {
    "geo-017": (SENTENCE, "Zanzibar City"),
    "geo-018": ("How many ships did the keeper see?", ["Quillabamba", 481516]),
    "geo-019": ("Which of them is a positive review?", "positive"),
    "geo-020": ("And is this one?", "contradiction"),
    "geo-021": ("And this one here?", "contradiction"),
    "geo-022": ("And this?", "contradiction"),
    "0007": ("So?", 1947),
    "geo-023": ("東京の人口を教えてください。昨年の統計に基づくものとします", {"name": "Björk Guðmundsdóttir"}),
}
TASKS = [Task(name, "geo", {"instruction": TEMPLATE, "question": text}) for name, (text, _) in ITEMS.items()]
GOLDS = {name: gold for name, (_, gold) in ITEMS.items()}
WORDS = "nineteen ships that passed the cape during the storm of March 1911"


@pytest.fixture(scope="module")
def patterns() -> LeakPatterns:
    return LeakPatterns.build(TASKS, GOLDS)


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def found(patterns: LeakPatterns, text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.what) for finding in patterns.find(text)]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("if task.id == 'geo-017': pass", "a task id"),
        ("GEO_017", "a task id"),
        ("CAPITALS = ['Zanzibar City']", "a gold answer"),
        ("zanzibar\n    city", "a gold answer"),
        ("QUILLABAMBA", "a gold answer"),
        ("x = 481516", "a gold answer"),
        ("ｑｕｉｌｌａｂａｍｂａ", "a gold answer"),
        ("björk guðmundsdóttir", "a gold answer"),
        ("Bjo\u0308rk Gu\u00f0mundsdo\u0301ttir", "a gold answer"),
        (WORDS, "a piece of task text"),
        (WORDS.upper().replace(" ", '"\n  "'), "a piece of task text"),
        (WORDS.replace(" ", "\\n"), "a piece of task text"),
        ("How many ships did the keeper see", "a piece of task text"),
        ("人口を教えてください。昨年の統計に基づく", "a piece of task text"),
        ("abmaballiuQ", "a gold answer reversed"),
        (WORDS[::-1], "a piece of task text reversed"),
        (codecs.encode("Quillabamba", "rot13"), "a gold answer in rot13"),
        (codecs.encode(WORDS, "rot13"), "a piece of task text in rot13"),
        (_b64("geo-017"), "a task id in base64"),
        (_b64("x Quillabamba y"), "a gold answer in base64"),
        (_b64("ab Quillabamba"), "a gold answer in base64"),
        (_b64("a QUILLABAMBA"), "a gold answer in base64"),
        ("prefix" + _b64("Quillabamba"), "a gold answer in base64"),
        (base64.urlsafe_b64encode("??>>Quillabamba ÿÿÿ".encode()).decode(), "a gold answer in base64"),
        (_b64(WORDS), "a piece of task text in base64"),
        ("'" + _b64(WORDS)[:40] + "'\n    '" + _b64(WORDS)[40:] + "'", "a piece of task text in base64"),
        (b"Quillabamba".hex(), "a gold answer in hex"),
        ("f" + b"Quillabamba".hex().upper(), "a gold answer in hex"),
        (hashlib.sha1(b"geo-018", usedforsecurity=False).hexdigest(), "a task id as a digest"),
        (hashlib.md5(b"quillabamba", usedforsecurity=False).hexdigest().upper(), "a gold answer as a digest"),
        (hashlib.sha256(b"1947").hexdigest(), "a gold answer as a digest"),
    ],
)
def test_a_leak_is_found_with_its_line(patterns: LeakPatterns, text: str, what: str) -> None:
    assert (2, what) in found(patterns, f"# first line\n{text}\nlast line")


@pytest.mark.parametrize(
    "text",
    [
        "",
        TEMPLATE,
        "positive contradiction 1947 0007",
        "the storm of March 1911",
        "How many ships are there in the answer?",
        "geo-0170 geo-01 xgeo-017",
        "Quillabambas, unquillabamba",
        "Zanzibar is no City of ours",
        "def find_the_keeper_of_the_ships(storm): return base64.b64encode(storm)",
        "d41d8cd98f00b204e9800998ecf8427e",
    ],
)
def test_what_is_shared_common_or_only_alike_is_not_flagged(patterns: LeakPatterns, text: str) -> None:
    assert found(patterns, text) == []


def test_what_the_initial_scaffold_holds_is_not_flagged(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text(f"For example: Quillabamba.\n{WORDS}\n", encoding="utf-8")
    patterns = LeakPatterns.build(TASKS, GOLDS, allow=tmp_path)
    assert patterns.scan(tmp_path) == []
    assert found(patterns, "Zanzibar City") == [(1, "a gold answer")]


def test_a_gold_that_many_tasks_name_is_a_word_of_the_field() -> None:
    tasks = [Task(f"t{number:04}", "x", {"q": f"Where is the Hippocampus of {number}?"}) for number in range(20)]
    patterns = LeakPatterns.build(tasks, {"t0000": "hippocampus", "t0001": "amygdala"})
    assert found(patterns, "hippocampus") == []
    assert found(patterns, "amygdala") == [(1, "a gold answer")]


def test_a_scan_names_the_file_and_quotes_nothing(patterns: LeakPatterns, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "geo-017.txt").write_text("\n\nQuillabamba and Zanzibar City\n", encoding="utf-8")
    (tmp_path / "data.bin").write_bytes(b"\x00\xff Quillabamba \xff")
    reasons = patterns.scan(tmp_path)
    assert [reason.partition(";")[0] for reason in reasons] == [
        "data.bin, line 1: holds a gold answer",
        "sub/geo-017.txt: its name holds a task id",
        "sub/geo-017.txt, line 3: holds a gold answer",
    ]
    assert "quilla" not in " ".join(reasons).lower()


def test_many_findings_are_counted(patterns: LeakPatterns, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Quillabamba\n" * 50, encoding="utf-8")
    reasons = patterns.scan(tmp_path)
    assert len(reasons) == 21
    assert reasons[-1].startswith("and 30 more leaks")


def test_a_megabyte_is_scanned_in_seconds_of_processor_time() -> None:
    order = random.Random(7)
    words = ["".join(order.choices("abcdefghijklmnopqrstuvwxyz", k=order.randint(2, 9))) for _ in range(5_000)]
    tasks = [Task(f"task_{number:04}", "x", {"q": " ".join(order.choices(words, k=200))}) for number in range(120)]
    patterns = LeakPatterns.build(tasks, {task.id: " ".join(order.choices(words, k=3)) for task in tasks})
    names = ["_".join(order.choices(words, k=2)) for _ in range(2_000)]
    text = "".join(f"{order.choice(names)} = {order.choice(names)}(CONSTANT, 'task_1')\n" for _ in range(23_000))
    began = time.process_time()
    assert patterns.find(text + "\ntask_0007") == [Finding(23_002, "a task id")]
    assert len(text) > 1_000_000
    assert time.process_time() - began < 3
