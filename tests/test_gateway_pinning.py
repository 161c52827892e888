"""What is sent: the deployment's model and parameters, whatever the caller asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bco_graph.gateway.pinning import Pinned
from bco_graph.protocols import Caller
from bco_graph.receipts import dumps
from bco_graph.testing import ScriptedModelServer
from tests.gateway_room import JOB, opened, says


def sent(tmp_path: Path, caller: Caller, pinned: dict[str, Any], asked: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """What arrives upstream beside model and messages, and the recorded changes."""
    with (
        ScriptedModelServer({"m": ["ok"]}) as server,
        opened(tmp_path, server.deployment("m", **pinned), roles={"proposer": "m"}) as room,
    ):
        room.ask(says("hi", **asked), caller)
        changes = [call.changes for call in room.calls]
        (request,) = server.requests
    assert request.body.pop("model") == "m"
    assert request.body.pop("messages") == says("hi")["messages"]
    return request.body, changes[0] if changes else None


def test_the_targets_parameters_win_and_what_the_deployment_does_not_name_is_left_out(tmp_path: Path) -> None:
    body, changes = sent(
        tmp_path,
        JOB,
        {"temperature": 0, "seed": 7, "reasoning_effort": "low"},
        {"temperature": 0.9, "seed": 7, "top_p": 0.5, "n": 5, "model": "gpt-best", "stream": True, "user": None},
    )
    assert body == {"temperature": 0, "seed": 7, "reasoning_effort": "low"}
    assert changes == {
        "temperature": {"asked": 0.9, "sent": 0},
        "top_p": {"asked": 0.5},
        "n": {"asked": 5},
        "model": {"asked": "gpt-best", "sent": "openai/m"},
    }


def test_what_a_scaffold_says_passes_untouched(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    said = {
        "tools": [tool],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "response_format": {"type": "json_object"},
        "stop": ["\n"],
    }
    assert sent(tmp_path, JOB, {}, {**said, "model": "m"}) == (said, {})


@pytest.mark.parametrize(
    ("pinned", "asked", "expected"),
    [
        ({"max_tokens": 100}, {"max_tokens": 40}, {"max_tokens": 40}),
        ({"max_tokens": 100}, {"max_tokens": 400}, {"max_tokens": 100}),
        ({"max_tokens": 100}, {}, {"max_tokens": 100}),
        ({"max_completion_tokens": 100}, {"max_tokens": 40}, {"max_completion_tokens": 40}),
        ({}, {"max_tokens": 40}, {"max_tokens": 40}),
        ({}, {"max_tokens": 40, "max_completion_tokens": 30}, {"max_tokens": 30}),
    ],
)
def test_a_reply_may_be_asked_shorter_never_longer(
    pinned: dict[str, Any], asked: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    body, changes = sent(tmp_path, JOB, pinned, asked)
    assert body == expected
    unlike = {name: {"asked": n, "sent": next(iter(expected.values()))} for name, n in asked.items()}
    assert changes == {name: change for name, change in unlike.items() if {name: change["asked"]} != expected}


def test_a_pinned_stop_stands(tmp_path: Path) -> None:
    body, changes = sent(tmp_path, JOB, {"stop": ["END"]}, {"stop": ["x"]})
    assert body == {"stop": ["END"]}
    assert changes == {"stop": {"asked": ["x"], "sent": ["END"]}}


def test_other_roles_choose_what_their_deployment_leaves_open(tmp_path: Path) -> None:
    caller = Caller("proposer", step="propose")
    body, _ = sent(tmp_path, caller, {"temperature": 0.3}, {"temperature": 1, "top_p": 0.5, "seed": 3})
    assert body == {"temperature": 0.3, "top_p": 0.5, "seed": 3}


@pytest.mark.parametrize(
    "request_",
    [{}, {"messages": ["é"]}, {"tools": [{"b": 1, "a": None}]}, {"messages": [], "temperature": 0, "a": '"model":"x"'}],
)
def test_a_request_is_written_as_the_strict_json_of_all_its_fields_in_order(request_: dict[str, Any]) -> None:
    pinned = Pinned.of(request_, {})
    assert pinned.text() == dumps(request_)
    assert pinned.text("openai/m") == dumps({**request_, "model": "openai/m"})


def test_a_number_that_json_cannot_say_is_sent_and_recorded_as_null(tmp_path: Path) -> None:
    body, changes = sent(tmp_path, JOB, {}, {"response_format": {"x": float("nan")}, "top_p": float("inf")})
    assert body == {"response_format": {"x": None}}
    assert changes == {}


def test_an_extra_body_is_merged_into_what_is_sent(tmp_path: Path) -> None:
    body, _ = sent(tmp_path, JOB, {"extra_body": {"min_tokens": 3}, "temperature": 0}, {})
    assert body == {"min_tokens": 3, "temperature": 0}
