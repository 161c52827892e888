"""Roles and deployments: keys, wrong settings, what is known of a model, one cheap check."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from bco_graph.config import Budget, Models, Roles
from bco_graph.errors import AuthenticationFailed, ConfigError, ModelCallError, RequestRejected, UpstreamUnavailable
from bco_graph.gateway import Gateway, local
from bco_graph.ledger import Ledger
from bco_graph.protocols import Caller
from bco_graph.receipts import Receipts
from bco_graph.testing import Reply, ScriptedModelServer
from tests.gateway_room import opened, says, text


def check(room: Any, role: str = "target") -> str:
    return asyncio.run(room.gateway.check(role))  # type: ignore[no-any-return]


def test_a_missing_key_names_role_deployment_and_variable_before_any_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BCO_TEST_KEY", raising=False)
    with (
        ScriptedModelServer({"m": ["ok"], "p": ["ok"]}) as server,
        closing(Receipts(tmp_path / "receipts.sqlite")) as receipts,
    ):
        keyless = server.deployment("p", api_key="os.environ/BCO_TEST_KEY")
        models = Models.model_validate({"model_list": [server.deployment("m"), keyless]})
        roles = Roles(target="m", judge="p")
        gateway = Gateway(models, roles, Ledger(Budget(), receipts), receipts, run_dir=tmp_path)
        with pytest.raises(ConfigError, match=r"'judge', deployment 'p': .*'BCO_TEST_KEY' is not set"):
            gateway.start()
        try:
            assert "answered" in asyncio.run(gateway.check("target"))
            with pytest.raises(ConfigError, match="BCO_TEST_KEY"):
                asyncio.run(gateway.check("judge"))
            with pytest.raises(ConfigError, match="BCO_TEST_KEY"):
                asyncio.run(gateway.complete(Caller("judge"), says("hi")))
        finally:
            gateway.close()
        assert [request.model for request in server.requests] == ["m"]


@pytest.mark.parametrize(
    ("reply", "kind", "told"),
    [
        (Reply("no", status=401), AuthenticationFailed, "BCO_TEST_KEY"),
        (Reply("no such model", status=404), RequestRejected, "openai/m"),
        (Reply("busy", status=503), UpstreamUnavailable, "busy"),
    ],
)
def test_a_check_makes_one_call_at_most_and_says_what_is_wrong(
    reply: Reply, kind: type[ModelCallError], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BCO_TEST_KEY", "some-long-key-value")
    with (
        ScriptedModelServer({"m": [reply]}) as server,
        opened(tmp_path, server.deployment("m", api_key="os.environ/BCO_TEST_KEY"), retries=5) as room,
    ):
        started = time.monotonic()
        with pytest.raises(kind, match=rf"role 'target', deployment 'm' .*{told}"):
            check(room)
        assert time.monotonic() - started < 10
    assert len(server.requests) == 1


def test_a_check_that_goes_well_is_one_short_paid_uncached_call(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m", temperature=0)) as room:
        for _ in range(2):
            assert "openai/m at 127.0.0.1" in check(room)
        assert [request.body["max_tokens"] for request in server.requests] == [8, 8]
        assert room.ledger.totals()["target"]["calls"] == 2


def test_a_role_without_a_deployment_says_where_to_name_one(tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": ["ok"]}) as server,
        opened(tmp_path, server.deployment("m")) as room,
        pytest.raises(ConfigError, match=r"roles\.judge"),
    ):
        room.ask(says("hi"), Caller("judge"))


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"temperature": "0"}, r"temperature is '0'; expected int or float"),
        ({"temperature": "1e-3"}, r"write 0\.001"),
        ({"temperature": True}, r"temperature is True"),
        ({"max_tokens": 1e3}, r"max_tokens is 1000\.0; expected int"),
        ({"parallel_tool_calls": "false"}, r"expected bool"),
        ({"temprature": 0}, r"did you mean 'temperature'"),
        ({"stream": True}, r"always asked for whole"),
    ],
)
def test_a_parameter_of_the_wrong_type_or_spelling_is_refused(
    params: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with (
        ScriptedModelServer() as server,
        pytest.raises(ConfigError, match=told),
        opened(tmp_path, server.deployment("m", **params)),
    ):
        pass


def test_deployments_that_share_a_name_must_be_one_frozen_model(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, ScriptedModelServer({"m": ["ok"]}) as other:
        with opened(tmp_path, server.deployment("m", seed=1), other.deployment("m", seed=1)) as room:
            for number in range(12):
                room.ask(says(f"question {number}"))
            assert len(server.requests) + len(other.requests) == 12
            assert min(len(server.requests), len(other.requests)) > 0
        with (
            pytest.raises(ConfigError, match="one frozen model"),
            opened(tmp_path, server.deployment("m", seed=1), other.deployment("m", seed=2)),
        ):
            pass


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"router_settings": {"model_list": []}}, r"it has its place, models\.model_list"),
        ({"router_settings": {"fallback": []}}, r"no such setting \(did you mean 'fallbacks'\?\)"),
        ({"litellm_settings": {"modify_parms": True}}, r"did you mean 'modify_params'"),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(settings: dict[str, Any], told: str, tmp_path: Path) -> None:
    with (
        ScriptedModelServer() as server,
        pytest.raises(ConfigError, match=told),
        opened(tmp_path, server.deployment("m"), **settings),
    ):
        pass


def test_an_entry_that_only_litellm_knows_is_left_to_litellm(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server:
        with opened(tmp_path, server.deployment("m", mock_response="from litellm's mock")) as room:
            assert text(room.ask(says("hi"))) == "from litellm's mock"
        assert server.requests == []


def test_a_fallback_of_the_router_is_used_named_in_the_receipt_and_priced_as_itself(tmp_path: Path) -> None:
    prices = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.001}
    with ScriptedModelServer({"m": [Reply(status=500)], "spare": ["from the spare"]}) as server:
        deployments = (server.deployment("m"), server.deployment("spare", model_info=prices))
        with opened(tmp_path, *deployments, router_settings={"fallbacks": [{"m": ["spare"]}]}) as room:
            assert text(room.ask(says("hi"))) == "from the spare"
            (call,) = room.calls
    assert (call.deployment, call.model) == ("m", "openai/spare")
    assert call.usd == pytest.approx(0.015)
    assert call.changes["model"] == {"asked": "openai/m", "sent": "openai/spare"}


def test_fingerprint_and_capabilities_hold_no_key_and_no_credentials(tmp_path: Path) -> None:
    known = {"supports_function_calling": True, "max_input_tokens": 4096}
    plain = {
        "model_name": "m",
        "litellm_params": {"model": "openai/gpt-4o-mini", "api_base": "http://me:pw@127.0.0.1:9/v1"},
    }
    with opened(tmp_path, plain) as room:
        print_ = room.gateway.fingerprint("target")
        assert print_ == {"deployment": "m", "model": "openai/gpt-4o-mini", "endpoint": "127.0.0.1:9", "parameters": {}}
        assert room.gateway.capabilities("target") == {"tools": True, "window": 128000}
    with ScriptedModelServer() as server:
        with opened(tmp_path, server.deployment("m", model_info=known, seed=1)) as room:
            assert room.gateway.capabilities("target") == {"tools": True, "window": 4096}
            assert room.gateway.fingerprint("target")["parameters"] == {"seed": 1}
        with opened(tmp_path, server.deployment("m")) as room:
            assert room.gateway.capabilities("target") == {"tools": True, "window": None}


# -- litellm's own edge, for a provider that speaks another protocol ---------------------------------------------

ANTHROPIC = "https://api.anthropic.com/v1/messages"
CLAUDE_PARAMS = {"model": "anthropic/claude-sonnet-4-5", "api_key": "dummy-key-for-tests"}
CLAUDE = {"model_name": "claude", "litellm_params": CLAUDE_PARAMS}


@pytest.fixture
def anthropic(monkeypatch: pytest.MonkeyPatch) -> Any:
    from bco_graph.gateway.library import litellm

    module = litellm()
    monkeypatch.setattr(module, "disable_aiohttp_transport", True)
    module.in_memory_llm_clients_cache.flush_cache()
    with respx.mock(assert_all_called=False) as router:
        router.route(host="127.0.0.1").pass_through()
        yield router
    module.in_memory_llm_clients_cache.flush_cache()


def _message() -> httpx.Response:
    usage = {"input_tokens": 100, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 0, "output_tokens": 10}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
    said = {"content": [{"type": "text", "text": "bonjour"}], "stop_reason": "end_turn"}
    return httpx.Response(200, json={**head, **said, "usage": usage})


def test_another_providers_reply_usage_and_price_arrive_in_openais_form(anthropic: Any, tmp_path: Path) -> None:
    route = anthropic.post(ANTHROPIC).mock(return_value=_message())
    with opened(tmp_path, CLAUDE) as room:
        assert text(room.ask(says("hi", max_tokens=20))) == "bonjour"
        (call,) = room.calls
    assert (call.prompt_tokens, call.cached_tokens, call.completion_tokens) == (1000, 900, 10)
    assert call.usd == pytest.approx(100 * 3e-6 + 900 * 3e-7 + 10 * 1.5e-5, abs=1e-12)
    assert route.calls[0].request.headers["x-api-key"] == "dummy-key-for-tests"


def test_another_providers_errors_are_ours_and_retried_by_us_alone(anthropic: Any, tmp_path: Path) -> None:
    busy = httpx.Response(529, json={"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
    route = anthropic.post(ANTHROPIC).mock(side_effect=[busy, busy, _message()])
    with opened(tmp_path, CLAUDE, retries=2) as room:
        assert text(room.ask(says("hi", max_tokens=20))) == "bonjour"
        assert room.calls[0].attempts == route.call_count == 3
        denied = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
        route.mock(return_value=httpx.Response(401, json=denied))
        with pytest.raises(AuthenticationFailed):
            room.ask(says("again", max_tokens=20))
        assert route.call_count == 4


def test_a_parameter_that_the_provider_does_not_know_is_refused_or_dropped_on_record(
    anthropic: Any, tmp_path: Path
) -> None:
    route = anthropic.post(ANTHROPIC).mock(return_value=_message())
    seeded = {"model_name": "claude", "litellm_params": {**CLAUDE_PARAMS, "seed": 7, "temperature": 0}}
    with opened(tmp_path / "a", seeded) as room:
        with pytest.raises(RequestRejected, match=r"seed.*drop_params"):
            room.ask(says("hi", max_tokens=20))
        assert route.call_count == 0
    with opened(tmp_path / "b", seeded, litellm_settings={"drop_params": True}) as room:
        room.ask(says("hi", max_tokens=20))
        assert room.calls[0].changes["seed"] == {"asked": 7, "by": "litellm_settings.drop_params"}
    assert b"seed" not in route.calls[0].request.content
    assert b'"temperature": 0' in route.calls[0].request.content.replace(b'":0', b'": 0')


def test_a_provider_without_any_key_is_reported_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    keyless = {"model_name": "claude", "litellm_params": {"model": "anthropic/claude-sonnet-4-5"}}
    with (
        pytest.raises(ConfigError, match=r"role 'target', deployment 'claude'.*ANTHROPIC_API_KEY"),
        opened(tmp_path, keyless),
    ):
        pass


REPOSITORY = Path(__file__).parent.parent


# -- importing ---------------------------------------------------------------------------------------------------


def test_neither_the_gateway_nor_a_forwarded_run_imports_litellm_or_llama_cpp(tmp_path: Path) -> None:
    script = """
