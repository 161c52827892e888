"""What isolation costs: tasks of one model call each, in sandboxes of both kinds, against bare fork and call.

A gateway's stand-in answers on a Unix socket, at once or after 50 ms. It and each way are processes of their own; the
ways run in turn, three times. A line of output for each delay has the medians, in milliseconds a task with the start
of everything in them: {"tasks", "at_once", "delay_ms", "bare_ms", "candidate_ms", "task_ms"}.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

TASKS, AT_ONCE, ROUNDS = 1449, 64, 3
REPLY = json.dumps({"choices": [{"message": {"role": "assistant", "content": "ok"}}], "usage": {}}).encode()
AGENT = "async def solve(task, target):\n    return await target.chat(task.inputs['question'])\n"


async def serve(path: str, delay_s: float) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
        await asyncio.sleep(delay_s)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(REPLY) + REPLY)
        writer.close()

    server = await asyncio.start_unix_server(answer, path, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


def call(path: str, question: str) -> None:
    line = http.client.HTTPConnection("gateway")
    line.sock = socket.socket(socket.AF_UNIX)
    line.sock.connect(path)
    line.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": question}]}))
    os._exit(not json.loads(line.getresponse().read())["choices"])


def bare(path: str) -> None:
    running = 0
    for number in range(TASKS):
        if running == AT_ONCE:
            assert os.wait()[1] == 0
            running -= 1
        if os.fork() == 0:
            call(path, f"question {number}")
        running += 1
    for _ in range(running):
        assert os.wait()[1] == 0


def isolated(path: str, isolation: Literal["task", "candidate"]) -> None:
    # Here, so that the bare way forks a process that is as small as it can be.
    from bco_graph.config import Evaluation
    from bco_graph.evaluation import LocalExecutor, Sandbox
    from bco_graph.protocols import Interface, Job, RunResult, Task

    sandbox = Sandbox("bubblewrap", isolation)
    executor = LocalExecutor(Evaluation(concurrency=AT_ONCE), socket_path=Path(path), sandbox=sandbox)
    jobs = [Job(Task(str(n), "bench", {"question": f"question {n}"}), 0, "token") for n in range(TASKS)]

    async def check(result: RunResult) -> None:
        assert result.answer == "ok", result

    asyncio.run(executor.run(Path(path).with_name("scaffold"), Interface(), jobs, check))


def timed(way: str, path: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, __file__, way, path], check=True)
    return 1000 * (time.perf_counter() - began) / TASKS


def main() -> None:
    for delay_s in (0.0, 0.05):
        with tempfile.TemporaryDirectory() as scratch:
            Path(scratch, "scaffold").mkdir()
            Path(scratch, "scaffold", "agent.py").write_text(AGENT)
            path = str(Path(scratch, "gateway.sock"))
            server = subprocess.Popen([sys.executable, __file__, str(delay_s), path], stdout=subprocess.PIPE)
            assert server.stdout is not None
            server.stdout.readline()
            runs = [{way: timed(way, path) for way in ("bare", "candidate", "task")} for _ in range(ROUNDS)]
            server.kill()
            server.communicate()
        medians = {f"{way}_ms": round(statistics.median(run[way] for run in runs), 2) for way in runs[0]}
        print(json.dumps({"tasks": TASKS, "at_once": AT_ONCE, "delay_ms": delay_s * 1000, **medians}), flush=True)


if __name__ == "__main__":
    if not sys.argv[1:]:
        main()
    elif sys.argv[1] == "bare":
        bare(sys.argv[2])
    elif sys.argv[1] in ("task", "candidate"):
        isolated(sys.argv[2], "task" if sys.argv[1] == "task" else "candidate")
    else:
        asyncio.run(serve(sys.argv[2], float(sys.argv[1])))
