"""What the gateway costs: calls through its Unix socket, receipts on disk, against bare aiohttp, in one run.

The model server and the caller are processes of their own, as providers and candidates are. Each is timed three times,
in turn; one line of output has the medians: {"calls", "at_once", "delay_ms", "bare_s", "gateway_s", "ratio"}. A task's
body is such as {"model": "target", "messages": [{"role": "user", "content": "question 7 ..."}]}.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from aiohttp import web

from bco_graph.config import Budget, Models, Roles
from bco_graph.gateway import Gateway
from bco_graph.ledger import Ledger
from bco_graph.protocols import Caller
from bco_graph.receipts import Receipts

CALLS, AT_ONCE, DELAY_S, ROUNDS = 1449, 64, 0.05, 3
REPLY = {
    "id": "x", "object": "chat.completion", "model": "m", "created": 0,
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}  # fmt: skip


async def serve() -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(DELAY_S)
        return web.json_response(REPLY)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.sleep(3600)


async def call(where: str, token: str, first: int) -> None:
    """Make the calls and print the seconds. `where` is a URL, or the path of a socket."""
    is_socket = where.startswith("/")
    connector = aiohttp.UnixConnector(path=where, limit=0) if is_socket else aiohttp.TCPConnector(limit=0)
    url = "http://gateway/v1/chat/completions" if is_socket else where
    room = asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {token}"}) as client:

        async def one(number: int) -> None:
            body = {"model": "target", "messages": [{"role": "user", "content": f"question {number} " + "x" * 400}]}
            async with room, client.post(url, json=body) as reply:
                if not (await reply.json()).get("choices"):
                    raise RuntimeError(f"no reply: {reply.status}")

        began = time.perf_counter()
        await asyncio.gather(*(one(first + number) for number in range(CALLS)))
        print(time.perf_counter() - began)


def timed(where: str, token: str, first: int) -> float:
    command = [sys.executable, __file__, "call", where, token, str(first)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    server = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    base = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
    with tempfile.TemporaryDirectory() as scratch:
        receipts = Receipts(Path(scratch) / "receipts.sqlite")
        params = {"model": "openai/m", "api_base": base, "api_key": "none"}
        models = Models.model_validate({"model_list": [{"model_name": "m", "litellm_params": params}]})
        with Gateway(models, Roles(target="m"), Ledger(Budget(), receipts), receipts, run_dir=Path(scratch)) as gateway:
            token = gateway.token(Caller("target", "iter_000", "bench"))
            bare, through = [], []
            for turn in range(ROUNDS):  # each turn asks other questions: none is answered from the cache
                bare.append(timed(f"{base}/chat/completions", token, turn * CALLS))
                through.append(timed(str(gateway.socket_path), token, turn * CALLS))
        receipts.close()
    server.kill()
    server.wait()
    server.stdout.close()
    seconds = {"bare_s": round(statistics.median(bare), 3), "gateway_s": round(statistics.median(through), 3)}
    ratio = round(statistics.median(through) / statistics.median(bare), 3)
    print(json.dumps({"calls": CALLS, "at_once": AT_ONCE, "delay_ms": DELAY_S * 1000, **seconds, "ratio": ratio}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve())
    elif sys.argv[1:2] == ["call"]:
        asyncio.run(call(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        main()
