"""Parameters that an endpoint refuses, and those that are sent otherwise than asked: on record, and told once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bco_graph.errors import RequestRejected
from bco_graph.gateway.dropping import refused_parameter
from bco_graph.testing import Reply, ScriptedModelServer
from tests.gateway_room import JOB, opened, says, text

LANES = pytest.mark.parametrize("lane", ["forward", "litellm"])
DROP = {"litellm_settings": {"drop_params": True}}


def picky(*refused: str) -> Any:
    """An endpoint that refuses parameters, one at a time, in the order they are given here."""

    def answer(body: dict[str, Any]) -> Reply | str:
        name = next((name for name in refused if name in body), None)
        return "ok" if name is None else Reply(f"Unsupported value: '{name}' is not taken by this model.", status=400)

    return answer


@LANES
def test_a_refused_parameter_is_an_error_that_names_it_its_deployment_and_the_way_out(
    lane: str, tmp_path: Path
) -> None:
    with ScriptedModelServer({"m": picky("temperature")}) as server:
        deployment = server.deployment("m", model_info={"lane": lane}, temperature=0, seed=1)
        with opened(tmp_path, deployment) as room:
            with pytest.raises(RequestRejected, match=r"deployment 'm' .*parameter 'temperature'.*drop_params: true"):
                room.ask(says("hi"))
            (call,) = room.calls
        assert (call.status, call.attempts, len(server.requests)) == ("RequestRejected", 1, 1)


@LANES
def test_where_the_config_says_so_it_is_left_out_recorded_told_once_and_not_sent_again(
    lane: str, tmp_path: Path
) -> None:
    with ScriptedModelServer({"m": picky("temperature", "seed")}) as server:
        deployment = server.deployment("m", model_info={"lane": lane}, temperature=0, seed=1, top_p=0.5)
        with opened(tmp_path, deployment, **DROP) as room:
            assert [text(room.ask(says(word))) for word in ("one", "two")] == ["ok", "ok"]
            calls, warnings = room.calls, room.warnings()
            text(room.ask(says("three")))
            assert room.warnings() == []
        sent = [sorted(set(request.body) & {"temperature", "seed", "top_p"}) for request in server.requests]
    assert sent == [["seed", "temperature", "top_p"], ["seed", "top_p"], ["top_p"], ["top_p"], ["top_p"]]
    by = "litellm_settings.drop_params"
    for call in calls:
        assert call.changes == {"temperature": {"asked": 0, "by": by}, "seed": {"asked": 1, "by": by}}
        assert set(json.loads(call.request)) == {"messages", "model", "top_p"}
        assert (call.status, call.attempts) == ("ok", 1)
    assert warnings == [
        ("deployment m", f"seed: asked was 1, it was left out ({by})"),
        ("deployment m", f"temperature: asked was 0, it was left out ({by})"),
    ]


@pytest.mark.parametrize("name", ["max_tokens", "tools", "response_format"])
def test_what_a_request_says_and_how_long_a_reply_may_be_is_never_left_out(name: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {"max_tokens": 9, "tools": [{"type": "function"}], "response_format": {"type": "text"}}
    with (
        ScriptedModelServer({"m": picky(name)}) as server,
        opened(tmp_path, server.deployment("m"), **DROP) as room,
    ):
        with pytest.raises(RequestRejected, match=rf"parameter '{name}'"):
            room.ask(says("hi", **{name: values[name]}))
        assert len(server.requests) == 1


def test_a_deployment_may_say_for_itself_whether_and_what_is_left_out(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": picky("temperature"), "n": picky("temperature"), "o": picky("seed")}) as server:
        m = server.deployment("m", temperature=0, drop_params=False)
        n = server.deployment("n", temperature=0, drop_params=True)
        o = server.deployment("o", seed=1, additional_drop_params=["seed"])
        with opened(tmp_path / "m", m, **DROP) as room, pytest.raises(RequestRejected):
            room.ask(says("hi"))
        with opened(tmp_path / "n", n) as room:
            assert text(room.ask(says("hi"))) == "ok"
        with opened(tmp_path / "o", o) as room:
            assert text(room.ask(says("hi"))) == "ok"
            assert room.calls[0].changes == {"seed": {"asked": 1, "by": "litellm_params.additional_drop_params"}}
        assert len(server.requests_of("o")) == 1


@pytest.mark.parametrize(
    ("status", "message", "param", "expected"),
    [
        (400, "no", "temperature", "temperature"),
        (400, "no", "tools[0].function", "tools"),
        (422, "temperature is fixed where reasoning_effort is high", None, "temperature"),
        (400, "max_temperature and top_ps are wrong", None, None),
        (400, "temperature", "n", None),
        (400, "the messages are wrong", "messages", None),
        (404, "temperature", "temperature", None),
    ],
)
def test_which_parameter_an_error_is_about(status: int, message: str, param: Any, expected: str | None) -> None:
    request = {"messages": [], "temperature": 0, "reasoning_effort": "high", "tools": [], "top_p": 1}
    raw = json.dumps({"error": {"message": message, "param": param}})
    assert refused_parameter(RequestRejected(message, status=status, raw=raw), request) == expected


def test_what_is_sent_otherwise_than_asked_is_told_once_for_each_parameter(tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": ["ok"]}) as server,
        opened(tmp_path, server.deployment("m", temperature=0, max_tokens=50)) as room,
    ):
        for number in range(3):
            room.ask(says(f"question {number}", temperature=0.5 + number, top_p=0.1, max_tokens=100))
        assert room.warnings() == [
            ("deployment m", "max_tokens: asked was 100, sent was 50"),
            ("deployment m", "temperature: asked was 0.5, sent was 0"),
            ("deployment m", "top_p: asked was 0.1, it was left out"),
        ]
        assert [call.changes["temperature"]["asked"] for call in room.calls] == [0.5, 1.5, 2.5]


def test_a_change_of_the_providers_fingerprint_is_told_once_for_each_new_one_and_stays_on_record(
    tmp_path: Path,
) -> None:
    bodies = [
        json.dumps({"system_fingerprint": name, "choices": [{"message": {"content": "ok"}}]}).encode()
        for name in ("fp_a", "fp_a", "fp_b", "fp_b", "fp_a")
    ]
    with (
        ScriptedModelServer({"m": [Reply(body=body) for body in bodies]}) as server,
        opened(tmp_path, server.deployment("m")) as room,
    ):
        for number in range(5):
            room.ask(says(f"question {number}"), JOB)
        told = [message for about, message in room.warnings() if about == "drift"]
        prints = [json.loads(call.response)["system_fingerprint"] for call in room.calls]
    assert told == [
        "openai/m of deployment m: system_fingerprint was fp_a, now fp_b",
        "openai/m of deployment m: system_fingerprint was fp_b, now fp_a",
    ]
    assert prints == ["fp_a", "fp_a", "fp_b", "fp_b", "fp_a"]
