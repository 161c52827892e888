"""Bytes that a task prints and that are no text: they lie beside its trace as they came."""

from __future__ import annotations

import json
from pathlib import Path

from bco_graph.evidence import write_trace


def test_bytes_of_a_trace_lie_beside_it_and_it_names_their_file(tmp_path: Path) -> None:
    trace = {"task": "a/b", "repeat": 1, "stdout": "\ufffd", "raw": {"stdout": "/wA="}}
    write_trace(tmp_path / "traces", trace)
    kept = json.loads((tmp_path / "traces" / "a%2Fb__r1.json").read_text(encoding="utf-8"))
    assert kept == {**trace, "raw": {"stdout": "a%2Fb__r1.stdout.bin"}}
    assert (tmp_path / "traces" / kept["raw"]["stdout"]).read_bytes() == b"\xff\x00"


def test_a_trace_without_such_bytes_is_one_file(tmp_path: Path) -> None:
    write_trace(tmp_path, {"task": "t", "repeat": 0, "stdout": "text"})
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
