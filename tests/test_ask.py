"""A person is asked where the config says so, and what they say holds: edits, evaluations, grades."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from bco_graph import RunHandle, change_world_model, create_bco, fork_run, read_world_model
from bco_graph.asking import ApproveReply, read_reply
from bco_graph.believing import believe
from bco_graph.candidates import CandidateStore
from bco_graph.cli import main
from bco_graph.driver import drive
from bco_graph.errors import ConfigError, RunError, RunLocked, RunUnreadable, SubmissionRefused
from bco_graph.events import Tail, event_faults
from bco_graph.export import export_recording
from bco_graph.redaction import Redactor
from bco_graph.report.show import show
from bco_graph.run_folder import RunFolder
from bco_graph.world_model import HumanChange
from tests.compose_room import Room, app, limits, wrong
from tests.test_cli import first_beliefs, write_config
from tests.toy import BOTH, GRADE, PREDICT, PROPOSE, SHORT, ScriptedProposer, prompt_edit, toy_config, two_edits

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
    await asked.reply({"decision": "reject", "reason": "prompts stay in one language", "by": "ops"})
    assert len(room.server.requests) == paid
    failure = {"step": "approve", "cause": "rejected", "reasons": ["prompts stay in one language"]}
    assert (asked.outcome(1)["candidate"], asked.outcome(1)["failure"]) == (None, failure)
    assert asked.step(1, "approve")["by"] == "ops"
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
    await asked.reply({"decision": "edit", "by": "ops"})
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


# -- an evaluation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "asks"), [(7, True), (8, False)])
async def test_an_evaluation_of_more_calls_than_the_limit_is_asked_about(room: Room, limit: int, asks: bool) -> None:
    """The baseline took eight calls for its eight tasks."""
    asked = await Asked(room.run(iterations=1, ask={"evaluation_calls": limit})).start()
    assert [q["step"] for q in asked.questions] == ["afford"] * asks
    if asks:
        assert (asked.last["expected"]["calls"], asked.last["task_runs"]) == (8, 8)
        assert asked.last["limits"]["evaluation_calls"] == limit
        paid = len(room.server.requests)
        await asked.reply({"decision": "edit"}, {"decision": "reject", "reason": "too dear"})
        assert "Input should be 'approve' or 'reject'" in asked.last["refused"][0]
        assert len(room.server.requests) == paid
        assert asked.outcome(1)["failure"] == {"step": "afford", "cause": "rejected", "reasons": ["too dear"]}
        assert wrong(asked.handle.folder) == []


@pytest.mark.parametrize(
    ("price", "limit", "expected"), [(0.001, 0.0, True), (0.001, 1e6, False), (0.0, 0.0, False), (None, 1e6, True)]
)
async def test_money_goes_by_what_the_target_s_tokens_cost_and_an_unknown_price_is_asked_about(
    room: Room, price: float | None, limit: float, expected: bool
) -> None:
    config = toy_config(room.folder, room.server, iterations=1, ask={"evaluation_usd": limit})
    (deployment,) = config.models.model_list
    prices = {} if price is None else {"input_cost_per_token": price, "output_cost_per_token": price}
    model_list = [deployment.model_copy(update={"model_info": prices})]
    config = config.model_copy(update={"models": config.models.model_copy(update={"model_list": model_list})})
    asked = await Asked(room.handle(config)).start()
    assert [q["step"] for q in asked.questions] == ["afford"] * expected
    if expected:
        rows = asked.handle.open().receipts.results("train", "iter_000")
        cost = asked.last["expected"]
        assert cost["tokens"] == pytest.approx(sum(row.tokens for row in rows))
        assert cost["usd"] == (None if price is None else pytest.approx(price * cost["tokens"]))
        await asked.reply(APPROVE)
    assert asked.state["best"]["id"] == "iter_001"


async def test_an_evaluation_that_was_approved_and_then_cut_off_is_not_asked_about_again(room: Room) -> None:
    """Its budget ends in the middle of it; with more, it goes on where it was."""
    ask = {"evaluation_calls": 1}
    less = {"calls": 12, "reserve_heldout": False}
    asked = await Asked(room.run(iterations=1, ask=ask, budget=less)).start()
    await asked.reply(APPROVE)
    assert (asked.state["stop"], asked.state["iteration"]) == ("budget", 0)
    asked.handle.close()
    more = Asked(room.run(iterations=1, ask=ask))
    more.graph = create_bco(more.handle.config, handle=more.handle).compile(checkpointer=asked.graph.checkpointer)
    await more.graph.aupdate_state(limits(more.handle.config), {"stop": None}, as_node="update")
    await more.start()
    assert more.questions == []
    assert more.state["best"]["id"] == "iter_001"


# -- a grade, and beliefs ------------------------------------------------------------------------------------------

HUNCH = {"add": {"claim": "Long words want all their letters asked for.", "confidence": 0.7}}


async def test_what_a_person_says_of_the_beliefs_holds_before_the_update(room: Room) -> None:
    asked = await Asked(room.run(iterations=1, ask={"grade": True})).start()
    question = asked.last
    assert (question["candidate"], question["verdict"]) == ("iter_001", "held")
    assert "held" in question["grade"]
    assert [belief["id"] for belief in question["beliefs"]] == ["E1"]
    veto = {"veto": "E1", "reason": "the model was swapped"}
    await asked.reply({"beliefs": [HUNCH, {"pin": "E2"}, veto], "by": "ops"})
    assert asked.state["stop"] == "iterations"
    first, added = asked.head().beliefs
    assert (first.vetoed, first.status) == (True, "refuted"), "the update of this very round may not move it any more"
    assert (added.id, added.origin, added.pinned, added.confidence) == ("E2", "human", True, 0.7)
    text = asked.document()
    assert "### iter_000 changed by a person (ops)\n- add E2 (hypothesis 0.7)\n" in text
    assert "- veto E1 (hypothesis 0.6 -> refuted 0.5): the model was swapped\n" in text
    assert text.index("changed by a person") < text.index("### iter_000 -> iter_001")
    assert "Beliefs that may change: none" in asked.handle.open().proposer.instructions[(1, "update")]  # type: ignore[attr-defined]
    assert wrong(asked.handle.folder) == []
    told = [e for e in events(asked.handle.folder) if e["type"] == "decided"]
    assert [(c["op"], c["id"], c["reason"]) for c in told[0]["changes"]] == [
        ("add", "E2", ""), ("pin", "E2", ""), ("veto", "E1", "the model was swapped"),
    ]  # fmt: skip
    facts, _ = show(RunFolder(asked.handle.folder), "iter_001")
    assert [(d["step"], d["decision"], d["by"]) for d in facts["decisions"]] == [("review", "reviewed", "ops")]
    facts, _ = show(RunFolder(asked.handle.folder), "E1")
    assert facts["history"][-1]["reason"] == "the model was swapped"


async def test_a_review_that_cannot_hold_changes_nothing_and_is_asked_for_again(room: Room) -> None:
    config = {"token_budget": 500}
    asked = await Asked(room.run(iterations=1, ask={"grade": True}, world_model=config)).start()
    before = asked.document()
    await asked.reply({"beliefs": [HUNCH, {"veto": "E7", "reason": "x"}]})
    assert asked.last["refused"] == ["change 2 (veto): there is no belief 'E7'; there are E1 and E2"]
    long = {"add": {**HUNCH["add"], "claim": "word " * 600, "pinned": True}}
    await asked.reply({"beliefs": [long]})
    assert "500 are allowed" in asked.last["refused"][0]
    await asked.reply({"beliefs": [{"veto": "E1"}]})
    assert "beliefs[0]: a veto needs a reason" in asked.last["refused"][0]
    assert asked.document() == before
    await asked.reply(NOTHING)
    assert [belief.id for belief in asked.head().beliefs] == ["E1"]


async def test_a_vetoed_belief_cannot_be_staked_and_a_human_one_is_staked_and_graded_like_any_other(room: Room) -> None:
    """The second edit stakes what a person added; its prediction holds, so the update may raise it."""
    trace = "iterations/iter_002/traces/toy-train-0.json"
    raised = {"op": "revise", "id": "E2", "confidence": 0.9, "status": "confirmed", "reason": "it held",
              "add_evidence_for": [{"path": trace}]}  # fmt: skip
    proposer = two_edits()
    staking = {**proposer.submissions[(2, "propose")], "beliefs": ["E2"]}
    proposer.submissions |= {(2, "propose"): staking, (2, "update"): {"ops": [raised]}}
    proposer.edits[3] = prompt_edit(f"{BOTH}!\n", "asked-thrice")
    proposer.submissions[(3, "propose")] = {**PROPOSE, "beliefs": ["E1"], "live_signature": "asked-thrice"}
    asked = await Asked(room.run(proposer, iterations=3, ask={"grade": True})).start()
    await asked.reply({"beliefs": [HUNCH]}, {"beliefs": [{"veto": "E1", "reason": "no"}]})
    human = asked.head().find("E2")
    assert (human.origin, human.confidence, human.status) == ("human", 0.9, "confirmed")
    assert asked.step(2, "graded")["verdict"] == "held"
    failure = asked.outcome(3)["failure"]
    assert (failure["step"], failure["cause"]) == ("propose", "refused")
    assert failure["reasons"] == ["belief 'E1' was vetoed by a person: no edit may stake it; HISTORY says why"]
    assert wrong(asked.handle.folder) == []


async def test_people_change_beliefs_of_a_run_that_stands_still(room: Room) -> None:
    handle = room.run(iterations=1)
    hunch = [HumanChange.model_validate(HUNCH)]
    handle.open()
    with pytest.raises(RunLocked):
        believe(handle.folder, hunch)
    handle.close()
    with pytest.raises(RunUnreadable, match="no beliefs yet"):
        believe(handle.folder, hunch)
    asked = await Asked(handle).start()
    handle.close()
    made = believe(handle.folder, [HumanChange.model_validate({**HUNCH, "reason": "seen elsewhere"})], by="ops")
    assert made["changes"][0]["id"] == "E2"
    with pytest.raises(SubmissionRefused, match="'E2' is not pinned"):
        believe(handle.folder, [HumanChange.model_validate({"unpin": "E2"})])
    text = asked.document()
    assert "### iter_001 changed by a person (ops)\n- add E2 (hypothesis 0.7): seen elsewhere\n" in text
    assert wrong(handle.folder) == []

    proposer = two_edits()
    staking = {**proposer.submissions[(2, "propose")], "beliefs": ["E2"]}
    proposer.submissions |= {(2, "propose"): staking, (2, "update"): {"ops": []}}
    again = room.run(proposer, iterations=2)
    state = await create_bco(again.config, handle=again).compile().ainvoke({}, limits(again.config))
    assert state["best"]["id"] == "iter_002"
    assert read_world_model(again.folder).find("E2") is not None
    assert wrong(again.folder) == []


def test_a_method_without_beliefs_has_none_to_change(room: Room) -> None:
    handle = room.run(method="vanilla")
    handle.open()
    handle.close()
    with pytest.raises(ConfigError, match="has no beliefs: its method is 'vanilla'"):
        believe(handle.folder, [HumanChange.model_validate(HUNCH)])


# -- kills, parents, forks -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a process in the middle of a node, for tests."""


