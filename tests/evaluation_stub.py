"""A gateway's Unix socket with canned answers, and the scaffolds that the executor's tests run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bco_graph.config import Evaluation
from bco_graph.evaluation import LocalExecutor, Sandbox
from bco_graph.protocols import Interface, Job, RunResult, Task


@dataclass
class StubGateway:
    """Answers with the last message in capitals; `fail N` gives HTTP status N. Keeps what it was asked."""

    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Authorization header and body of each completion."""
    beats: int = 0
    """Requests for /beat: signs of life of a process that should be dead some time."""
    beating: asyncio.Event = field(default_factory=asyncio.Event)
    most_at_once: int = 0
    """Completions asked for while others waited."""
    _at_once: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            if "/beat" in head[0]:
                self.beats += 1
                if self.beats == 5:
                    self.beating.set()
                return
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            self.requests.append((headers["authorization"], body))
            said = body["messages"][-1]["content"]
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            await asyncio.sleep(0.5 if said == "slow" else 0)
            self._at_once -= 1
            status = int(said.removeprefix("fail ")) if said.startswith("fail ") else 200
            reply = json.dumps(_reply(status, said)).encode()
            # Chunked, as some servers answer.
            writer.write(f"HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n{len(reply):x}\r\n".encode())
            writer.write(reply + b"\r\n0\r\n\r\n")
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def _reply(status: int, said: str) -> dict[str, Any]:
    if status != 200:
        return {"error": {"message": "try later", "type": "UpstreamUnavailable"}}
    content = None if said == "nothing" else said.upper()
    return {"choices": [{"message": {"role": "assistant", "content": content}}], "usage": {"total_tokens": 3}}


@asynccontextmanager
async def serve(path: Path) -> AsyncIterator[StubGateway]:
    gateway = StubGateway()
    server = await asyncio.start_unix_server(gateway.handle, path)
    try:
        yield gateway
    finally:
        server.close()
        await server.wait_closed()


def write_scaffold(folder: Path, agent: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.py").write_text(agent, encoding="utf-8")
    return folder


def job(name: str, *, repeat: int = 0, **inputs: Any) -> Job:
    """A job whose inputs hold its own name as `kind`; its token is `key-NAME-REPEAT`."""
    return Job(Task(name, "toy", {"kind": name, **inputs}), repeat, f"key-{name}-{repeat}")


async def run_all(executor: LocalExecutor, source: Path, jobs: Sequence[Job]) -> list[RunResult]:
    results: list[RunResult] = []

    async def keep(result: RunResult) -> None:
        results.append(result)

    await executor.run(source, Interface(), jobs, keep)
    return results


def executor_for(
    socket_path: Path, *, sandbox: str = "auto", import_timeout_s: float = 20.0, **settings: Any
) -> LocalExecutor:
    """`sandbox` is a mode of the config, or `landlock`, which a config gets where there is no bubblewrap."""
    chosen = Sandbox("landlock", "none") if sandbox == "landlock" else None
    settings = {"timeout_s": 20.0, "sandbox": "auto" if chosen else sandbox, **settings}
    evaluation = Evaluation.model_validate(settings)
    return LocalExecutor(evaluation, socket_path=socket_path, sandbox=chosen, import_timeout_s=import_timeout_s)
