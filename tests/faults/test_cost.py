"""Money and calls: caps that hold for all roles, prices that are known or refused, one retry layer, usage kept raw."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bco_graph.config import Deployment
from bco_graph.gateway.prices import price_of
from bco_graph.testing import Reply
from tests.faults.play import (
    BARE,
    PROPOSER,
    TARGET,
    Act,
    When,
    bco,
    models,
    play,
    raw_config,
    submit,
    write,
    write_config,
)
from tests.gateway_room import JOB, opened, says
from tests.toy import SHORT, WORDS, answer

PRICES = {"input_cost_per_token": 1e-4, "output_cost_per_token": 2e-4}
PER_CALL_USD = 10 * 1e-4 + 5 * 2e-4


def priced(folder: Path, server: Any) -> dict[str, Any]:
    """The `models` section with a price for both roles."""
    listed = raw_config(folder, server)["models"]["model_list"]
    limits = {TARGET: 50, PROPOSER: 50}
    for deployment in listed:
        name = deployment["litellm_params"]["model"].removeprefix("openai/")
        deployment["model_info"] = PRICES
        deployment["litellm_params"]["max_tokens"] = limits[name]
    return {"model_list": listed}


def test_a_cap_in_money_without_a_price_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    """Never taken for a price of 0: the advice names where prices go, and the cap that needs none."""
    with models() as server:
        write_config(tmp_path, server, budget={"usd": 1.0})
        said = bco(tmp_path, "run", "bco.yaml", code=2)
        assert server.requests == []
    assert "no price is known for the model 'openai/toy-model'" in said.text
    assert "model_info.input_cost_per_token" in said.text
    assert "budget.tokens" in said.text
    assert not (tmp_path / "runs/toy/run.json").exists()


def test_a_cap_in_money_holds_for_proposer_and_target_together(tmp_path: Path) -> None:
    """Prices given: what both were paid for stays below the cap, and the run ends because of it."""
    cap = 21 * PER_CALL_USD
    acts: dict[When, list[Act]] = {
        (n, "propose"): [[write("prompt.md", SHORT + "\n" * n), *submit({**BARE})]] for n in range(1, 5)
    }
    with models(acts) as server:
        run = play(tmp_path, server, iterations=4, models=priced(tmp_path, server),
                   budget={"usd": cap, "reserve_heldout": False})  # fmt: skip
        asked = len(server.requests)
    with run.receipts() as receipts:
        spent = {row["role"]: row["usd"] for row in receipts.spend()}
    assert run.ended.stop == "budget"
    assert set(spent) == {"target", "proposer"}
    assert sum(spent.values()) == pytest.approx(asked * PER_CALL_USD)
    assert sum(spent.values()) <= cap


def test_cached_tokens_are_counted_once_streamed_or_not_and_the_cost_follows_from_the_stored_usage(
    tmp_path: Path,
) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 900}}
    prices = {**PRICES, "cache_read_input_token_cost": 1e-5}

    async def ask(base_url: str, token: str, stream: bool) -> None:
        body = {**says("hello"), "model": "any", "stream": stream}
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{base_url}/chat/completions", json=body, headers=headers) as reply,
        ):
            assert reply.status == 200
            await reply.read()

    with models(target=lambda body: Reply("hi", usage=usage)) as server:
        deployment = {**server.deployment(TARGET), "model_info": prices}
        with opened(tmp_path / "run", deployment, cache=False) as room:
            for stream in (False, True):
                asyncio.run(ask(room.gateway.base_url, room.gateway.token(JOB), stream))
            plain, streamed = room.calls
    counts = ("prompt_tokens", "cached_tokens", "completion_tokens", "usd")
    assert [getattr(plain, name) for name in counts] == [getattr(streamed, name) for name in counts]
    stored = json.loads(plain.response)["usage"]
    assert stored["prompt_tokens_details"]["cached_tokens"] == 900
    price = price_of(Deployment.model_validate(deployment))
    assert price is not None
    again = price.usd(prompt_tokens=1000, completion_tokens=50, cached_tokens=900)
    assert plain.usd == pytest.approx(again, abs=1e-9)
    assert plain.usd == pytest.approx(100 * 1e-4 + 900 * 1e-5 + 50 * 2e-4, abs=1e-9)


def test_there_is_one_retry_layer_whoever_asks(tmp_path: Path) -> None:
    """`retries: 2` is three requests for a call, through scaffold, gateway and library; the wait asked for is kept."""
    waits = iter([1, 0])

    def busy(body: dict[str, Any]) -> Reply:
        if "fig" not in str(body["messages"]):
            return answer(body)
        wait = next(waits, 0)
        return Reply("overloaded", status=503, headers={"Retry-After": str(wait)} if wait else {})

    with models(target=busy) as server:
        run = play(tmp_path, server, iterations=0, models={"retries": 2})
        said = [re.search(r"word is: (\w+)", str(request.body["messages"])) for request in server.requests]
        at = [request.at for request in server.requests if "fig" in str(request.body["messages"])]
    counts = Counter(found[1] for found in said if found)
    assert counts == {**dict.fromkeys(WORDS["train"], 1), "fig": 3}
    assert at[1] - at[0] >= 1
    with run.receipts() as receipts:
        (call,) = receipts.calls_of("iter_000", "toy-train-0", 0)
    assert (call.attempts, call.status) == (3, "UpstreamUnavailable")


def test_a_budget_too_small_for_a_second_look_says_so_before_and_after_and_is_never_passed(tmp_path: Path) -> None:
    """Room for the baseline and less than one candidate more: the estimate says how far, the end why."""
    with models() as server:
        write_config(tmp_path, server, iterations=5, budget={"calls": 12, "reserve_heldout": False})
        warned = bco(tmp_path, "estimate", "bco.yaml").text
        ended = bco(tmp_path, "run", "bco.yaml", code=None)
        asked = len(server.requests)
        status = bco(tmp_path, "status", "runs/toy", "--json").json
    assert "budget.calls 12 allows at most 0 of 5 iterations" in warned
    assert "12 calls allow 0 of 5 proposals: the baseline and each candidate take 8" in ended.text
    assert "a budget is used up" in ended.text
    assert "--set budget.LIMIT=N" in ended.text
    assert (status["state"], status["stop"]) == ("stopped", "budget")
    assert asked <= 12