@pytest.mark.parametrize(
    ("ask", "reply", "step"),
    [
        ({"edit": True}, {"decision": "edit"}, "approve"),
        ({"evaluation_calls": 1}, APPROVE, "afford"),
        ({"grade": True}, {"beliefs": [HUNCH]}, "review"),
    ],
)
@pytest.mark.parametrize("written", ["before", "after"])
async def test_a_kill_beside_the_answer_asks_nobody_twice(
    room: Room, ask: dict[str, Any], reply: Any, step: str, written: str
) -> None:
    asked = await Asked(room.run(iterations=1, ask=ask)).start()
    (Path(asked.last["workspace"]) / "scaffold/prompt.md").write_text(BOTH, "utf-8")
    receipts = asked.handle.open().receipts
    add_step = receipts.add_step

    def killing(iteration: int, name: str, record: Any) -> None:
        if name != step or written == "after":
            add_step(iteration, name, record)
        if name == step:
            raise Killed

    receipts.add_step = killing  # type: ignore[assignment, method-assign]
    with pytest.raises(Killed):
        await asked.reply(reply)
    again = fresh(asked, room, iterations=1)
    again.state = await again.graph.ainvoke(None, limits(again.handle.config))
    assert "__interrupt__" not in again.state, "the reply is in the checkpoint, or in the receipts"
    assert again.state["stop"] == "iterations"
    assert again.state["best"]["mean"] == (1.0 if step == "approve" else 0.5)
    assert [belief.id for belief in again.head().beliefs] == ["E1", "E2"][: 1 + (step == "review")]
    assert wrong(again.handle.folder) == []


