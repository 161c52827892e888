"""What the gateway's litellm lane costs: `gateway.complete` against bare `litellm.acompletion`, in one run.

Each arm has a process of its own in which it was warmed up. One line of output with the medians of the turns: {"calls",
"at_once", "delay_ms", "bare_s", "gateway_s", "ratio"}.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.bench.gateway_arms import gateway, messages, server

CALLS, AT_ONCE, DELAY_S, TURNS = 200, 16, 0.05, 7

Ask = Callable[[int], Awaitable[Any]]


async def _turn(ask: Ask, first: int) -> float:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            if (await ask(number))["choices"][0]["message"]["content"] != "ok":
                raise RuntimeError("no reply")

    began = time.perf_counter()
    await asyncio.gather(*(one(first + number) for number in range(CALLS)))
    return time.perf_counter() - began


async def _turns(ask: Ask) -> None:
    """One turn per line of input; its seconds are a line of output."""
    for turn, _ in enumerate(sys.stdin):
        print(await _turn(ask, turn * CALLS), flush=True)


def arm(name: str, base: str) -> None:
    if name == "bare":
        from bco_graph.gateway.library import litellm

        module, params = litellm(), {"model": "openai/m", "api_base": base, "api_key": "none"}
        asyncio.run(_turns(lambda number: module.acompletion(**params, messages=messages(number))))
        return
    from bco_graph.protocols import Caller

    caller = Caller("target", "iter_000", "bench")
    with gateway(base, lane="litellm") as opened:
        asyncio.run(_turns(lambda number: opened.complete(caller, {"messages": messages(number)})))


def main() -> None:
    seconds: dict[str, list[float]] = {"bare": [], "gateway": []}
    with server(DELAY_S) as base:
        command, pipe = [sys.executable, "-m", "tests.bench.gateway_litellm"], subprocess.PIPE
        arms = {name: subprocess.Popen([*command, name, base], stdin=pipe, stdout=pipe, text=True) for name in seconds}
        for _ in range(TURNS + 1):
            for name, process in arms.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("turn\n")
                process.stdin.flush()
                seconds[name].append(float(process.stdout.readline()))
        for process in arms.values():
            process.communicate()
    bare_s, gateway_s = (statistics.median(seconds[name][1:]) for name in ("bare", "gateway"))  # the first warms up
    figures = {"bare_s": round(bare_s, 3), "gateway_s": round(gateway_s, 3), "ratio": round(gateway_s / bare_s, 3)}
    print(json.dumps({"calls": CALLS, "at_once": AT_ONCE, "delay_ms": DELAY_S * 1000, **figures}))


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else arm(*sys.argv[1:])
