"""What the gateway's benches share: a model server and a caller in processes of their own, and a gateway between.

A request is such as {"model": "target", "messages": [{"role": "user", "content": "question 7 xxxx..."}]}, about 0.5 KB.
Arms are timed in turn and their medians compared, so that what else the machine does meets all of them. Run a bench as
`python -m tests.bench.gateway_call` in the repository.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}
USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
REPLY = {"id": "x", "object": "chat.completion", "model": "m", "created": 0, "choices": [CHOICE], "usage": USAGE}


def messages(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"question {number} " + "x" * 400}]


@contextmanager
def server(delay_s: float) -> Iterator[str]:
    """The base URL of a model server that answers after so many seconds."""
    process = subprocess.Popen([sys.executable, __file__, "serve", str(delay_s)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with closing(process.stdout):
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        process.kill()
        process.wait()


@contextmanager
def gateway(base: str, **model_info: Any) -> Iterator[Any]:
    from bco_graph.config import Budget, Models, Roles
    from bco_graph.gateway import Gateway
    from bco_graph.ledger import Ledger
    from bco_graph.receipts import Receipts

    params = {"model": "openai/m", "api_base": base, "api_key": "none"}
    entry = {"model_name": "m", "litellm_params": params, "model_info": model_info}
    models = Models.model_validate({"model_list": [entry]})
    with tempfile.TemporaryDirectory() as folder, closing(Receipts(Path(folder) / "receipts.sqlite")) as receipts:
        ledger, roles = Ledger(Budget(), receipts), Roles(target="m")
        with Gateway(models, roles, ledger, receipts, run_dir=Path(folder)) as opened:
            yield opened


def timed(where: str, token: str, first: int, calls: int, at_once: int) -> float:
    """Seconds that a caller in a process of its own takes; `where` is a URL, or the path of a socket."""
    command = [sys.executable, __file__, "call", where, token, str(first), str(calls), str(at_once)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


async def _serve(delay_s: float) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        await request.read()
        await asyncio.sleep(delay_s)
        return web.json_response(REPLY)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.sleep(3600)


async def _call(where: str, token: str, first: int, calls: int, at_once: int) -> None:
    is_socket = where.startswith("/")
    connector = aiohttp.UnixConnector(path=where, limit=0) if is_socket else aiohttp.TCPConnector(limit=0)
    url = f"{'http://gateway/v1' if is_socket else where}/chat/completions"
    room = asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {token}"}) as client:

        async def one(number: int) -> None:
            async with room, client.post(url, json={"model": "target", "messages": messages(number)}) as reply:
                if not (await reply.json()).get("choices"):
                    raise RuntimeError(f"no reply: {reply.status}")

        began = time.perf_counter()
        await asyncio.gather(*(one(first + number) for number in range(calls)))
        print(time.perf_counter() - began)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(_serve(float(sys.argv[2])))
    else:
        asyncio.run(_call(sys.argv[2], sys.argv[3], *(int(number) for number in sys.argv[4:])))