@pytest.mark.parametrize("written", ["before", "after"])
async def test_a_review_gets_into_the_document_once_wherever_a_kill_strikes(room: Room, written: str) -> None:
    asked = await Asked(room.run(iterations=1, ask={"grade": True})).start()
    receipts = asked.handle.open().receipts
    add_change = receipts.add_change

    def killing(iteration: int, record: Any) -> None:
        if written == "after":
            add_change(iteration, record)
        raise Killed

    receipts.add_change = killing  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await asked.reply({"beliefs": [HUNCH]})
    again = fresh(asked, room, iterations=1)
    again.state = await again.graph.ainvoke(None, limits(again.handle.config))
    assert [belief.id for belief in again.head().beliefs] == ["E1", "E2"]
    assert again.document().count("- add E2") == 1
    assert wrong(again.handle.folder) == []


async def test_a_question_reaches_through_a_parent_and_so_does_the_reply(room: Room) -> None:
    handle = room.run(iterations=1, ask={"edit": True, "grade": True})
    asked = Asked(handle, app(handle).compile(checkpointer=InMemorySaver()))
    await asked.start({"asked": ["improve it"]})
    await asked.reply({"decision": "maybe"}, APPROVE, {"beliefs": [{"pin": "E1"}]})
    assert [(q["step"], bool(q["refused"])) for q in asked.questions] == [
        ("approve", False), ("approve", True), ("review", False),
    ]  # fmt: skip
    assert asked.state["asked"][-1] == "iter_001 has 0.5"
    assert asked.head().beliefs[0].pinned