import asyncio, sys, pathlib
from bco_graph.testing import ScriptedModelServer
from tests.gateway_room import opened, says
with ScriptedModelServer({"m": ["ok"]}) as server:
    prices = {"input_cost_per_token": 1e-06, "output_cost_per_token": 1e-06}
    with opened(pathlib.Path(sys.argv[1]), server.deployment("m", model_info=prices), budget={"usd": 1.0}) as room:
        room.ask(says("hi"))
        room.gateway.capabilities("target")
print(sorted({"litellm", "llama_cpp"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path)],
        capture_output=True, text=True, encoding="utf-8", timeout=120, cwd=REPOSITORY,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("[]", "", 0)


def test_litellm_is_imported_without_a_word_and_without_the_network(tmp_path: Path) -> None:
    script = """
import os, pathlib, sys
from bco_graph.testing import ScriptedModelServer
from tests.gateway_room import opened, says
with ScriptedModelServer({"m": ["ok"]}) as server:
    for number in range(2):
        with opened(pathlib.Path(sys.argv[1]), server.deployment("m", model_info={"lane": "litellm"})) as room:
            room.ask(says(f"hi {number}"))
print(os.environ["LITELLM_LOCAL_MODEL_COST_MAP"])
"""
    environment = {k: v for k, v in os.environ.items() if k != "LITELLM_LOCAL_MODEL_COST_MAP"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path)],
        capture_output=True, text=True, encoding="utf-8", timeout=120, cwd=REPOSITORY, env=environment,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("True", "", 0)


def test_a_target_in_this_process_and_a_proposer_of_a_provider_start_side_by_side(tmp_path: Path) -> None:
    """What `bco init` writes: litellm's router must take a list that names our in-process models too."""
    target = {"model_name": "t", "litellm_params": {"model": "local/smollm2-135m"}}
    proposer = {"model_name": "p", "litellm_params": {"model": "anthropic/claude-opus-4-5", "api_key": "dummy"}}
    if not local.available():
        pytest.skip("the extra [local] is not installed")
    with opened(tmp_path, target, proposer, roles={"proposer": "p"}) as room:
        assert room.gateway.fingerprint("proposer")["model"] == "anthropic/claude-opus-4-5"
        assert room.gateway.capabilities("proposer")["tools"] is True
        assert room.gateway.capabilities("target")["tools"] is False
