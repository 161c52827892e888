"""The tool loop: what it does with replies of every shape, its bounds, its conversations, its JSON protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from bco_graph.config import ProposerConfig
from bco_graph.errors import (
    AuthenticationFailed,
    BudgetExceeded,
    ContextOverflow,
    StepFailed,
    SubmissionRefused,
    UpstreamUnavailable,
)
from bco_graph.proposers.agent import AgentProposer
from bco_graph.proposers.replies import unfence
from bco_graph.protocols import Step, StepResult
from bco_graph.state import Method, StepName
from tests.proposer_contract import Reply, ScriptedCalls, calls, says


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid")
    word: str


SUBMIT = ("submit", {"word": "blue"})
TRACE = "iterations/iter_000/traces/t1.json"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    for path, text in {
        "scaffold/agent.py": "x = 1\ny = 2\ny = 2\n",
        "iterations/iter_000/source/agent.py": "x = 0\n",
        TRACE: "{}\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


def make_step(workspace: Path, name: StepName = "propose", *, iteration: int = 1, method: Method = "bco") -> Step[str]:
    def accept(model: BaseModel) -> str:
        assert isinstance(model, Form)
        if model.word == "bad":
            raise SubmissionRefused(["'bad' is no word"])
        return model.word

    return Step(name, iteration, method, workspace, f"Do {name}.", Form, accept)


def proposer(script: ScriptedCalls, *, tools: bool = True, **config: Any) -> AgentProposer:
    return AgentProposer(ProposerConfig(**config), script, capabilities=lambda _: {"tools": tools})


async def run(workspace: Path, *script: Reply | Exception, **config: Any) -> tuple[StepResult[str], ScriptedCalls]:
    model = ScriptedCalls(*script)
    return await proposer(model, **config).perform(make_step(workspace)), model


async def failure(workspace: Path, *script: Reply | Exception, **config: Any) -> tuple[StepFailed, ScriptedCalls]:
    model = ScriptedCalls(*script)
    with pytest.raises(StepFailed) as caught:
        await proposer(model, **config).perform(make_step(workspace))
    return caught.value, model


# -- a whole step --------------------------------------------------------------------------------------------


async def test_a_step_reads_edits_and_hands_in_and_counts_what_it_did(workspace: Path) -> None:
    result, model = await run(
        workspace,
        calls(("read_file", {"path": TRACE}), ("read_file", {"path": "scaffold/agent.py"})),
        calls(("edit_file", {"path": "scaffold/agent.py", "old": "x = 1", "new": "x = 9"}), usage=(20, 5)),
        calls(SUBMIT),
    )  # fmt: skip
    assert result.value == "blue"
    assert result.trace_reads == 1
    assert result.notes == {"turns": 3, "tokens": 55, "edits_applied": 1, "edits_refused": 0}
    assert (workspace / "scaffold/agent.py").read_text(encoding="utf-8") == "x = 9\ny = 2\ny = 2\n"
    assert {(caller.role, caller.step) for caller in model.callers} == {("proposer", "1/propose")}
    assert model.requests[0]["messages"][1] == {"role": "user", "content": "Do propose."}
    submit = model.requests[0]["tools"][-1]["function"]
    assert (submit["name"], submit["parameters"]) == ("submit", Form.model_json_schema())


async def test_each_call_of_a_reply_is_answered_under_its_own_id(workspace: Path) -> None:
    _, model = await run(
        workspace,
        calls(("list_files", {}), ("no_such_tool", {}), ("read_file", {"path": "../secret"}), ("submit", "{")),
        calls(SUBMIT),
    )
    told = [m for m in model.requests[1]["messages"] if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in told] == ["id0", "id1", "id2", "id3"]
    assert told[0]["content"] == "iterations/\nscaffold/"
    assert "there is no tool 'no_such_tool'" in told[1]["content"]
    assert "leaves the workspace" in told[2]["content"]
    assert told[3]["content"].startswith("not taken: no_such_tool of the same reply was refused")


async def test_a_submit_is_taken_after_the_edits_beside_it_wherever_it_stands(workspace: Path) -> None:
    seen: list[str] = []
    step = make_step(workspace)

    def accept(model: BaseModel) -> str:
        seen.append((workspace / "scaffold/agent.py").read_text(encoding="utf-8"))
        return "ok"

    model = ScriptedCalls(calls(SUBMIT, ("write_file", {"path": "scaffold/agent.py", "content": "new\n"})))
    await proposer(model).perform(Step(step.name, 1, "bco", workspace, "Do.", Form, accept))
    assert seen == ["new\n"]


async def test_of_two_submits_in_one_reply_the_last_counts(workspace: Path) -> None:
    result, model = await run(workspace, calls(("submit", {"word": "red"}), ("submit", {"word": "bad"})), calls(SUBMIT))
    assert result.value == "blue"
    assert model.results()[0].startswith("not taken: this reply hands in twice")
    assert "refused, 3 more tries" in model.results()[1]


async def test_a_refused_submission_is_told_how_many_tries_are_left(workspace: Path) -> None:
    bad = calls(("submit", {"word": "bad"}))
    _, model = await run(workspace, bad, bad, calls(SUBMIT))
    assert [result.split("; ")[0] for result in model.results()] == ["refused, 3 more tries", "refused, 2 more tries"]


async def test_edits_of_one_reply_are_applied_all_or_none(workspace: Path) -> None:
    before = (workspace / "scaffold/agent.py").read_bytes()
    result, model = await run(
        workspace,
        calls(
            ("edit_file", {"path": "scaffold/agent.py", "old": "x = 1", "new": "x = 5"}),
            ("edit_file", {"path": "scaffold/agent.py", "old": "y = 2", "new": "y = 3"}),
            ("write_file", {"path": "scaffold/new/extra.py", "content": "z\n"}),
            SUBMIT,
        ),
        calls(SUBMIT),
    )
    told = model.results()
    assert "not applied: edit_file of the same reply was refused" in told[0]
    assert "2 places match `old` (lines 2, 3)" in told[1]
    assert "not applied" in told[2]
    assert told[3].startswith("not taken: edit_file")
    assert (workspace / "scaffold/agent.py").read_bytes() == before
    assert not (workspace / "scaffold/new").exists()
    assert result.notes["edits_refused"] == 3


async def test_one_good_edit_alone_is_applied_though_a_read_beside_it_is_refused(workspace: Path) -> None:
    edit = ("edit_file", {"path": "scaffold/agent.py", "old": "x = 1", "new": "x = 5"})
    await run(workspace, calls(("read_file", {"path": "absent"}), edit), calls(SUBMIT))
    assert (workspace / "scaffold/agent.py").read_text(encoding="utf-8").startswith("x = 5\n")


async def test_broken_arguments_are_told_and_go_back_as_an_empty_object(workspace: Path) -> None:
    _, model = await run(workspace, calls(("read_file", '{"path": "scaffold/agent.py')), calls(SUBMIT))
    assert "the arguments are not JSON" in model.results()[0]
    echoed = model.requests[1]["messages"][2]["tool_calls"][0]["function"]
    assert echoed == {"name": "read_file", "arguments": "{}"}


async def test_a_reasoning_block_and_signatures_go_back_as_they_came(workspace: Path) -> None:
    reply = calls(("list_files", {}))
    message = reply["choices"][0]["message"]
    message["thinking_blocks"] = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
    message["tool_calls"][0]["provider_specific_fields"] = {"thought_signature": "t"}
    message["function_call"] = None
    _, model = await run(workspace, reply, calls(SUBMIT))
    echoed = model.requests[1]["messages"][2]
    assert echoed["thinking_blocks"] == message["thinking_blocks"]
    assert echoed["tool_calls"][0]["provider_specific_fields"] == {"thought_signature": "t"}
    assert "function_call" not in echoed


# -- replies that do nothing ---------------------------------------------------------------------------------

EMPTY: dict[str, Reply] = {
    "null content cut at the limit": says(None, finish="length", usage=(10, 900)),
    "no choices": {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 900}},
    "null message": {"choices": [{"message": None, "finish_reason": "stop"}]},
    "blank content": says("  \n"),
    "text cut at the limit": says("I will now", finish="length"),
    "nothing at all": {},
}


@pytest.mark.parametrize("reply", EMPTY.values(), ids=EMPTY.keys())
async def test_an_empty_reply_is_asked_again_and_may_be_made_good(workspace: Path, reply: Reply) -> None:
    result, model = await run(workspace, reply, calls(SUBMIT))
    assert result.value == "blue"
    assert "Your last reply was empty" in model.requests[1]["messages"][-1]["content"]
    assert [m["role"] for m in model.requests[1]["messages"]] == ["system", "user"]


@pytest.mark.parametrize("reply", EMPTY.values(), ids=EMPTY.keys())
async def test_three_empty_replies_in_a_row_fail_the_step_as_empty(workspace: Path, reply: Reply) -> None:
    error, model = await failure(workspace, reply)
    assert error.cause == "empty"
    assert len(model.requests) == 3


async def test_an_empty_failure_tells_finish_reason_and_usage(workspace: Path) -> None:
    error, _ = await failure(workspace, EMPTY["null content cut at the limit"])
    assert "'length'" in error.reasons[0]
    assert '"completion_tokens": 900' in error.reasons[0]


async def test_a_reply_with_a_call_between_empty_ones_starts_the_count_anew(workspace: Path) -> None:
    empty = says(None)
    result, _ = await run(workspace, empty, empty, calls(("list_files", {})), empty, empty, calls(SUBMIT))
    assert result.notes["turns"] == 6


async def test_prose_is_answered_and_five_in_a_row_fail_the_step(workspace: Path) -> None:
    error, model = await failure(workspace, says("I would edit ```python\nx\n```"))
    assert error.cause == "format"
    assert len(model.requests) == 5
    assert "calls no tool" in model.requests[1]["messages"][-1]["content"]
    assert "I would edit" in error.raw
    assert not (workspace / "python").exists()


# -- bounds --------------------------------------------------------------------------------------------------


async def test_the_turn_limit_fails_the_step_after_one_warning(workspace: Path) -> None:
    error, model = await failure(workspace, calls(("list_files", {})), max_turns=9)
    assert error.cause == "turns"
    assert len(model.requests) == 9
    warned = [sum("Little is left" in str(m["content"]) for m in r["messages"]) for r in model.requests]
    assert warned == [0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert "3 turn(s)" in model.requests[-1]["messages"][-5]["content"]


async def test_the_token_limit_counts_prompt_and_completion(workspace: Path) -> None:
    error, model = await failure(workspace, calls(("list_files", {}), usage=(300, 50)), max_tokens=1000)
    assert error.cause == "tokens"
    assert len(model.requests) == 3
    assert "1,050 tokens were used of 1,000" in error.reasons[0]


async def test_the_model_is_warned_before_the_tokens_run_out(workspace: Path) -> None:
    _, model = await failure(workspace, calls(("list_files", {}), usage=(300, 0)), max_tokens=1500)
    warned = [sum("Little is left" in str(m["content"]) for m in r["messages"]) for r in model.requests]
    assert warned == [0, 0, 1, 1, 1]


async def test_without_usage_tokens_are_counted_from_the_text(workspace: Path) -> None:
    reply = calls(("list_files", {}))
    del reply["usage"]
    error, model = await failure(workspace, reply, max_tokens=500)
    assert (error.cause, len(model.requests)) == ("tokens", 1)


async def test_a_limit_tells_the_last_refusal_too(workspace: Path) -> None:
    error, _ = await failure(workspace, calls(("submit", {"word": "bad"})), max_turns=2)
    assert error.cause == "turns"
    assert "'bad' is no word" in error.reasons[1]


# -- errors of the gateway -----------------------------------------------------------------------------------


async def test_an_overflow_drops_the_oldest_results_with_a_mark_and_tries_once(workspace: Path) -> None:
    (workspace / "big.txt").write_text("needle " * 3000, encoding="utf-8")
    result, model = await run(
        workspace,
        calls(("read_file", {"path": "big.txt"})),
        calls(("list_files", {})),
        ContextOverflow("too long"),
        calls(SUBMIT),
    )
    assert result.value == "blue"
    first, second = model.results()
    assert first.startswith("[result dropped to make room: 21,")
    assert second == "big.txt  21,000\niterations/\nscaffold/"


async def test_an_overflow_that_stays_fails_the_step(workspace: Path) -> None:
    two = calls(("list_files", {}), ("list_files", {}))
    error, model = await failure(workspace, two, ContextOverflow("too long"))
    assert error.cause == "overflow"
    assert len(model.requests) == 3


async def test_an_overflow_with_nothing_to_drop_fails_at_once(workspace: Path) -> None:
    error, model = await failure(workspace, ContextOverflow("too long"))
    assert (error.cause, len(model.requests)) == ("overflow", 1)


async def test_an_endpoint_that_fails_is_no_fault_of_the_reply(workspace: Path) -> None:
    error, _ = await failure(workspace, UpstreamUnavailable("503 after 3 tries"))
    assert (error.cause, error.reasons) == ("upstream", ["503 after 3 tries"])


@pytest.mark.parametrize("error", [AuthenticationFailed("401"), BudgetExceeded("calls", used=3, allowed=3)])
async def test_a_wrong_key_and_a_used_budget_go_through(workspace: Path, error: Exception) -> None:
    with pytest.raises(type(error)):
        await run(workspace, error)


# -- conversations -------------------------------------------------------------------------------------------


async def test_predict_continues_proposes_conversation_and_grade_starts_its_own(workspace: Path) -> None:
    model = ScriptedCalls(calls(("list_files", {}), SUBMIT), calls(SUBMIT), calls(SUBMIT), calls(SUBMIT))
    agent = proposer(model)
    for name in ("propose", "predict", "grade", "update"):
        await agent.perform(make_step(workspace, name))
    propose, predict, grade, update = (request["messages"] for request in model.requests)
    assert predict[: len(propose)] == propose
    assert [m["role"] for m in predict[len(propose) :]] == ["assistant", "tool", "tool", "user"]
    assert predict[-1]["content"] == "Do predict."
    assert [m["content"] for m in grade[1:]] == ["Do grade."]
    assert update[: len(grade)] == grade
    names = [[tool["function"]["name"] for tool in request["tools"]] for request in model.requests]
    assert names[0] == names[1]
    assert names[2] == names[3] == ["list_files", "read_file", "search", "submit"]


async def test_another_iteration_and_what_follows_a_failed_step_start_anew(workspace: Path) -> None:
    model = ScriptedCalls(says(None), says(None), says(None), calls(SUBMIT), calls(SUBMIT))
    agent = proposer(model)
    with pytest.raises(StepFailed):
        await agent.perform(make_step(workspace, "grade"))
    await agent.perform(make_step(workspace, "update"))
    await agent.perform(make_step(workspace, "grade", iteration=2))
    assert [model.requests[at]["messages"][1]["content"] for at in (3, 4)] == ["Do update.", "Do grade."]


async def test_the_same_step_again_starts_anew(workspace: Path) -> None:
    model = ScriptedCalls(calls(SUBMIT))
    agent = proposer(model)
    await agent.perform(make_step(workspace))
    await agent.perform(make_step(workspace))
    assert len(model.requests[1]["messages"]) == 2


async def test_predict_may_not_write_though_it_has_the_tools(workspace: Path) -> None:
    write = ("write_file", {"path": "scaffold/agent.py", "content": "new"})
    model = ScriptedCalls(calls(write), calls(("start_from", {})), calls(write, write), calls(SUBMIT))
    await proposer(model).perform(make_step(workspace, "predict"))
    assert all("the step 'predict' writes no file" in result for result in model.results())
    assert (workspace / "scaffold/agent.py").read_text(encoding="utf-8").startswith("x = 1")


# -- the JSON protocol ---------------------------------------------------------------------------------------


def asks(tool: str, args: dict[str, Any], fence: str = "") -> Reply:
    text = json.dumps({"tool": tool, "args": args})
    return says(f"{fence}json\n{text}\n{fence}" if fence else text)


async def test_without_tool_calls_one_json_object_a_reply_does_the_same(workspace: Path) -> None:
    text = "# title\n\n````md\n```python\nx\n```\n````\n"
    result, model = await run(
        workspace,
        asks("write_file", {"path": "scaffold/prompt.md", "content": text}, fence="````"),
        asks("submit", {"word": "bad"}),
        asks("submit", {"word": "blue"}),
        tools=False,
    )
    assert result.value == "blue"
    assert (workspace / "scaffold/prompt.md").read_text(encoding="utf-8") == text
    assert "tools" not in model.requests[0]
    assert '{"name": "read_file"' in model.requests[0]["messages"][0]["content"]
    assert [m["role"] for m in model.requests[2]["messages"]] == ["system", *["user", "assistant"] * 2, "user"]
    assert "- 'bad' is no word" in model.requests[2]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("Let me look.", "Expecting value"),
        ('{"tool": "list_files", "args": {}} {"tool": "submit", "args": {}}', "Extra data"),
        ('{"tool": "list_files", "arguments": {}}', "unknown key 'arguments'"),
        ('{"args": {}}', "`tool` is missing"),
        ('{"tool": "list_files", "args": []}', "`args` is no object"),
        ('````\n{"tool": "list_files"}\n```', "Expecting value"),
    ],
)
async def test_a_reply_that_breaks_the_protocol_is_told_why_and_five_fail(
    workspace: Path, reply: str, why: str
) -> None:
    error, model = await failure(workspace, says(reply), protocol="json")
    assert error.cause == "format"
    assert len(model.requests) == 5
    assert why in model.requests[1]["messages"][-1]["content"]


async def test_a_cut_or_missing_reply_is_empty_in_the_json_protocol_too(workspace: Path) -> None:
    error, _ = await failure(workspace, says('{"tool": "write_fi', finish="length"), protocol="json")
    assert error.cause == "empty"
    error, _ = await failure(workspace, says(None), protocol="json")
    assert error.cause == "empty"


async def test_a_protocol_named_in_the_config_wins_over_the_models_description(workspace: Path) -> None:
    _, model = await run(workspace, calls(SUBMIT), tools=False, protocol="tools")
    assert "tools" in model.requests[0]


async def test_making_room_never_drops_instructions_that_follow_a_result(workspace: Path) -> None:
    model = ScriptedCalls(asks("submit", {"word": "blue"}), ContextOverflow("too long"))
    agent = proposer(model, protocol="json")
    await agent.perform(make_step(workspace))
    with pytest.raises(StepFailed, match="overflow"):
        await agent.perform(make_step(workspace, "predict"))
    assert "Do predict." in model.requests[-1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("```json\n{}\n```", "{}"),
        ("  ````\na\n```\nb\n````\n", "a\n```\nb"),
        ("~~~\n{}\n~~~~", "{}"),
        ("````\n{}\n```", "````\n{}\n```"),
        ("```\n{}\n~~~", "```\n{}\n~~~"),
        ("text\n```\n{}\n```", "text\n```\n{}\n```"),
        ("{}", "{}"),
    ],
)
def test_a_fence_is_taken_off_only_where_it_is_whole(text: str, inside: str) -> None:
    assert unfence(text) == inside
