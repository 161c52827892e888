"""docs/ASK.md does what it says: its blocks run, one after the other, with scripted models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from bco_graph import asking
from bco_graph.asking import AffordReply, ApproveReply, ReviewReply, read_reply
from bco_graph.config import Ask
from bco_graph.redaction import Redactor
from bco_graph.world_model import parse_document
from tests.compose_room import Room, wrong
from tests.toy import toy_config, two_edits

PAGE = (Path(__file__).parents[1] / "docs" / "ASK.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_page_runs_from_top_to_end(tmp_path: Path) -> None:
    (shown,) = [yaml.safe_load(block) for block in blocks("yaml")]
    assert shown.keys() == {"ask"}
    assert shown["ask"].keys() == Ask.model_fields.keys()
    with Room(tmp_path) as room:
        ask = {"edit": True, "evaluation_calls": 7, "grade": True}
        config = toy_config(tmp_path, room.server, iterations=1, ask=ask)
        names: dict[str, Any] = {"config": config, "suite": room.suite, "proposer": two_edits()}
        for number, block in enumerate(blocks("python"), 1):
            exec(compile(block, f"ASK.md, block {number}", "exec", dont_inherit=True), names)
        assert names["state"]["best"] == {"id": "iter_001", "mean": 1.0}
        assert wrong(config.run_dir) == []


def test_the_page_s_belief_is_read() -> None:
    belief = PAGE[PAGE.index("    [E2]") : PAGE.index("Questions and replies")]
    lines = "\n".join(line.removeprefix("    ") for line in belief.rstrip().split("\n"))
    (read,) = parse_document(f"## Beliefs\n{lines}\n\n## Experiments\n").head.beliefs
    assert read.marks == ("human", "pinned")


def test_every_reply_and_form_that_the_page_names_is_there() -> None:
    for name in re.findall(r"`((?:Approve|Afford|Review)\w+)`", PAGE):
        assert issubclass(getattr(asking, name), BaseModel)
    for reply in ({"decision": "approve"}, {"decision": "reject", "reason": "..."}):
        assert read_reply(reply, ApproveReply, Redactor())
        assert read_reply(reply, AffordReply, Redactor())
    assert read_reply({"beliefs": []}, ReviewReply, Redactor()).beliefs == []
