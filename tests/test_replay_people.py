"""A recording of a run in which people, programs and nodes of the caller's own took part: given again, or named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from bco_graph import RunHandle, change_world_model, create_bco, nodes, read_world_model
from bco_graph.believing import believe
from bco_graph.config import check_config
from bco_graph.errors import ConfigError
from bco_graph.export import export_recording, render_recording
from bco_graph.proposers.replay import ReplayProposer
from bco_graph.run_folder import RunFolder
from bco_graph.state import BCOState
from bco_graph.world_model import HumanChange
from tests.compose_room import Room, limits, wrong
from tests.test_ask import APPROVE, Asked, events
from tests.test_compose_fork import doubted
from tests.toy import BOTH, PROPOSE, ScriptedProposer, prompt_edit, two_edits

ASK = {"edit": True, "evaluation_calls": 1, "grade": True}


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    with Room(tmp_path) as made:
        yield made


class Replay:
    """A run's recording, and the run that replays it, from the recorded responses alone."""

    def __init__(self, room: Room, recorded: RunHandle, *, name: str = "again") -> None:
        recorded.close()
        self.folder = room.folder / f"recording-{name}"
        self.facts = export_recording(RunFolder(recorded.folder), self.folder)
        self._room, self._config, self._name = room, recorded.config, name

    def handle(self, **changes: Any) -> RunHandle:
        kept = self._config.model_dump(exclude_unset=True)
        config = {
            **kept, "name": self._name, "proposer": {"kind": "replay", "recording": str(self.folder)}, **changes,
        }  # fmt: skip
        cache = self.folder / "cache.sqlite"
        return RunHandle(check_config(config), suite=self._room.suite, extra_cache=cache, offline=True)

    async def run(self, handle: RunHandle | None = None, **given: Any) -> dict[str, Any]:
        handle = handle or self.handle()
        graph = create_bco(handle.config, handle=handle, **given).compile(checkpointer=InMemorySaver())
        state: dict[str, Any] = await graph.ainvoke({}, limits(handle.config))
        handle.close()
        return state


def document(folder: Path) -> str:
    return (folder / "world_model_calibration.md").read_text(encoding="utf-8")


def human(**change: Any) -> HumanChange:
    return HumanChange.model_validate(change)


def decided(folder: Path) -> list[tuple[Any, ...]]:
    return [
        (e["step"], e["iteration"], e["decision"], e["by"]) for e in events(folder) if e["type"] == "decided"
    ]  # fmt: skip


async def test_what_people_decided_is_decided_again_and_nobody_is_asked(room: Room) -> None:
    proposer = two_edits()
    proposer.edits |= {3: prompt_edit("Say: {word}\n")}
    third = {**PROPOSE, "live_signature": "third", "failure_mode": "another"}
    proposer.submissions |= {(3, "propose"): third}
    asked = await Asked(room.run(proposer, iterations=3, ask=ASK)).start()
    (Path(asked.last["workspace"]) / "scaffold/prompt.md").write_text(BOTH, "utf-8")
    added = {"add": {"claim": "Long words need more.", "confidence": 0.7}, "reason": "seen"}
    await asked.reply({"decision": "edit", "by": "ann"}, APPROVE)
    await asked.reply({"beliefs": [added, {"pin": "E1"}], "by": "ops"})
    await asked.reply({"decision": "reject", "reason": "not now", "by": "ann"})
    await asked.reply(APPROVE, {"decision": "reject", "reason": "too dear", "by": "bob"})
    assert asked.state["stop"] == "iterations"
    live = asked.handle.folder

    replay = Replay(room, asked.handle)
    state = await replay.run()
    again = live.with_name("again")
    assert state["stop"] == "iterations"
    assert document(again) == document(live)
    assert "too dear" in document(again)
    assert decided(again) == decided(live)
    assert wrong(again) == []
    assert [e["mean"] for e in events(again) if e["type"] == "candidate"] == [
        e["mean"] for e in events(live) if e["type"] == "candidate"
    ]  # fmt: skip
    assert (replay.facts["replies"], replay.facts["changes"], replay.facts["own_nodes"]) == (6, 0, {})


