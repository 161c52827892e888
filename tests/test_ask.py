"""A person is asked where the config says so, and what they say holds: edits, evaluations, grades."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from bco_graph import RunHandle, create_bco
from bco_graph.asking import ApproveReply, read_reply
from bco_graph.errors import ConfigError, SubmissionRefused
from bco_graph.events import Tail, event_faults
from bco_graph.redaction import Redactor
from tests.compose_room import Room, limits, wrong
from tests.toy import BOTH, PROPOSE, SHORT, ScriptedProposer, prompt_edit

APPROVE = {"decision": "approve"}
NOTHING: dict[str, Any] = {"beliefs": []}


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    with Room(tmp_path) as made:
        yield made


class Asked:
    """A graph that a person answers; `questions` are all that they were asked, in order."""

    def __init__(self, handle: RunHandle, graph: Any = None) -> None:
        self.handle = handle
        self.graph = graph or create_bco(handle.config, handle=handle).compile(checkpointer=InMemorySaver())
        self.questions: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {}

    async def start(self, given: Any = None) -> Asked:
        return await self._go({} if given is None else given)

    async def reply(self, *replies: Any) -> Asked:
        for reply in replies:
            await self._go(Command(resume=reply))
        return self

    async def _go(self, given: Any) -> Asked:
        self.state = await self.graph.ainvoke(given, limits(self.handle.config))
        self.questions += [asked.value for asked in self.state.pop("__interrupt__", [])]
        return self

    @property
    def last(self) -> dict[str, Any]:
        return self.questions[-1]

    def step(self, iteration: int, name: str) -> Any:
        return self.handle.open().receipts.step(iteration, name)

    def outcome(self, iteration: int) -> Any:
        return self.step(iteration, "evaluate")

    def head(self) -> Any:
        run = self.handle.open()
        return run.document.head(run.receipts.steps("document")[-1][0])

    def document(self) -> str:
        return (self.handle.folder / "world_model_calibration.md").read_text("utf-8")


def events(folder: Path) -> list[dict[str, Any]]:
    return list(Tail(folder / "events.jsonl").read())


def fresh(asked: Asked, room: Room, **changes: Any) -> Asked:
    """The same run in another process, as after a kill: a new handle on the folder, the same checkpoints."""
    asked.handle.close()
    handle = room.run(**{**{"ask": asked.handle.config.ask.model_dump()}, **changes})
    saver = asked.graph.checkpointer
    return Asked(handle, create_bco(handle.config, handle=handle).compile(checkpointer=saver))


# -- where it asks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "ask", "nodes"),
    [
        ("bco", {}, []),
        ("bco", {"edit": True}, ["approve"]),
        ("bco", {"evaluation_usd": 0.5}, ["afford"]),
        ("bco", {"evaluation_calls": 0}, ["afford"]),
        ("bco", {"grade": True}, ["review"]),
        ("vanilla", {"edit": True, "evaluation_calls": 1}, ["approve", "afford"]),
    ],
)
def test_the_graph_has_the_nodes_that_are_asked_for_and_no_others(
    room: Room, method: str, ask: dict[str, Any], nodes: list[str]
) -> None:
    graph = create_bco(room.run(method=method, ask=ask).config)
    assert [name for name in graph.nodes if name in ("approve", "afford", "review")] == nodes


def test_a_method_without_grades_has_none_to_ask_about(room: Room) -> None:
    with pytest.raises(ConfigError, match=r"ask\.grade: the method 'vanilla' makes no grade"):
        room.run(method="vanilla", ask={"grade": True})
    with pytest.raises(ConfigError, match=r"ask\.evaluation_usd: .*greater than or equal to 0"):
        room.run(ask={"evaluation_usd": -1})


async def test_every_question_of_a_round_comes_in_its_place_and_the_run_ends_as_without_them(room: Room) -> None:
    ask = {"edit": True, "evaluation_calls": 1, "grade": True}
    asked = await Asked(room.run(ask=ask)).start()
    await asked.reply(APPROVE, APPROVE, NOTHING, APPROVE, APPROVE, NOTHING)
    assert [(q["step"], q["iteration"]) for q in asked.questions] == [
        (step, iteration) for iteration in (1, 2) for step in ("approve", "afford", "review")
    ]
    assert (asked.state["stop"], asked.state["best"]) == ("iterations", {"id": "iter_002", "mean": 1.0})
    assert wrong(asked.handle.folder) == []
    told = events(asked.handle.folder)
    assert [fault for event in told for fault in event_faults(event)] == []
    assert [(e["step"], e["decision"]) for e in told if e["type"] == "decided"] == [
        ("approve", "approve"), ("afford", "approve"), ("review", "reviewed"),
    ] * 2  # fmt: skip


@pytest.mark.parametrize("method", ["vanilla", "notes"])
async def test_the_other_methods_ask_too(room: Room, method: str) -> None:
    asked = await Asked(room.run(method=method, ask={"edit": True, "evaluation_calls": 1})).start()
    await asked.reply(APPROVE, APPROVE, {"decision": "reject", "reason": "no more of this"})
    assert [q["step"] for q in asked.questions] == ["approve", "afford", "approve"]
    assert (asked.state["iteration"], asked.state["best"]["id"]) == (2, "iter_001")
    assert wrong(asked.handle.folder) == []


# -- an edit -------------------------------------------------------------------------------------------------------


async def test_the_question_shows_the_edit(room: Room) -> None:
    asked = await Asked(room.run(ask={"edit": True})).start()
    question = asked.last
    assert question["step"] == "approve"
    assert question["refused"] is None
    assert question["proposal"]["name"] == "ask-for-the-word"
    assert "+Reply with only the word." in question["diff"]
    workspace = Path(question["workspace"])
    assert (workspace / question["diff_file"]).read_text("utf-8") == question["diff"]
    assert (workspace / "scaffold/prompt.md").read_text("utf-8") == SHORT
    assert set(question["schema"]["properties"]["decision"]["enum"]) == {"approve", "reject", "edit"}


async def test_a_rejected_edit_is_never_evaluated_and_the_proposer_hears_why(room: Room) -> None:
    again = {**PROPOSE, "live_signature": "asked-all"}
    edits = {1: prompt_edit(SHORT, "asked-alone"), 2: prompt_edit(BOTH, "asked-all")}
    asked = await Asked(room.run(ScriptedProposer(edits, {(2, "propose"): again}), ask={"edit": True})).start()
    paid = len(room.server.requests)
    await asked.reply({"decision": "reject", "reason": "prompts stay in one language", "by": "Ada"})
    assert len(room.server.requests) == paid
    failure = {"step": "approve", "cause": "rejected", "reasons": ["prompts stay in one language"]}
    assert (asked.outcome(1)["candidate"], asked.outcome(1)["failure"]) == (None, failure)
    assert asked.step(1, "approve")["by"] == "Ada"
    assert (asked.last["iteration"], asked.last["step"]) == (2, "approve")
    heard = asked.handle.open().proposer.instructions[(2, "propose")]  # type: ignore[attr-defined]
    assert "Rejected by a person, with the reason:\n\n- iter_001, ask-for-the-word: prompts stay in one" in heard
    assert "No candidate: step approve failed (rejected): prompts stay in one language" in asked.document()
    assert wrong(asked.handle.folder) == []


async def test_rejections_stop_no_run_and_end_a_row_of_failures(room: Room) -> None:
    """The limit is for a proposer that makes nothing; here it made an edit each time."""
    edits = {i: prompt_edit(f"{SHORT}{i}\n", "asked-alone") for i in (1, 2, 4)}
    handle = room.run(ScriptedProposer(edits), iterations=5, max_failures=2, ask={"edit": True})
    asked = await Asked(handle).start()
    no = {"decision": "reject", "reason": "no"}
    await asked.reply(no, no, no)
    assert [q["iteration"] for q in asked.questions] == [1, 2, 4], "the third changed nothing and failed by itself"
    assert (asked.state["stop"], asked.state["iteration"]) == ("iterations", 5)
    assert [asked.outcome(i)["failure"]["cause"] for i in range(1, 6)] == [
        "rejected", "rejected", "refused", "rejected", "refused",
    ]  # fmt: skip


async def test_an_edit_changed_by_hand_is_what_is_predicted_and_evaluated(room: Room) -> None:
    asked = await Asked(room.run(ask={"edit": True}, iterations=1)).start()
    scaffold = Path(asked.last["workspace"]) / "scaffold"
    (scaffold / "prompt.md").write_text(BOTH, "utf-8")
    await asked.reply({"decision": "edit", "by": "Ada"})
    run = asked.handle.open()
    tree = asked.step(1, "approve")["tree"]
    assert run.candidates.tree("iter_001") == tree != asked.step(1, "propose")["result"]["tree"]
    assert asked.state["best"] == {"id": "iter_001", "mean": 1.0}
    assert "all letters" in run.proposer.instructions[(1, "predict")]  # type: ignore[attr-defined]
    iteration = Path(asked.last["workspace"]) / "iterations/iter_001"
    assert (iteration / "source/prompt.md").read_text("utf-8") == BOTH
    assert "all letters" in (iteration / "diff.patch").read_text("utf-8")
    assert wrong(asked.handle.folder) == []


async def test_a_change_by_hand_that_the_checks_refuse_is_asked_for_again_until_it_passes(room: Room) -> None:
    asked = await Asked(room.run(ask={"edit": True}, iterations=1)).start()
    await asked.reply({"decision": "edit"})
    assert asked.last["refused"] == ["scaffold/ is as it was proposed: change it first, or reply with `approve`"]
    scaffold = Path(asked.last["workspace"]) / "scaffold"
    (scaffold / "prompt.md").write_text("no place for it\n", "utf-8")
    await asked.reply({"decision": "edit"})
    assert "{word}" in asked.last["refused"][0]
    assert (scaffold / "prompt.md").read_text("utf-8") == "no place for it\n", "what a person wrote is left to them"
    (scaffold / "prompt.md").write_text(BOTH, "utf-8")
    await asked.reply({"decision": "edit"})
    assert asked.state["best"] == {"id": "iter_001", "mean": 1.0}
    refused = [e["reasons"] for e in events(asked.handle.folder) if e["type"] == "step_refused"]
    assert refused == [q["refused"] for q in asked.questions[1:]]


async def test_an_approval_takes_what_was_proposed_whatever_lies_in_the_folder(room: Room) -> None:
    asked = await Asked(room.run(ask={"edit": True}, iterations=1)).start()
    (Path(asked.last["workspace"]) / "scaffold/prompt.md").write_text(BOTH, "utf-8")
    await asked.reply(APPROVE)
    assert asked.state["best"] == {"id": "iter_001", "mean": 0.5}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"decision": "perhaps"}, "decision: Input should be 'approve', 'reject' or 'edit', not 'perhaps'"),
        ({"decision": "reject"}, "a rejection needs a reason"),
        ({"decision": "reject", "reason": " "}, "a rejection needs a reason"),
        ({"decision": "approve", "reasons": "x"}, "reasons: unknown field (did you mean 'reason'?)"),
        ({}, "decision: missing"),
        (True, "the reply is of type bool; give an object, or JSON text of one"),
        ("approve", "the reply is not JSON"),
        ('{"decision": "approve"', "the reply is not JSON"),
        ({"decision": "approve", "by": "a\nb"}, "by: "),
        ({"decision": {1, 2}}, "the reply is no plain JSON"),
    ],
)
def test_a_reply_of_another_form_is_refused_with_the_reason(reply: Any, reason: str) -> None:
    with pytest.raises(SubmissionRefused) as error:
        read_reply(reply, ApproveReply, Redactor())
    (said,) = error.value.reasons
    assert reason in said


async def test_a_reply_of_another_form_is_asked_for_again_until_there_is_one(room: Room) -> None:
    asked = await Asked(room.run(ask={"edit": True}, iterations=1)).start()
    await asked.reply(True, {"decision": "reject"})
    said = [q["refused"] for q in asked.questions]
    assert [reasons and len(reasons) for reasons in said] == [None, 1, 1]
    assert asked.step(1, "approve") is None
    await asked.reply('{"decision": "approve"}')
    assert asked.state["refused_reply"] == []
    assert asked.state["best"]["id"] == "iter_001"


async def test_a_failed_proposal_asks_nobody(room: Room) -> None:
    handle = room.run(ScriptedProposer({}), iterations=1, ask={"edit": True, "evaluation_calls": 0})
    asked = await Asked(handle).start()
    assert asked.questions == []
    assert asked.outcome(1)["failure"]["step"] == "propose"
