"""What the worker keeps of long output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bco_graph.evaluation import worker
from bco_graph.evaluation.worker import KeptBytes, KeptEvents, describe, remove_tree


def _kept(limit: int, *chunks: bytes) -> str:
    kept = KeptBytes(limit)
    for chunk in chunks:
        kept.add(chunk)
    return kept.text()


def test_output_up_to_the_limit_is_whole() -> None:
    assert _kept(10, b"0123", b"456789") == "0123456789"
    assert _kept(11, b"0123456789", b"a") == "0123456789a"
    assert _kept(10) == ""


def test_longer_output_keeps_both_ends_and_counts_the_whole() -> None:
    assert _kept(10, b"0123456789", b"a") == "01234\n[... kept 10 of 11 bytes ...]\n6789a"
    assert _kept(10, *[b"0123456789" * 10_000] * 5, b"end") == "01234\n[... kept 10 of 500003 bytes ...]\n89end"


def test_a_cut_within_a_character_makes_no_replacement_mark() -> None:
    text = "é" * 100
    assert _kept(10, text.encode()) == "éé\n[... kept 8 of 200 bytes ...]\néé"


def test_bytes_are_kept_only_where_their_text_lost_something() -> None:
    def lost(limit: int, content: bytes) -> bytes | None:
        kept = KeptBytes(limit)
        kept.add(content)
        return kept.lost()

    assert lost(100, "naïve \ufffd".encode()) is None
    assert lost(100, b"\xff\xfe text") == b"\xff\xfe text"
    assert lost(10, "é".encode() * 100) is None
    assert lost(10, b"01234" + b"x" * 90 + b"678\xff9") == b"01234\n[... kept 10 of 100 bytes ...]\n678\xff9"


def test_memory_stays_bounded_however_much_comes() -> None:
    kept = KeptBytes(1_000)
    for _ in range(2_000):
        kept.add(b"x" * 10_000)
    assert len(kept._head) + len(kept._tail) < 100_000


def test_events_keep_both_ends_by_size_and_by_count() -> None:
    kept = KeptEvents(100)
    for number in range(50):
        kept.add(number, 10)
    assert kept.values() == [0, 1, 2, 3, 4, {"cut": "kept 10 of 50 events"}, 45, 46, 47, 48, 49]
    many = KeptEvents(10**9)
    for number in range(worker.MAX_EVENTS + 1):
        many.add(number, 1)
    values = many.values()
    assert len(values) == worker.MAX_EVENTS + 1
    assert values[worker.MAX_EVENTS // 2] == {"cut": "kept 10000 of 10001 events"}
    assert values[-1] == worker.MAX_EVENTS


def test_few_events_are_whole_even_when_one_is_large() -> None:
    kept = KeptEvents(100)
    for size in (10, 45, 10, 10):
        kept.add(size, size)
    assert kept.values() == [10, 45, 10, 10]


def test_an_error_is_one_bounded_line_with_both_ends() -> None:
    assert describe(ValueError("a")) == "ValueError: a"
    assert describe(KeyError("a")) == "KeyError: 'a'"
    assert describe(RuntimeError()) == "RuntimeError"
    assert describe(RuntimeError("lone \udcff")) == "RuntimeError: lone \\udcff"
    noted = ValueError("a")
    noted.add_note("a note")
    assert describe(noted) == "ValueError: a"
    with pytest.raises(SyntaxError) as caught:
        compile("x = (", "agent.py", "exec")
    assert describe(caught.value) == "SyntaxError: '(' was never closed"
    long = describe(RuntimeError("start" + "x" * 9_000 + "end"))
    assert long.startswith("RuntimeError: start")
    assert long.endswith("end")
    assert "[... kept 2000 of" in long
    assert len(long) < 2_100


def test_a_folder_without_permissions_is_removed_and_a_link_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    outside.chmod(0o500)
    inner = tmp_path / "folder" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    (tmp_path / "folder" / "link").symlink_to(outside)
    inner.chmod(0)
    remove_tree(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    assert (outside / "file").exists()
    assert outside.stat().st_mode & 0o777 == 0o500


def test_the_worker_needs_the_standard_library_only() -> None:
    script = f"import runpy; runpy.run_path({worker.__file__!r}, run_name='other')"
    subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, env={"PATH": os.defpath})