def test_the_sync_face_asks_too(room: Room) -> None:
    handle = room.run(iterations=1, ask={"edit": True})
    graph = create_bco(handle.config, handle=handle).compile(checkpointer=InMemorySaver())
    waiting = graph.invoke({}, limits(handle.config))
    assert waiting["__interrupt__"][0].value["step"] == "approve"
    assert graph.invoke(Command(resume=APPROVE), limits(handle.config))["best"]["id"] == "iter_001"


async def test_forks_and_recordings_hold_what_people_decided(room: Room) -> None:
    asked = await Asked(room.run(iterations=2, ask={"edit": True})).start()
    (Path(asked.last["workspace"]) / "scaffold/prompt.md").write_text(BOTH, "utf-8")
    await asked.reply({"decision": "edit"}, {"decision": "reject", "reason": "good enough"})
    asked.handle.close()
    folder = asked.handle.folder
    forked = fork_run(folder, "forked", at=1)
    assert forked.state["proposal"]["tree"] == CandidateStore(RunFolder(folder).candidates).tree("iter_001")
    assert wrong(forked.folder) == []
    recording = room.folder / "recorded"
    export_recording(RunFolder(folder), recording)
    assert (recording / "iter_001/source/prompt.md").read_text("utf-8") == SHORT
    assert (recording / "iter_001/approved/prompt.md").read_text("utf-8") == BOTH
    assert json.loads((recording / "iter_002/approve.json").read_text("utf-8")) == {
        "reply": {"decision": "reject", "reason": "good enough", "by": ""}
    }  # fmt: skip


# -- from the command line -----------------------------------------------------------------------------------------


def bco(*args: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, args)
    assert done.exit_code == code, done.output
    return done.output


