"""What a proposer is shown of a huge output: cut with a mark, and the whole in reach."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bco_graph.testing import Reply, ToolCall
from tests.faults.play import BARE, SOLVES_SHORT, Act, When, models, play, submit
from tests.toy import answer

TRACE = "iterations/iter_000/traces/toy-train-0.json"
NEEDLE = "needle-at-the-end"
FILLING = 1_000_000


def test_an_answer_of_a_megabyte_is_cut_with_both_sizes_and_its_end_can_be_read(tmp_path: Path) -> None:
    def huge(body: dict[str, Any]) -> Reply:
        return Reply("word " * (FILLING // 5) + NEEDLE) if "fig" in str(body["messages"]) else answer(body)

    reads = [ToolCall("read_file", {"path": TRACE})]
    reads_on = [ToolCall("read_file", {"path": TRACE, "start_line": 8, "start_column": FILLING})]
    acts: dict[When, list[Act]] = {(1, "propose"): [reads, reads_on, [*SOLVES_SHORT, *submit(BARE)]]}
    with models(acts, huge) as server:
        run = play(tmp_path, server)
    cut, end = (request["messages"][-1]["content"] for request in run.asked(1, "propose")[1:3])
    size = (run.folder / "workspace" / TRACE).stat().st_size
    assert size > FILLING
    assert cut.startswith(f"[{TRACE}: {size:,} bytes")
    assert re.search(rf"\[cut: kept [\d,]+ bytes of {size:,}; the rest begins at start_line=8\]$", cut)
    assert NEEDLE not in cut
    assert NEEDLE in end
    with run.receipts() as receipts:
        step = receipts.step(1, "propose")
    assert step is not None
    assert step["trace_reads"] == 2