async def test_a_replay_pays_less_and_is_still_refused_the_evaluation_that_a_person_refused(room: Room) -> None:
    asked = await Asked(room.run(iterations=1, ask={"evaluation_calls": 1})).start()
    await asked.reply({"decision": "reject", "reason": "too dear"})
    replay = Replay(room, asked.handle)
    await replay.run(replay.handle(ask={"evaluation_calls": 1000}))
    assert document(asked.handle.folder.with_name("again")) == document(asked.handle.folder)


async def test_beliefs_that_people_changed_between_steps_and_at_the_end_are_changed_again(room: Room) -> None:
    first = room.run(iterations=1, ask={"edit": True})
    await (await Asked(first).start()).reply(APPROVE)
    first.close()
    believe(first.folder, [human(add={"claim": "The model counts.", "confidence": 0.6}, reason="a hunch")], by="ops")
    believe(first.folder, [human(pin="E1")])
    again = room.run(iterations=2, ask={"edit": True})
    asked = await Asked(again).start()
    again.close()
    believe(first.folder, [human(veto="E2", reason="it does not")], by="ann")  # after the edit, before it is approved
    await asked.reply(APPROVE)
    again.close()
    believe(first.folder, [human(unpin="E1")])
    live = document(first.folder)

    replay = Replay(room, again)
    assert replay.facts["changes"] == 4
    state = await replay.run()
    replayed = first.folder.with_name("again")
    assert document(replayed) == live
    assert "veto E2" in live
    assert state["best"]["id"] == "iter_002"
    assert wrong(replayed) == []
    assert decided(replayed) == decided(first.folder)
    records = [(e["step"], e["iteration"]) for e in events(replayed) if e["type"] == "decided"]
    assert records == [("approve", 1), ("believe", 1), ("believe", 1), ("believe", 2), ("approve", 2), ("believe", 2)]
    again_recorded = Replay(room, replay.handle(), name="third")
    for file in sorted(replay.folder.glob("iter_*/changes.json")):
        assert file.read_text() == (again_recorded.folder / file.relative_to(replay.folder)).read_text()


async def test_a_head_that_a_program_put_into_the_state_is_put_there_again(room: Room) -> None:
    handle = room.run()
    graph = create_bco(handle.config, handle=handle).compile(checkpointer=InMemorySaver(), interrupt_after=["update"])
    thread = limits(handle.config)
    await graph.ainvoke({}, thread)
    state = (await graph.aget_state(thread)).values
    head = doubted(read_world_model(handle.folder), 0.3)
    await graph.aupdate_state(thread, change_world_model(state, head), as_node="update")
    for _ in range(3):
        await graph.ainvoke(None, thread)
    live = document(handle.folder)
    assert "iter_000 changed from outside" in live
    await Replay(room, handle).run()
    assert document(handle.folder.with_name("again")) == live
    assert wrong(handle.folder.with_name("again")) == []


async def test_a_change_that_was_made_on_another_world_model_is_left_out_with_a_warning(room: Room) -> None:
    handle = room.run(iterations=1)
    await create_bco(handle.config, handle=handle).compile().ainvoke({}, limits(handle.config))
    handle.close()
    believe(handle.folder, [human(pin="E1")])
    replay = Replay(room, handle)
    (replay.folder / "iter_001/update.json").write_text('{"submission": {"ops": []}}', encoding="utf-8")
    await replay.run()
    again = handle.folder.with_name("again")
    assert "marks:pinned" not in document(again)
    (warned,) = [e["message"] for e in events(again) if e["type"] == "warning"]
    assert warned.startswith("iter_001: recorded change 1 of 1 of the beliefs is left out")


async def test_a_recorded_reply_that_cannot_hold_any_more_is_asked_of_a_person(room: Room) -> None:
    asked = await Asked(room.run(iterations=1, ask={"grade": True})).start()
    await asked.reply({"beliefs": [{"pin": "E1"}]})
    replay = Replay(room, asked.handle)
    (replay.folder / "iter_001/review.json").write_text('{"reply": {"beliefs": [{"pin": "E9"}]}}', encoding="utf-8")
    state = await replay.run()
    (question,) = state["__interrupt__"]
    assert "E9" in question.value["refused"][0]


