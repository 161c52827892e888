"""The gateway's HTTP face: tokens, both doors, streaming, errors that classify themselves."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from bco_graph.protocols import Caller
from bco_graph.testing import Reply, ScriptedModelServer
from tests.gateway_room import JOB, UnixConnection, knock, opened, says, text


@pytest.mark.parametrize("door", ["unix", "tcp"])
def test_both_doors_answer_and_book_on_the_job_that_holds_the_token(door: str, tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        token = room.gateway.token(JOB)
        status, answer, _ = knock(room, says("hi", model="whatever"), token, door=door)
        assert (status, text(answer)) == (200, "ok")
        (call,) = room.calls
        assert (call.candidate, call.task, call.changes["model"]["sent"]) == ("iter_001", "t1", "openai/m")


@pytest.mark.parametrize("token", [None, "", "bco-guess", "scripted"])
def test_without_the_right_token_there_is_no_answer_and_no_call(token: str | None, tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        room.gateway.token(JOB)
        for path, body in (("/v1/chat/completions", says("hi")), ("/v1/models", None)):
            status, answer, _ = knock(room, body, token, path=path)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert server.requests == []


def test_a_token_is_opaque_the_same_each_time_and_another_for_each_job(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        mine = room.gateway.token(JOB)
        assert mine == room.gateway.token(JOB)
        others = [room.gateway.token(Caller("target", "iter_001", "t1", repeat)) for repeat in (1, 2)]
        assert len({mine, *others}) == 3
        assert "iter_001" not in mine


def test_the_socket_is_the_owners_alone_and_its_path_fits(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        path = room.gateway.socket_path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert len(str(path)) < 104


def test_a_long_tmpdir_does_not_make_the_socket_path_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        assert knock(room, says("hi"), room.gateway.token(JOB))[0] == 200
        assert len(str(room.gateway.socket_path)) < 104
    assert list(deep.iterdir()) == []


@pytest.mark.parametrize(
    ("reply", "status", "code", "record"),
    [
        (Reply("no", status=401), 403, "upstream_authentication_failed", "AuthenticationFailed"),
        (Reply("no", status=404), 400, "request_rejected", "RequestRejected"),
        (Reply("no", status=400, code="context_length_exceeded"), 400, "context_length_exceeded", "ContextOverflow"),
        (Reply("no", status=500), 503, "upstream_unavailable", "UpstreamUnavailable"),
    ],
)
def test_errors_go_back_with_a_status_and_a_code_and_ask_no_client_to_retry(
    reply: Reply, status: int, code: str, record: str, tmp_path: Path
) -> None:
    with ScriptedModelServer({"m": [reply]}) as server, opened(tmp_path, server.deployment("m")) as room:
        told, answer, headers = knock(room, says("hi"), room.gateway.token(JOB))
        assert (told, answer["error"]["code"], headers["x-should-retry"]) == (status, code, "false")
        assert [call.status for call in room.calls] == [record]


def test_a_spent_budget_is_402_budget_exceeded(tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": ["ok"]}) as server,
        opened(tmp_path, server.deployment("m"), budget={"calls": 1}) as room,
    ):
        token = room.gateway.token(JOB)
        assert knock(room, says("one"), token)[0] == 200
        status, answer, _ = knock(room, says("two"), token)
        assert (status, answer["error"]["code"]) == (402, "budget_exceeded")


def test_a_body_that_is_no_request_is_400(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        for body in ([1], {"messages": "hi"}):
            assert knock(room, body, room.gateway.token(JOB))[:1] == (400,)


@pytest.mark.parametrize("depth", [400, 100_000])
def test_a_body_nested_without_end_is_400_and_harms_nobody(depth: int, tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        token, deep = room.gateway.token(JOB), b"[" * depth + b"]" * depth
        body = b'{"messages": [{"role": "user", "content": "hi"}], "stop": ' + deep + b"}"
        connection = UnixConnection(room.gateway.socket_path)
        connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {token}"})
        assert connection.getresponse().status in (200, 400)
        connection.close()
        assert knock(room, says("still there"), token)[0] == 200


def test_a_caller_sees_its_one_model(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"], "p": ["ok"]}) as server:
        deployments = (server.deployment("m"), server.deployment("p"))
        with opened(tmp_path, *deployments, roles={"proposer": "p"}) as room:
            for caller, name in ((JOB, "m"), (Caller("proposer", step="propose"), "p")):
                _, answer, _ = knock(room, None, room.gateway.token(caller), path="/v1/models")
                assert [model["id"] for model in answer["data"]] == [name]


async def test_openais_own_client_works_against_it_and_does_not_retry(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    with (
        ScriptedModelServer({"m": ["ok", Reply("no", status=500)]}) as server,
        opened(tmp_path, server.deployment("m")) as room,
    ):
        base_url, token = room.gateway.base_url, room.gateway.token(JOB)
        async with openai.AsyncOpenAI(base_url=base_url, api_key=token) as client:
            done = await client.chat.completions.create(model="m", messages=says("hi")["messages"])
            assert done.choices[0].message.content == "ok"
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="m", messages=says("again")["messages"])
        await asyncio.sleep(0)
    assert len(server.requests) == 2
