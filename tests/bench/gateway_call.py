"""What the gateway costs: calls through its Unix socket, receipts on disk, against bare aiohttp, in one run.

One line of output: {"calls", "delay_ms", "bare_s", "gateway_s", "ratio"}; a task body as the scaffolds send it, such as
{"model": "target", "messages": [{"role": "user", "content": "question 7 ..."}]}.
"""

from __future__ import annotations

import asyncio
import json
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

CALLS, AT_ONCE, DELAY_S = 1449, 64, 0.05
REPLY = {
    "id": "x", "object": "chat.completion", "model": "m", "created": 0,
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}  # fmt: skip


async def upstream() -> tuple[web.AppRunner, str]:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(DELAY_S)
        return web.json_response(REPLY)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"


async def timed(connector: aiohttp.BaseConnector, url: str, tokens: list[str]) -> float:
    room = asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(number: int) -> None:
            body = {"model": "target", "messages": [{"role": "user", "content": f"question {number} " + "x" * 400}]}
            headers = {"Authorization": f"Bearer {tokens[number]}"}
            async with room, session.post(url, json=body, headers=headers) as reply:
                assert (await reply.json())["choices"], reply.status

        began = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(CALLS)))
        return time.perf_counter() - began


async def main() -> None:
    runner, base = await upstream()
    with tempfile.TemporaryDirectory() as scratch:
        receipts = Receipts(Path(scratch) / "receipts.sqlite")
        params = {"model": "openai/m", "api_base": base, "api_key": "none"}
        models = Models.model_validate({"model_list": [{"model_name": "m", "litellm_params": params}]})
        with Gateway(models, Roles(target="m"), Ledger(Budget(), receipts), receipts, run_dir=Path(scratch)) as gateway:
            tokens = [gateway.token(Caller("target", "iter_000", str(n))) for n in range(CALLS)]
            bare = await timed(aiohttp.TCPConnector(limit=0), f"{base}/chat/completions", tokens)
            socket = aiohttp.UnixConnector(path=str(gateway.socket_path), limit=0)
            through = await timed(socket, "http://gateway/v1/chat/completions", tokens)
        receipts.close()
    await runner.cleanup()
    figures = {"calls": CALLS, "delay_ms": DELAY_S * 1000, "bare_s": round(bare, 3), "gateway_s": round(through, 3)}
    print(json.dumps({**figures, "ratio": round(through / bare, 3)}))


if __name__ == "__main__":
    asyncio.run(main())