def test_a_person_answers_from_the_command_line_beside_a_proposer_that_hands_off(room: Room) -> None:
    """Everybody is a person here: `bco submit` hands in the proposer's steps, `bco approve` answers the questions."""
    folder, ask = room.folder, {"edit": True, "evaluation_calls": 1, "grade": True}
    config = write_config(folder, room.server, ask=ask, runs=str(folder / "runs"))
    run, workspace = str(folder / "runs/toy"), folder / "runs/toy/workspace"

    def hand_in(submission: dict[str, Any]) -> dict[str, Any]:
        (workspace / "submission.json").write_text(json.dumps(submission), "utf-8")
        return dict(json.loads(bco("submit", run, "--json")))

    bco("run", str(config), "--no-preflight", "--json")
    assert "asks nobody to approve anything; it waits for step 'update'" in bco("approve", run, code=1)
    hand_in(first_beliefs("iterations/iter_000/traces/toy-train-0.json"))
    prompt_edit(SHORT, "asked-alone")(workspace / "scaffold")
    assert hand_in(PROPOSE)["awaited"]["step"] == "approve"
    shown = bco("step", run)
    for said in ("asks a person: approve", "ask-for-the-word on iter_000: The prompt", "diff.patch", "--edit"):
        assert said in " ".join(shown.split())
    refused = json.loads(bco("approve", run, "--edit", "--json", code=1))
    assert "scaffold/ is as it was proposed" in refused["awaited"]["refused"][0]
    (workspace / "scaffold/prompt.md").write_text(BOTH, "utf-8")
    assert json.loads(bco("approve", run, "--edit", "--by", "ops", "--json"))["awaited"]["step"] == "predict"
    assert hand_in(PREDICT)["awaited"]["step"] == "afford"
    assert "takes 8 calls" in " ".join(bco("step", run).split())
    bco("approve", run, "--json")
    assert hand_in(GRADE)["awaited"]["step"] == "review"
    assert "iter_001 is held" in bco("step", run)
    assert "cannot be rejected" in bco("approve", run, "--reject", "no", code=2)
    assert hand_in({"beliefs": [{"pin": "E1"}]})["awaited"]["step"] == "update"
    told = bco("believe", run, "veto", "E1", "--reason", "no more", "--by", "lead")
    assert "veto E1: refuted, confidence 0.5" in told
    assert "--confidence: only for a belief that is added" in bco(
        "believe", run, "pin", "E1", "--confidence", "0.4", code=2
    )
    assert "'E1' is vetoed already" in bco("believe", run, "veto", "E1", "--reason", "x", code=1)
    added = bco("believe", run, "add", "Short is right.", "--confidence", "0.4", "--kind", "evaluation")
    assert "add V1: hypothesis, confidence 0.4" in added
    assert hand_in({"ops": []})["stop"] == "iterations"
    assert "approve: edit (ops)" in bco("show", run, "iter_001")
    assert "pinned, vetoed" in bco("show", run, "E1")
    assert "ok  decisions of people" in bco("verify", run)


# -- ways past a question ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [{"edit": True}, {"evaluation_calls": 1}])
async def test_an_input_where_a_reply_is_awaited_is_no_yes(room: Room, ask: dict[str, Any]) -> None:
    asked = await Asked(room.run(iterations=1, ask=ask)).start()
    paid = len(room.server.requests)
    with pytest.raises(RunError, match="iter_001 waits for a person's reply"):
        await asked.start()
    assert len(room.server.requests) == paid
    other = limits(asked.handle.config, "other")
    waiting = await asked.graph.ainvoke({}, other)
    assert waiting["__interrupt__"][0].value["step"] == asked.last["step"]
    assert (await asked.graph.ainvoke(Command(resume=APPROVE), other))["best"]["id"] == "iter_001"


async def test_a_question_does_not_go_away_with_the_setting_that_asked_it(room: Room) -> None:
    config = toy_config(room.folder, room.server, iterations=1, ask={"edit": True})
    assert (await drive(config, suite=room.suite, proposer=two_edits())).awaited is not None
    silent = toy_config(room.folder, room.server, iterations=1)
    with pytest.raises(ConfigError, match="waits at a node that the graph of this config does not have"):
        await drive(silent, suite=room.suite, proposer=two_edits())
    assert (await drive(config, answer=APPROVE, suite=room.suite, proposer=two_edits())).stop == "iterations"


async def test_what_a_program_put_into_the_state_before_does_not_undo_what_a_person_said_after(room: Room) -> None:
    handle = room.run(iterations=1)
    saver = InMemorySaver()
    graph = create_bco(handle.config, handle=handle).compile(checkpointer=saver, interrupt_before=["propose", "grade"])
    await graph.ainvoke({}, limits(handle.config))
    head = read_world_model(handle.folder)
    doubted = head.model_copy(update={"beliefs": (head.beliefs[0].model_copy(update={"confidence": 0.3}),)})
    state = (await graph.aget_state(limits(handle.config))).values
    await graph.aupdate_state(limits(handle.config), change_world_model(state, doubted), as_node="update")
    await graph.ainvoke(None, limits(handle.config))
    handle.close()
    believe(handle.folder, [HumanChange.model_validate({"veto": "E1", "reason": "no"})])
    again = room.run(iterations=1)
    graph = create_bco(again.config, handle=again).compile(checkpointer=saver)
    assert (await graph.ainvoke(None, limits(again.config)))["stop"] == "iterations"
    (belief,) = read_world_model(again.folder).beliefs
    assert (belief.vetoed, belief.confidence) == (True, 0.3)
    assert wrong(again.folder) == []
