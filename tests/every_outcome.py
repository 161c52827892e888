"""A small world in which tasks end in every way an outcome can be: for tests of kills, resumes and reports.

By the word of a task: `oak` gets an empty reply, `elm` overruns the context window, `ash` meets a dead endpoint,
`chestnut` is given NaN by the grader, `sycamore` runs into its limit where the scaffold's prompt is SHORT; the others
are scored.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bco_graph.protocols import Score, Task
from bco_graph.state import JSON
from bco_graph.testing import Reply
from tests.toy import AGENT, SHORT, ToySuite
from tests.toy import answer as usual

UNPAID = "ash"
SLEEPY = AGENT.replace("from pathlib", "import asyncio\nfrom pathlib").replace(
    "    reply =", '    if task.inputs["word"][0] == "s":\n        await asyncio.sleep(60)\n    reply ='
)


class EveryOutcome(ToySuite):
    name = "every-outcome"

    def grade(self, task: Task, answer: JSON) -> Score:
        return Score(float("nan")) if task.inputs["word"] == "chestnut" else super().grade(task, answer)


def word_of(body: dict[str, Any]) -> str:
    found = re.search(r"The word is: (\w+)", body["messages"][-1]["content"])
    return found[1] if found else ""


def answer(body: dict[str, Any]) -> Reply:
    word = word_of(body)
    if word == "oak":
        return Reply("", delay_s=0.03)
    if word == "elm":
        return Reply("context_length_exceeded: maximum context length is 8 tokens", status=400)
    if word == UNPAID:
        return Reply("overloaded", status=503)
    return Reply(usual(body).text, delay_s=0.03)


def sleepy_edit(scaffold: Path) -> None:
    (scaffold / "prompt.md").write_text(SHORT, encoding="utf-8")
    (scaffold / "agent.py").write_text(
        SLEEPY.replace("    reply =", '    target.trace("asked-alone")\n    reply ='), "utf-8"
    )