@pytest.mark.parametrize(
    ("question", "replies", "said"),
    [
        ("edit", [{"decision": "reject", "reason": "no"}], "'approve' made a difference in iter_001: set ask.edit"),
        ("evaluation_calls", [{"decision": "reject", "reason": "no"}], "'afford' .*set a limit such as"),
        ("grade", [{"beliefs": [{"pin": "E1"}]}], "'review' .*set ask.grade: true"),
    ],
)
async def test_a_replay_that_would_leave_a_decision_out_is_refused(
    room: Room, question: str, replies: list[Any], said: str
) -> None:
    asked = await Asked(room.run(iterations=1, ask={question: 1 if question == "evaluation_calls" else True})).start()
    await asked.reply(*replies)
    replay = Replay(room, asked.handle)
    handle = replay.handle(ask={})
    with pytest.raises(ConfigError, match=said):
        create_bco(handle.config, handle=handle)


async def test_a_plain_yes_needs_no_question_in_the_replay(room: Room) -> None:
    asked = await Asked(room.run(iterations=1, ask=ASK)).start()
    await asked.reply(APPROVE, APPROVE, {"beliefs": []})
    replay = Replay(room, asked.handle)
    await replay.run(replay.handle(ask={}))
    assert document(asked.handle.folder.with_name("again")) == document(asked.handle.folder)


async def regraded(state: BCOState, *, run: Any) -> Any:
    """A grade of ours, with a verdict of its own."""
    made = await nodes.grade(state, run=run)
    return {"grade": {**made["grade"], "verdict": "undecided"}}


async def test_what_nodes_of_one_s_own_did_is_named_and_a_replay_needs_them(room: Room) -> None:
    handle = room.run(iterations=1)
    graph = create_bco(handle.config, handle=handle, nodes={"grade": regraded}).compile()
    await graph.ainvoke({}, limits(handle.config))
    live = document(handle.folder)
    replay = Replay(room, handle)
    assert replay.facts["own_nodes"] == {"grade": [1]}
    assert "your own node 'grade' did in iter_001: a replay needs that node" in render_recording(replay.facts)
    with pytest.raises(ConfigError, match=r"not in the recording \(grade in iter_001\): give the same"):
        await replay.run()
    await replay.run(nodes={"grade": regraded})
    assert document(handle.folder.with_name("again")) == live
    (replay.folder / "recording.json").unlink()
    create_bco(replay.handle().config)


async def test_the_notes_of_method_notes_are_written_again(room: Room) -> None:
    class Noting(ScriptedProposer):
        async def perform(self, step: Any) -> Any:
            (step.workspace / "agent_notes.md").write_text(f"tried {step.iteration}\n", encoding="utf-8")
            return await super().perform(step)

    proposer = Noting(two_edits().edits, two_edits().submissions)
    handle = room.run(proposer, method="notes")
    await create_bco(handle.config, handle=handle).compile().ainvoke({}, limits(handle.config))
    replay = Replay(room, handle)
    again = replay.handle()
    await replay.run(again)
    assert (again.folder / "workspace/agent_notes.md").read_text("utf-8") == "tried 2\n"
    assert (replay.folder / "iter_001/agent_notes.md").read_text("utf-8") == "tried 1\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("approve.json", '{"reply": []}'),
        ("approve.json", "{"),
        ("changes.json", '{"changes": [{"after": ["x"]}]}'),
        ("changes.json", '{"changes": [1]}'),
        ("changes.json", '{"change": []}'),
    ],
)
def test_a_file_of_another_form_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "iter_001").mkdir()
    (tmp_path / "iter_001" / name).write_text(text, encoding="utf-8")
    replay = ReplayProposer(tmp_path)
    with pytest.raises(ConfigError, match=f"iter_001/{name}"):
        replay.reply("approve", 1, tmp_path) if name == "approve.json" else replay.changes(1)


def test_a_recording_without_people_has_none(tmp_path: Path) -> None:
    replay = ReplayProposer(tmp_path)
    assert (replay.reply("approve", 1, tmp_path), replay.changes(1)) == (None, [])
    assert json.dumps(replay.changes(0)) == "[]"
