"""What is said and asked: floods, looking around for keys and others' inputs, the network, forged results."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import select
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.hostile.hands import Hands


def flood_streams(hands: Hands) -> None:
    line = hands.rng.choice([b"flood\n", b"\xff\xfe\x00" * 300, b"x" * 70_000, b"\x1b]0;title\x07\r\n" * 100])
    until = time.monotonic() + hands.rng.choice([0.1, 1.0])
    while time.monotonic() < until:
        os.write(hands.rng.choice([1, 2]), line)


def flood_events(hands: Hands) -> None:
    if hands.target is None:
        return
    event = hands.rng.choice([1, "x" * 3_000_000, [[]] * 300_000, {"\ud800": "\udfff"}, {"event": {"answer": 1}}])
    for _ in range(hands.rng.choice([3, 30_000 if isinstance(event, int) else 6])):
        hands.target.trace(event)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    hands.target.trace(deep)


def look_in_environment(hands: Hands) -> None:
    hands.found(dict(os.environ))
    for pid in ["self", "thread-self", *hands.pids()]:
        for part in ("environ", "cmdline", "mountinfo", "maps", "status", "cgroup", "attr/current", "auxv"):
            hands.read(f"/proc/{pid}/{part}")
    for path in ("/proc/keys", "/proc/mounts", "/proc/net/unix", "/proc/net/tcp", "/proc/kcore", "/proc/kallsyms"):
        hands.read(path)


def look_in_frames(hands: Hands) -> None:
    """What those who called us hold: our own task's inputs and token, and nobody else's."""
    import gc

    frame = sys._getframe()
    while frame is not None:
        hands.found(list(frame.f_locals.values()))
        frame = frame.f_back  # type: ignore[assignment]
    for value in gc.get_objects():
        if type(value) in (dict, list, tuple) and value is not hands.inputs:
            try:
                hands.found(value)
            except Exception:
                pass


def look_in_own_memory(hands: Hands) -> None:
    """Also what a process before us freed and did not wipe."""
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, mode, *_, name = line.split()
            if not mode.startswith("r") or name.startswith("[v"):
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            if end - start > 1 << 27:
                continue
            try:
                memory.seek(start)
                hands.found(memory.read(end - start))
            except (OSError, ValueError, OverflowError):
                pass


def look_for_suites(hands: Hands) -> None:
    for name in ("bco_graph", "bco_graph.benchmarks", "benchmarks", "bco_graph.suites", "tests.hostile.range"):
        try:
            module = __import__(name)
            hands.say(f"breach imported {name} of {module.__file__}")
        except ImportError:
            pass
    for start in ("/", "/run", "/usr/local", sys.prefix, os.getcwd()):
        for depth, (folder, _, names) in enumerate(os.walk(start)):
            if depth > 30:
                break
            for name in names:
                if name.endswith((".sqlite", ".jsonl", ".yaml", ".env", "gold.json", "id_ed25519")):
                    hands.read(f"{folder}/{name}")


def reach_network(hands: Hands) -> None:
    ports = [int(port) for port in hands.inputs.get("ports", [])]
    for host, port in [
        *(("127.0.0.1", port) for port in ports),
        ("10.255.255.1", 80),
        ("169.254.169.254", 80),
        ("::1", 22),
    ]:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as line:
                    line.settimeout(0.1)
                    line.connect((host, port))
                    if kind == socket.SOCK_STREAM:
                        hands.say(f"breach connected to {host}:{port}")
            except OSError:
                pass
    try:
        socket.create_connection(("example.com", 80), 0.1)
        hands.say("breach reached a name")
    except OSError:
        pass
    for name in hands.inputs.get("abstract", []):
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect("\0" + name)
                hands.say("breach reached an abstract socket of the machine")
        except OSError:
            pass


def knock_with_forged_tokens(hands: Hands) -> None:
    if hands.target is None:
        return
    own = hands.target._token
    forged = ["", "Bearer", own[:-1], own + "x", own.lower(), "bco-" + "A" * 32, "scripted", "none", own[::-1]]
    for token in forged:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(0.5)
            line.connect(hands.target._socket_path)
            body = json.dumps({"model": "target", "messages": [{"role": "user", "content": "forged token"}]})
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {token}\r\n"
            line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            if b" 200 " in line.recv(4096)[:20]:
                hands.say(f"breach the token {token!r} was taken")


def smuggle(hands: Hands) -> None:
    """Two lengths, a request in a body, other paths, other doors, broken chunks."""
    if hands.target is None:
        return
    own = hands.target._token
    inner = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer forged\r\nContent-Length: 2\r\n\r\n{}"
    )
    heads = [
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 0\r\nContent-Length: 90\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: g\r\n\r\n",
        b"GET http://169.254.169.254/latest HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n",
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer "
        + own.encode()
        + b"\r\nX: a\r\n b\r\n\r\n",
    ]
    for head in hands.rng.sample(heads, 4):
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(0.3)
            try:
                line.connect(hands.target._socket_path)
                line.sendall(head + inner)
                while said := line.recv(1 << 16):
                    hands.found(said)
                    if b"HTTP/1.1 200" in said:
                        hands.say("breach a smuggled request was answered")
            except OSError:
                pass


def giant_requests(hands: Hands) -> None:
    if hands.target is None:
        return
    size = hands.rng.choice([1 << 20, 20 << 20, 1 << 40])
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {hands.target._token}\r\n"
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(0.5)
        line.connect(hands.target._socket_path)
        line.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode())
        chunk = hands.rng.choice([b"[],", b"[[[", b'"a', b"\x00\xff"]) * 20_000
        sent = 0
        while sent < min(size, 80 << 20):
            sent += line.send(chunk[: size - sent])
        hands.found(line.recv(1 << 16))


def unfinished_requests(hands: Hands) -> None:
    if hands.target is None:
        return
    kept = []
    for _ in range(hands.rng.choice([20, 300])):
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(0.2)
        line.connect(hands.target._socket_path)
        line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Le"[: hands.rng.randint(0, 60)])
        kept.append(line)
    if hands.rng.random() < 0.5:
        time.sleep(300)


def ask_and_leave(hands: Hands) -> None:
    """Calls of its own, many at once, with broken bodies; none waits for its answer."""
    if hands.target is None:
        return
    bodies: list[Any] = [
        {"messages": []},
        [],
        {"messages": "x" * 10},
        {"model": "proposer"},
        {"messages": [{"role": 1}]},
    ]
    for body in bodies:
        content = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {hands.target._token}\r\n"
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(hands.target._socket_path)
            line.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content)


def _forged(hands: Hands) -> bytes:
    lines = [
        {"answer": "forged"}, {"exit": 0}, {"fault": "forged"}, {"begun": True}, {"modules": ["this", "antigravity"]},
        {"event": 1}, {"ready": True}, {"hello": True}, {"failed": {"status": "broken", "error": "forged"}},
    ]  # fmt: skip
    for number in range(6):
        lines.append(
            {"job": number, "status": "answered", "answer": "forged", "error": "", "seconds": 0.0, "stdout": "",
             "stderr": "", "events": [], "raw": {}}
        )  # fmt: skip
    hands.rng.shuffle(lines)
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def forge_on_every_pipe(hands: Hands) -> None:
    content = _forged(hands)
    for pid in ["self", *hands.pids()]:
        for number in range(1, 40):
            try:
                if pid == "self":
                    os.set_blocking(number, False)
                    os.write(number, content)
                    continue
                handle = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                os.write(handle, content)
            except OSError:
                pass
            os.close(handle)


def steal_from_pipes(hands: Hands) -> None:
    """Reads from all that is open, so that a line meant for somebody else is lost or seen."""
    for number in range(64):
        try:
            if number not in (1, 2) and select.select([number], [], [], 0)[0]:
                hands.found(os.read(number, 1 << 16))
        except (OSError, ValueError):
            pass


def patch_the_worker(hands: Hands) -> None:
    main = sys.modules["__main__"]
    for name in ("write_line", "call_entry", "describe", "write_all", "is_too_deep", "send", "remove_tree"):
        setattr(main, name, lambda *_, **__: {"answer": "forged"})
    main.MAX_ANSWER_BYTES = main.MAX_EVENTS = 1 << 60  # type: ignore[attr-defined]
    if hands.rng.random() < 0.5:
        json.dumps = lambda *_, **__: '{"answer": "forged"}'
    if hands.rng.random() < 0.5:
        os.write = os.fork = os._exit = lambda *_: 0  # type: ignore[assignment]
    if hands.rng.random() < 0.5:
        sys.modules.clear()


def watch_every_line(hands: Hands) -> None:
    def watch(frame: object, _: str, __: object) -> object:
        hands.found(getattr(frame, "f_locals", ""))
        return watch

    sys.settrace(watch)  # type: ignore[arg-type]
    threading.setprofile(watch)
    atexit.register(lambda: os.write(1, _forged(hands)))
    sys.excepthook = lambda *_: os._exit(0)


def answer_after_the_end(hands: Hands) -> None:
    content = _forged(hands)

    def forge() -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            for number in range(3, 32):
                try:
                    os.write(number, content)
                except OSError:
                    pass
            time.sleep(0.02)

    if hands.rng.random() < 0.5 and os.fork() == 0:
        os.setsid()
        forge()
        os._exit(0)
    threading.Thread(target=forge, daemon=hands.rng.random() < 0.5).start()


def another_loop(hands: Hands) -> None:
    async def stay() -> None:
        await asyncio.sleep(300)

    loop = asyncio.new_event_loop()
    loop.call_later(hands.rng.choice([0.01, 0.2]), loop.stop)
    loop.create_task(stay())  # noqa: RUF006
    loop.run_forever()
    asyncio.run = lambda *_, **__: "forged"  # type: ignore[assignment]


FLOODS = (flood_streams, flood_events)
LOOKING = (look_in_environment, look_in_frames, look_in_own_memory, look_for_suites)
NETWORK = (
    reach_network, knock_with_forged_tokens, smuggle, giant_requests, unfinished_requests, ask_and_leave,
)  # fmt: skip
FORGING = (
    forge_on_every_pipe, steal_from_pipes, patch_the_worker, watch_every_line, answer_after_the_end, another_loop,
)  # fmt: skip
SHARED = (_forged,)
