"""The program that runs candidates: forks a process for each task, in which the scaffold is imported and called.

One file of the standard library only, so that a sandbox can show a candidate this file and nothing else of ours, but
for the folder `graph_entry` beside it, which is loaded for scaffolds that are LangGraph apps, and `landlock.py`.

    controller --stdin--> hello line, then one JSON line per job       (at most `concurrency` at once)
    controller <-stdout-- hello, ready | failed, then started and a result per job; `fault` when this file fails
    task       --pipe---> {"begun"}, {"event"}*, {"answer"} | {"error"}, and from its guard {"exit"} | {"fault"}

No code of the scaffold runs in this process: a first import, to see that it works, is a task like any other. So the
scaffold cannot reach the inputs of another task, or the results. What makes a fork for each task cheap is that this
process imports the installed modules that the first import used, and compiles the scaffold's files: a task only
executes them. It does not fork them itself: a fork inherits memory, and here lie the inputs, tokens and output of
other tasks. The forker does, a process that was forked before the first job and is sent numbers and handles only; what
it forks are this process's children.

A task runs below a guard, which the scaffold's code never runs in. With isolation `task` the guard is the first
process of the task's own pid namespace: when it is killed, the kernel kills all that the task has started. Otherwise
the guard adopts its orphans, and who is to be killed is found by walking down from it.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import ctypes
import gc
import importlib
import importlib.util
import inspect
import io
import json
import math
import os
import resource
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from http.client import HTTPException, HTTPResponse
from importlib import machinery
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn, cast

MAX_ANSWER_BYTES = 4_000_000
MAX_DEPTH = 95
"""Of an answer or event: what is read here is written, and read, within a few lists and objects more."""
MAX_ERROR_CHARS = 2_000
MAX_EVENTS = 10_000
MAX_FILE_BYTES = 1 << 28
MAX_PROCESSES = 4_096
"""Wide, because a kernel before 5.14 counts all processes of the user, not only the task's."""
TASK_DISK_BYTES = 1 << 28
"""Size of a task's own /tmp and of its /dev/shm, with isolation `task`."""
LIMIT_NAME = "evaluation.timeout_s"

_CHUNK = 1 << 16
_TASK_NAMESPACES = 0x20000 | 0x8000000 | 0x10000000 | 0x20000000
"""CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID."""
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC = 2, 4, 0x1000, 0x4000
_PR_PDEATHSIG, _PR_DUMPABLE, _PR_SUBREAPER, _PR_NO_NEW_PRIVS = 1, 4, 36, 38
_SAID = frozenset({"begun", "modules", "answer", "error", "exit", "fault"})
_TRIAL = 0
"""Number of the first import; jobs count from 1."""
_libc = ctypes.CDLL(None, use_errno=True)
_LINUX = sys.platform == "linux"
_python_libc = ctypes.PyDLL(None, use_errno=True)
"""Keeps Python's lock while it calls."""
_python_libc.syscall.restype = ctypes.c_long

_MAX_MESSAGE = 1_000

Json = Any
Emit = Callable[[dict[str, Json]], None]


# What a scaffold sees: `solve(task, target)`


class TargetError(Exception):
    """The target gave no answer. `status` is the HTTP status, or None when the gateway was not reached."""

    def __init__(self, message: str, *, status: int | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Task:
    """What a scaffold sees of a task: `inputs`, and which `repeat` (from 0) this is."""

    __slots__ = ("inputs", "repeat")

    def __init__(self, inputs: dict[str, Json], repeat: int) -> None:
        self.inputs = inputs
        self.repeat = repeat


class Target:
    """The frozen model, reached through the gateway's Unix socket. Calls may run at the same time."""

    TargetError = TargetError

    def __init__(self, socket_path: str, token: str, emit: Emit) -> None:
        self._socket_path = socket_path
        self._token = token
        self._emit = emit

    async def chat(
        self,
        messages: Json,
        *,
        max_tokens: int | None = None,
        stop: str | list[str] | None = None,
        **params: Json,
    ) -> str:
        """Text of the model's reply; empty when it said nothing. A text is one user's message. Raises TargetError."""
        reply = await self.complete(messages, max_tokens=max_tokens, stop=stop, **params)
        choices = reply.get("choices") or [{}]
        return (choices[0].get("message") or {}).get("content") or ""

    async def complete(self, messages: Json, **params: Json) -> dict[str, Json]:
        """The reply as it came, in OpenAI's form, tool calls and usage included. Raises TargetError."""
        given = {name: value for name, value in params.items() if value is not None}
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = json.dumps({"model": "target", "messages": messages, **given}).encode()
        try:
            status, reply = _parse_reply(await self._post(body))
        except (OSError, HTTPException, ValueError) as error:
            raise TargetError(f"no reply of the gateway: {type(error).__name__}: {error}") from error
        if status == 200 and isinstance(reply, dict):
            return reply
        fault = reply.get("error") if isinstance(reply, dict) else None
        facts = fault if isinstance(fault, dict) else {"message": str(fault or reply)}
        raise TargetError(f"HTTP {status}: {facts.get('message')}", status=status, kind=str(facts.get("type") or ""))

    def trace(self, event: Json) -> None:
        """Record a JSON value in the task's trace. Raises TypeError or ValueError for what is none, or too large."""
        if len(json.dumps(event, allow_nan=False)) > MAX_ANSWER_BYTES:
            raise ValueError(f"an event has at most {MAX_ANSWER_BYTES} bytes as JSON")
        if is_too_deep(event):
            raise ValueError(f"an event has at most {MAX_DEPTH} lists and objects within one another")
        self._emit({"event": event})

    async def _post(self, body: bytes) -> bytes:
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        loop, received = asyncio.get_running_loop(), bytearray()
        with socket.socket(socket.AF_UNIX) as line:
            line.setblocking(False)
            await loop.sock_connect(line, self._socket_path)
            await loop.sock_sendall(line, head.encode() + body)
            while chunk := await loop.sock_recv(line, _CHUNK):
                received += chunk
        return bytes(received)


class _Received:
    """Received bytes in the place of the socket that http.client reads from."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def _parse_reply(content: bytes) -> tuple[int, Json]:
    response = HTTPResponse(cast(socket.socket, _Received(content)))
    response.begin()
    text = response.read().decode("utf-8", errors="replace")
    try:
        return response.status, json.loads(text)
    except ValueError:
        if response.status == 200:
            raise
        return response.status, text


# What is kept of a task's output


class KeptBytes:
    """A stream of bytes: all of it up to `limit`, else its head and tail with a mark between them."""

    def __init__(self, limit: int) -> None:
        self._head_room = limit // 2
        self._tail_room = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, chunk: bytes) -> None:
        self._total += len(chunk)
        room = self._head_room - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._tail_room + _CHUNK:
            del self._tail[: -self._tail_room]

    def text(self) -> str:
        """Decoded as UTF-8; bytes that are none become U+FFFD."""
        if self._total <= self._head_room + self._tail_room:
            return (self._head + self._tail).decode("utf-8", errors="replace")
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        tail = bytes(self._tail[-self._tail_room :])
        for _ in range(3):
            if tail[:1] and tail[0] & 0xC0 == 0x80:
                tail = tail[1:]
        kept = len(head.encode()) + len(tail)
        return f"{head}\n[... kept {kept} of {self._total} bytes ...]\n{tail.decode('utf-8', errors='replace')}"

    def lost(self) -> bytes | None:
        """What is kept, as it came, where `text` does not hold all of it; else None."""
        whole = self._total <= self._head_room + self._tail_room
        head, tail = bytes(self._head), bytes(self._tail if whole else self._tail[-self._tail_room :])
        if self.text().count("\ufffd") <= (head + tail).count("\ufffd".encode()):
            return None
        mark = b"" if whole else b"\n[... kept %d of %d bytes ...]\n" % (len(head) + len(tail), self._total)
        return head + mark + tail


class KeptEvents:
    """Events in order: all of them up to a count and a size, else the first and the last with a mark between."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._head: list[Json] = []
        self._head_bytes = 0
        self._tail: deque[tuple[int, Json]] = deque()
        self._tail_bytes = 0
        self._total = 0

    def add(self, event: Json, size: int) -> None:
        self._total += 1
        fits = self._head_bytes + size <= self._limit_bytes // 2 and len(self._head) < MAX_EVENTS // 2
        if fits and not self._tail:
            self._head.append(event)
            self._head_bytes += size
            return
        self._tail.append((size, event))
        self._tail_bytes += size
        while self._tail and self._is_full():
            self._tail_bytes -= self._tail.popleft()[0]

    def _is_full(self) -> bool:
        too_large = self._head_bytes + self._tail_bytes > self._limit_bytes
        return too_large or len(self._head) + len(self._tail) > MAX_EVENTS

    def values(self) -> list[Json]:
        kept = len(self._head) + len(self._tail)
        mark = [] if kept == self._total else [{"cut": f"kept {kept} of {self._total} events"}]
        return [*self._head, *mark, *(event for _, event in self._tail)]


def is_too_deep(value: Json) -> bool:
    """As `strict_json.is_too_deep`, which cannot be imported here."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list, tuple))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        depth += 1
    return bool(level)


def describe(error: BaseException) -> str:
    """Last line of the traceback: the exception with its message, bounded, without the middle of a long one."""
    lines = traceback.format_exception_only(type(error), error)
    line = next((line for line in lines if not line.startswith(" ")), lines[-1]).strip()
    return _bounded(line.encode("utf-8", errors="backslashreplace").decode())


def _bounded(line: str) -> str:
    if len(line) <= MAX_ERROR_CHARS + 100:
        return line
    half = MAX_ERROR_CHARS // 2
    return f"{line[:half]} [... kept {2 * half} of {len(line)} characters ...] {line[-half:]}"


# Processes


def prctl(option: int, value: int) -> None:
    if _LINUX:
        _libc.prctl(option, value, 0, 0, 0)


def processes() -> dict[int, int]:
    """Parent of each process that is alive and visible here."""
    if not _LINUX:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, check=False).stdout
        lines = [line.split() for line in listed.splitlines()]
        return {int(pid): int(parent) for pid, parent, state in lines if not state.startswith(b"Z")}
    found = {}
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        with suppress(OSError), Path(f"/proc/{pid}/stat").open("rb", buffering=0) as file:
            # pid (name) state ppid: the name may hold blanks and parentheses.
            state, parent = file.read(1024).rpartition(b")")[2].split()[:2]
            if state not in b"ZXx":
                found[pid] = int(parent)
    return found


def descendants(root: int) -> list[int]:
    parents = processes()
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found[1:]


def kill_tree(root: int, *, patience_s: float = 5.0) -> None:
    """Kill a process and everything below it, also what left its group or ignores SIGTERM.

    The root is stopped first: it adopts no more than it can have, and what it adopts is found again.
    """
    end = time.monotonic() + patience_s
    send(root, signal.SIGSTOP)
    while (alive := descendants(root)) and time.monotonic() < end:
        for pid in alive:
            send(pid, signal.SIGKILL)
        time.sleep(0.001)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)
    send(root, signal.SIGKILL)


def has_children() -> bool:
    """Whether there are any left, once those that have ended are waited for."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


_waited: dict[int, int] = {}
"""Status of each child that had to be waited for to see that it has ended."""


def ending(pid: int) -> int | None:
    """Exit status of a child that has ended, negative for a signal's number; None while it runs. `wait` comes after."""
    if not _LINUX:
        if pid not in _waited:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found == 0:
                return None
            _waited[pid] = os.waitstatus_to_exitcode(status)
        return _waited[pid]
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def wait(pid: int) -> None:
    if _waited.pop(pid, None) is None:
        os.waitpid(pid, 0)


def end_children(patience_s: float = 2.0) -> None:
    """Kill all that this process started or adopted, until nothing of it is left to be waited for.

    A chain of processes, each of which ends as soon as it has started the next, is in no listing that is taken of it;
    what is left of it is still somebody's child.
    """
    end = time.monotonic() + patience_s
    while has_children() and time.monotonic() < end:
        for pid in descendants(os.getpid()):
            send(pid, signal.SIGKILL)
        time.sleep(0.001)


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def remove_tree(folder: Path) -> None:
    """Remove a folder, also where a candidate took away the permissions. Links are not followed."""
    with suppress(OSError):
        folder.chmod(0o700)
    for parent, names, _ in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            with suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def fork_sibling(namespaces: int) -> int:
    """Fork a child of this process's parent, as the first process of the new `namespaces` (flags; 0 for none).

    Gives its pid, and 0 in the child, where Python does not know of the fork: that may set up, and fork anew, only.
    Raises OSError. The parent has to be a subreaper where the kernel's number of the system call is not known here.
    """
    number = _SYS_CLONE.get(os.uname().machine) if sys.maxsize > 1 << 32 else None
    if number is None:
        return _fork_and_leave(namespaces)
    pid = int(_python_libc.syscall(ctypes.c_long(number), ctypes.c_ulong(_CLONE_PARENT | namespaces), 0, 0, 0, 0))
    _check(int(pid < 0), "clone")
    return pid


def _fork_and_leave(namespaces: int) -> int:
    """`fork_sibling` by a process in between that ends at once, so that its child is adopted."""
    ours, theirs = os.pipe()
    if between := os.fork():
        os.close(theirs)
        os.waitpid(between, 0)
        said = os.read(ours, _MAX_MESSAGE).decode()
        os.close(ours)
        if not said.isdigit():
            raise OSError(said or "the process in between was killed")
        return int(said)
    between = os.getpid()
    os.close(ours)
    try:
        _check(_libc.unshare(namespaces), "unshare")
        pid = os.fork()
        if pid == 0:
            os.close(theirs)
            while os.getppid() == between:
                time.sleep(0.0001)
            return 0
        os.write(theirs, b"%d" % pid)
    except OSError as error:
        os.write(theirs, describe(error).encode())
    os._exit(0)


def map_user(uid: int, gid: int) -> None:
    """Be in this process's new user namespace who one was outside. Without all three, files have no owner here, and
    opening them fails with EOVERFLOW. Raises OSError."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def mount_fresh_folders(keep: Iterable[str]) -> None:
    """An empty /tmp and /dev/shm for this task; `keep` are folders below /tmp that stay as they are."""
    handles = {path: os.open(path, os.O_PATH) for path in keep}
    options = f"mode=1777,size={TASK_DISK_BYTES}".encode()
    for place in (b"/tmp", b"/dev/shm"):
        _check(_libc.mount(b"tmpfs", place, b"tmpfs", _MS_NOSUID | _MS_NODEV, options), f"mount {place.decode()}")
    for path, handle in handles.items():
        Path(path).mkdir(parents=True)
        source = f"/proc/self/fd/{handle}".encode()
        _check(_libc.mount(source, path.encode(), None, _MS_BIND | _MS_REC, None), f"bind {path}")
        os.close(handle)


def drop_capabilities() -> None:
    header = struct.pack("=Ii", 0x20080522, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unnamed_file() -> int:
    if _LINUX:
        return os.memfd_create("job")
    handle, path = tempfile.mkstemp()
    Path(path).unlink()
    return handle


def write_all(handle: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]


def write_line(handle: int, message: dict[str, Json], *, lock: threading.Lock | None = None) -> None:
    line = json.dumps(message, allow_nan=False).encode() + b"\n"
    if lock is None:
        write_all(handle, line)
    else:
        with lock:
            write_all(handle, line)


# In a task's process


def call_entry(load: Callable[[], Callable[..., Json]], task: Task, target: Target, emit: Emit) -> None:
    """Import and call the scaffold and emit its answer, or the error it ended with."""
    try:
        answer = load()(task, target)
        if inspect.isawaitable(answer):
            answer = asyncio.run(_awaited(answer))
    except BaseException as error:
        traceback.print_exc()
        emit({"error": describe(error)})
        return
    try:
        size = len(json.dumps(answer, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        emit({"error": f"the answer is not JSON: {describe(error)}"})
        return
    if is_too_deep(answer):
        emit({"error": f"the answer has more than {MAX_DEPTH} lists and objects within one another"})
    elif size > MAX_ANSWER_BYTES:
        emit({"error": f"the answer has {size} bytes as JSON; at most {MAX_ANSWER_BYTES} are taken"})
    else:
        emit({"answer": answer})


async def _awaited(value: Any) -> Json:
    return await value


def prepare_task(folder: Path, settings: dict[str, Json]) -> None:
    """Fresh folders, standard streams and limits for this process and what it starts."""
    for name, variable in (("work", None), ("home", "HOME"), ("tmp", "TMPDIR")):
        (folder / name).mkdir(parents=True)
        if variable:
            os.environ[variable] = str(folder / name)
    os.chdir(folder / "work")
    tempfile.tempdir = None  # it remembers the first TMPDIR
    open_streams()
    # The wall limit comes first for one thread; processor time also bounds many threads, and what outlives us.
    seconds = math.ceil(settings["timeout_s"]) + 1
    lower_limit(resource.RLIMIT_CORE, 0, 0)
    lower_limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES, MAX_FILE_BYTES)
    lower_limit(resource.RLIMIT_NPROC, MAX_PROCESSES, MAX_PROCESSES)
    lower_limit(resource.RLIMIT_CPU, seconds, seconds + 1)
    if settings["memory_mb"] is not None:
        lower_limit(resource.RLIMIT_AS, settings["memory_mb"] << 20, settings["memory_mb"] << 20)


def open_streams() -> None:
    """Standard output and error that take any text, a line at a time: what was printed before a kill is kept."""
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def lower_limit(kind: int, soft: int, hard: int) -> None:
    allowed = resource.getrlimit(kind)[1]
    if allowed != resource.RLIM_INFINITY:
        soft, hard = min(soft, allowed), min(hard, allowed)
    resource.setrlimit(kind, (soft, hard))


# The worker


class Running:
    """A task that runs: its guard, its pipes, and what came through them."""

    def __init__(self, number: int, pid: int, pipes: dict[str, int], settings: dict[str, Json], folder: Path) -> None:
        self.number = number
        self.pid = pid
        self.pipes = pipes
        self.folder = folder
        self.started = time.monotonic()
        self.deadline: float = self.started + settings["timeout_s" if number != _TRIAL else "import_timeout_s"]
        self.output = {name: KeptBytes(settings["max_trace_bytes"]) for name in ("stdout", "stderr")}
        self.events = KeptEvents(settings["max_trace_bytes"])
        self.said: dict[str, Json] = {}
        self.struck = False
        self._line = bytearray()

    def take(self, name: str, chunk: bytes) -> None:
        if name in self.output:
            self.output[name].add(chunk)
            return
        self._line += chunk
        if b"\n" not in chunk:
            del self._line[2 * MAX_ANSWER_BYTES :]
            return
        *lines, self._line = self._line.split(b"\n")
        for line in lines:
            self._take_line(bytes(line))

    def _take_line(self, line: bytes) -> None:
        """Once the scaffold's code runs, it may write here: it cannot say that a failure was ours."""
        try:
            # As it will be handed on, so that nothing said here can keep a result from being written.
            message = json.loads(line)
            size = len(json.dumps(message, allow_nan=False))
        except (ValueError, RecursionError):
            message, size = None, 0
        if not isinstance(message, dict) or is_too_deep(message) or size > MAX_ANSWER_BYTES + 1_000:
            self.said.setdefault("error", "the task's process wrote something else than a result")
        elif "event" in message:
            self.events.add(message["event"], size)
        elif "begun" not in self.said or "fault" not in message:
            self.said.update({key: value for key, value in message.items() if key in _SAID})

    def outcome(self, seconds: float, limit_s: float) -> dict[str, Json]:
        """Status, answer and error. An answer that came before the limit counts, whatever came after it."""
        code = self.said.get("exit")
        if "fault" in self.said:
            return {"status": "broken", "error": _bounded(str(self.said["fault"]))}
        if "error" in self.said:
            return {"status": "crashed", "error": _bounded(str(self.said["error"]))}
        if "answer" in self.said:
            return {"status": "answered", "answer": self.said["answer"], "error": ""}
        if self.struck:
            return {
                "status": "timeout",
                "error": f"the limit {LIMIT_NAME} = {limit_s:g} s struck after {seconds:.2f} s",
            }
        if code == -signal.SIGXCPU:
            text = f"the processor time of {LIMIT_NAME} = {limit_s:g} s was used up after {seconds:.2f} s"
            return {"status": "timeout", "error": text}
        return {"status": "crashed", "error": f"{_ending(code)} before it answered"}

    def trial(self, entry: str, limit_s: float) -> dict[str, Json]:
        """As `outcome`, of the first import: empty when it went well."""
        found = self.outcome(0.0, limit_s)
        if found["status"] == "broken":
            return found
        if "error" in self.said:
            return {"status": "crashed", "error": f"importing {entry} failed: {found['error']}"}
        if "modules" in self.said and not self.struck:
            return {}
        if self.struck:
            text = f"importing {entry} took longer than the limit of {limit_s:g} s for an import"
            return {"status": "timeout", "error": text}
        return {"status": "crashed", "error": f"importing {entry} ended the process: {_ending(self.said.get('exit'))}"}


def _ending(code: Json) -> str:
    if not isinstance(code, int):
        return "the task's processes were killed"
    if code >= 0:
        return f"the task's process exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the task's process was killed by {name}"


class Forker:
    """The process that forks a task's first process, in `first`, as a child of the process that made the forker."""

    def __init__(
        self, first: Callable[[int, list[int]], NoReturn], not_ours: Iterable[int], *, namespaces: int = 0
    ) -> None:
        self._line, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                prctl(_PR_PDEATHSIG, signal.SIGKILL)
                self._line.close()
                for handle in not_ours:
                    os.close(handle)
                self._serve(theirs, first, namespaces)
            finally:
                os._exit(0)
        theirs.close()

    def fork(self, number: int, handles: list[int]) -> int:
        """Pid of the new process, now a child of this one. Raises OSError when there can be none; where the forker
        itself is gone, this process ends."""
        try:
            socket.send_fds(self._line, [b"%d" % number], handles)
            said = self._line.recv(_MAX_MESSAGE)
        except ConnectionError:
            said = b""
        if not said:
            # A task has killed it. That is no failure of ours, and must not look like one.
            os._exit(71)
        if not said.isdigit():
            raise OSError(said.decode())
        return int(said)

    def end(self) -> None:
        self._line.close()
        send(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _serve(self, line: socket.socket, first: Callable[[int, list[int]], NoReturn], namespaces: int) -> None:
        while True:
            message, handles, *_ = socket.recv_fds(line, _MAX_MESSAGE, 8, socket.MSG_CMSG_CLOEXEC)
            if not message:
                return
            try:
                pid = fork_sibling(namespaces)
                if pid == 0:
                    line.close()
                    first(int(message), handles)
                said = b"%d" % pid
            except OSError as error:
                said = describe(error).encode()
            for handle in handles:
                os.close(handle)
            line.send(said)


class NoForker:
    """In the place of a forker where what it forks would not become this process's child: only Linux has that."""

    pid = 0

    def __init__(self, first: Callable[[int, list[int]], NoReturn], not_ours: Iterable[int]) -> None:
        self._first = first
        self._not_ours = not_ours

    def fork(self, number: int, handles: list[int]) -> int:
        if (pid := os.fork()) == 0:
            for handle in self._not_ours:
                os.close(handle)
            self._first(number, handles)
        return pid

    def end(self) -> None:
        pass


class Worker:
    """Takes jobs, has them forked, enforces their limits, hands back results; calls nothing of the scaffold itself."""

    def __init__(self, settings: dict[str, Json], jobs: int, results: int) -> None:
        self.settings = settings
        self.jobs = jobs
        self.results = results
        self.running: dict[int, Running] = {}
        self.own_namespaces = settings["isolation"] == "task"
        self.owner = os.getuid(), os.getgid()
        rules = settings["landlock"]
        self.jail = _beside("landlock").Jail(rules["read"], rules["listed"]) if rules else None
        self.selector = selectors.DefaultSelector()
        self.forker = self._new_forker()
        self._line = b""
        self._open = True

    def _new_forker(self) -> Forker | NoForker:
        not_ours = [self.jobs, self.results, self.selector.fileno()]
        if not _LINUX:
            return NoForker(self.first, not_ours)
        return Forker(self.first, not_ours, namespaces=_TASK_NAMESPACES if self.own_namespaces else 0)

    def try_import(self) -> bool:
        """Import the scaffold in a process of its own and say so, or say why not."""
        for left in Path(self.settings["work"]).glob("task-*"):
            remove_tree(left)  # of a worker before this one, which died
        self._start(_TRIAL, b"{}")
        (trial,) = self.running.values()
        while self.running:
            self._turn()
        failure = trial.trial(self.settings["entry"], self.settings["import_timeout_s"])
        if failure:
            printed = "".join(trial.output[name].text() for name in ("stdout", "stderr"))
            write_line(self.results, {"failed": failure, "printed": printed})
            return False
        warm_up(self.settings["scaffold"], trial.said["modules"])
        self.forker.end()
        self.forker = self._new_forker()
        write_line(self.results, {"ready": True})
        return True

    def serve(self) -> None:
        """Until the controller closes our standard input; then everything that still runs is killed."""
        os.set_blocking(self.jobs, False)
        self.selector.register(self.jobs, selectors.EVENT_READ, self.take_jobs)
        while self._open:
            self._turn()
        for task in list(self.running.values()):
            self.finish(task)
        self.forker.end()
        if not self.own_namespaces:
            end_children()

    def _turn(self) -> None:
        for key, _ in self.selector.select(self._patience()):
            if self.selector.get_map().get(key.fd) is key:
                key.data()
        for task in list(self.running.values()):
            if time.monotonic() >= task.deadline:
                task.struck = True
                self.finish(task)
            elif "watch" not in task.pipes and ending(task.pid) is not None:
                self.finish(task)

    def _patience(self) -> float | None:
        """Seconds until the next limit strikes, or until those that cannot be watched are looked at again."""
        if not self.running:
            return None
        left = min(task.deadline for task in self.running.values()) - time.monotonic()
        watched = all("watch" in task.pipes for task in self.running.values())
        return max(0.0, left if watched else min(left, 0.02))

    def take_jobs(self) -> None:
        chunk = os.read(self.jobs, _CHUNK)
        self._open = bool(chunk)
        *lines, self._line = (self._line + chunk).split(b"\n")
        for line in lines:
            self.start(json.loads(line)["job"], line)

    def start(self, number: int, job: bytes) -> None:
        try:
            self._start(number, job)
        except OSError as error:
            fault = {"status": "broken", "error": f"the task's process could not be started: {describe(error)}"}
            write_line(
                self.results,
                {"job": number, "seconds": 0.0, "stdout": "", "stderr": "", "events": [], "raw": {}} | fault,
            )

    def _start(self, number: int, job: bytes) -> None:
        pipes: dict[str, int] = {}
        given = [unnamed_file()]
        try:
            write_all(given[0], job)
            for name in ("result", "stdout", "stderr"):
                pipes[name], end = os.pipe()
                given.append(end)
                os.set_blocking(pipes[name], False)
            pid = self.forker.fork(number, given)
        except OSError:
            for handle in pipes.values():
                os.close(handle)
            raise
        finally:
            for handle in given:
                os.close(handle)
        task = self.running[pid] = Running(number, pid, pipes, self.settings, self._folder(number))
        for name in list(pipes):
            self.selector.register(pipes[name], selectors.EVENT_READ, partial(self.read, task, name))
        with suppress(OSError, AttributeError):
            pipes["watch"] = os.pidfd_open(pid)
            self.selector.register(pipes["watch"], selectors.EVENT_READ, partial(self.finish, task))
        if number != _TRIAL:
            write_line(self.results, {"job": number, "started": True})

    def _folder(self, number: int) -> Path:
        return Path(self.settings["work"], "task" if self.own_namespaces else f"task-{number}")

    def read(self, task: Running, name: str) -> bool:
        """Take what a pipe holds, at most one chunk; False when there is nothing more now or ever."""
        try:
            chunk = os.read(task.pipes[name], _CHUNK)
        except BlockingIOError:
            return False
        if chunk:
            task.take(name, chunk)
            return True
        with suppress(KeyError):
            self.selector.unregister(task.pipes[name])
        return False

    def finish(self, task: Running) -> None:
        """The task ended, or is ended here: nothing of it is left afterwards, neither processes nor files.

        Where its first process ended in order, the guard below has killed the rest already.
        """
        seconds = time.monotonic() - task.started
        status = ending(task.pid)
        in_order = status is not None and status >= 0
        if not in_order:
            self.kill(task)
        wait(task.pid)
        del self.running[task.pid]
        if not self.own_namespaces:
            if not in_order:
                self.sweep()
            remove_tree(task.folder)
        self.reap()
        for name in ("result", "stdout", "stderr"):
            # A pipe holds at most a megabyte: what comes after that is written by nobody of ours.
            for _ in range((1 << 20) // _CHUNK):
                if not self.read(task, name):
                    break
        for handle in task.pipes.values():
            with suppress(KeyError):
                self.selector.unregister(handle)
            os.close(handle)
        if task.number != _TRIAL and self._open:
            result: dict[str, Json] = {"job": task.number, "seconds": seconds, "events": task.events.values()}
            result |= {name: kept.text() for name, kept in task.output.items()}
            lost = {name: content for name, kept in task.output.items() if (content := kept.lost()) is not None}
            result["raw"] = {name: base64.b64encode(content).decode() for name, content in lost.items()}
            write_line(self.results, result | task.outcome(seconds, self.settings["timeout_s"]))

    def kill(self, task: Running) -> None:
        if not self.own_namespaces:
            # Its guard sees its end and then that of all that it leaves, which from here could be overlooked.
            end = time.monotonic() + 3.0
            while time.monotonic() < end and ending(task.pid) is None:
                for pid in descendants(task.pid):
                    send(pid, signal.SIGKILL)
                time.sleep(0.001)
            kill_tree(task.pid)
            return
        # With the first process of a pid namespace, the kernel kills all that is in it.
        with suppress(ProcessLookupError):
            os.killpg(task.pid, signal.SIGKILL)
        send(task.pid, signal.SIGKILL)

    def sweep(self) -> None:
        """Kill what belongs to no running task: it has lost its guard."""
        for pid, parent in processes().items():
            if parent == os.getpid() and pid not in self.running and pid != self.forker.pid:
                kill_tree(pid)

    def reap(self) -> None:
        if not _LINUX:
            return  # nothing is adopted there
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in self.running:
                    return
                os.waitpid(ended.si_pid, 0)

    # From here on in the forked processes of a task; these never return.

    def first(self, number: int, handles: list[int]) -> NoReturn:
        """First process of a task, the guard of the one that runs it; of the task's pid namespace, where it has one."""
        job, result, stdout, stderr = handles
        emit = partial(write_line, result, lock=threading.Lock())
        try:
            # Writing the maps of a user namespace takes it. Elsewhere other tasks could get at the handles in /proc.
            prctl(_PR_DUMPABLE, int(self.own_namespaces))
            os.setsid()
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            os.close(stdout)
            os.close(stderr)
            if self.own_namespaces:
                map_user(*self.owner)
                mount_fresh_folders(self.settings["keep"])
            else:
                prctl(_PR_PDEATHSIG, signal.SIGKILL)
                prctl(_PR_SUBREAPER, 1)
            self.guard(number, job, emit)
        except Exception as error:
            emit({"fault": f"the task's process could not be set up: {describe(error)}"})
        finally:
            os._exit(0)

    def guard(self, number: int, job: int, emit: Emit) -> None:
        pid = os.fork()
        if pid == 0:
            self.task(number, job, emit)
        os.close(job)
        while (ended := os.wait())[0] != pid:
            pass
        if not self.own_namespaces:
            if not _LINUX:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # orphans are not adopted there
            end_children()
        emit({"exit": os.waitstatus_to_exitcode(ended[1])})

    def task(self, number: int, handle: int, emit: Emit) -> NoReturn:
        folder = self._folder(number)
        try:
            try:
                prctl(_PR_NO_NEW_PRIVS, 1)
                os.setsid()
                if _LINUX:
                    drop_capabilities()
                if not self.own_namespaces:
                    prctl(_PR_PDEATHSIG, signal.SIGKILL)
                prepare_task(folder, self.settings)
                if self.jail is not None:
                    self.jail.enter([str(folder)])
            except (OSError, ValueError) as error:
                emit({"fault": f"the task's process could not be set up: {describe(error)}"})
                os._exit(0)
            emit({"begun": True})
            if number == _TRIAL:
                emit(first_import(self.settings))
            else:
                job = read_job(handle)
                target = Target(self.settings["socket"], job["token"], emit)
                call_entry(partial(import_entry, self.settings), Task(job["inputs"], job["repeat"]), target, emit)
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
        finally:
            os._exit(0)


def read_job(handle: int) -> dict[str, Json]:
    with os.fdopen(handle, "rb") as file:
        file.seek(0)
        return cast(dict[str, Json], json.loads(file.read()))


def import_entry(settings: dict[str, Json], *, check: bool = False) -> Callable[..., Json]:
    """The entry point, imported from the scaffold; a graph is built. Raises whatever the scaffold's code raises, and
    with `check`, which the first import is made with, ImportError or TypeError for what is no entry point."""
    root = settings["scaffold"]
    file, _, attribute = settings["entry"].partition(":")
    name = file.removesuffix(".py").replace("/", ".")
    # Before the scaffold is on the path: a file of it cannot take the place of what this needs.
    wrap = _graph_entry().wrap if settings["kind"] == "graph" else None
    sys.path.insert(0, root)
    module = importlib.import_module(name)
    if check:
        found = getattr(module, "__file__", None)
        if found is None or Path(found).resolve() != Path(root, file).resolve():
            raise ImportError(f"{file} is hidden by the module {name!r} of {found or 'Python'}: rename the file")
    solve = getattr(module, attribute, None)
    if wrap is not None:
        return cast(Callable[..., Json], wrap(solve, settings["graph"], where=settings["entry"]))
    if check or not callable(solve):
        _check_entry(solve, file, attribute)
    return cast(Callable[..., Json], solve)


def _check_entry(solve: Any, file: str, attribute: str) -> None:
    if not callable(solve):
        raise ImportError(f"{file} has no function {attribute!r}")
    signature = inspect.signature(solve)
    try:
        signature.bind(None, None)
    except TypeError:
        shown = f"{attribute}{signature}"
        raise TypeError(f"{file}: {shown} does not take two positional arguments (task, target)") from None


def _graph_entry() -> Any:
    """The package beside this file that turns a graph into `solve(task, target)`; needs LangGraph."""
    return _beside("graph_entry")


def _beside(name: str) -> Any:
    """The module or package of that name that lies beside this file."""
    if known := sys.modules.get(f"_bco_{name}"):
        return known
    folder = Path(__file__).with_name(name)
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    inside = [str(folder)] if folder.is_dir() else None
    spec = importlib.util.spec_from_file_location(f"_bco_{name}", file, submodule_search_locations=inside)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first_import(settings: dict[str, Json]) -> dict[str, Json]:
    """Import the scaffold; the names of the modules that this took, or the error it ended with."""
    known, environment = set(sys.modules), dict(os.environ)
    try:
        import_entry(settings, check=True)
    except BaseException as error:
        traceback.print_exc()
        return {"error": describe(error)}
    # A library may read a variable when it is imported: it is then imported after the scaffold has set it.
    same = dict(os.environ) == environment
    return {"modules": [name for name in list(sys.modules) if name not in known] if same else []}


def warm_up(root: str, modules: Json) -> None:
    """Import what is installed among some modules, and compile the scaffold's files, without running any of it."""
    own = {path.name.partition(".")[0] for path in Path(root).iterdir()}
    for name in modules if isinstance(modules, list) else ():
        if isinstance(name, str) and name not in sys.modules and name.partition(".")[0] not in own:
            with suppress(Exception, SystemExit):
                importlib.import_module(name)
    codes = {}
    for path in Path(root).rglob("*.py"):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            codes[str(path)] = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    compiled.update(codes)
    gc.collect()
    gc.freeze()


compiled: dict[str, CodeType] = {}
"""By path, the scaffold's files."""


class Compiled(machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        return compiled.get(self.path) or super().get_code(fullname)


def _find_compiled(path: str) -> machinery.FileFinder:
    """A path hook for the folders of the scaffold."""
    if not any(file.startswith(f"{path}/") for file in compiled):
        raise ImportError
    extension = (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES)
    return machinery.FileFinder(path, extension, (Compiled, machinery.SOURCE_SUFFIXES))


def probe(keep: list[str]) -> NoReturn:
    """Print `task` when a task can have its own namespaces here, else why not, and exit."""
    ours, theirs = os.pipe()
    owner = os.getuid(), os.getgid()
    prctl(_PR_SUBREAPER, 1)
    forker = os.fork()
    if forker == 0:
        try:
            if fork_sibling(_TASK_NAMESPACES) == 0:
                map_user(*owner)
                mount_fresh_folders(keep)
                drop_capabilities()
                os.write(theirs, b"task")
        except OSError as error:
            os.write(theirs, str(error).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    print(os.read(ours, _CHUNK).decode("utf-8", errors="replace"))
    sys.exit(0)


def read_line(handle: int) -> bytes:
    line = bytearray()
    while (char := os.read(handle, 1)) not in (b"\n", b""):
        line += char
    return bytes(line)


def main() -> None:
    if sys.argv[1:2] == ["--probe"]:
        probe(sys.argv[2:])
    jobs, results = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    open_streams()
    for name in ("PWD", "OLDPWD"):
        os.environ.pop(name, None)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    settings = json.loads(read_line(jobs))
    write_line(results, {"hello": True})
    sys.argv = ["worker"]
    # The end of standard input says that the controller is gone, but only once jobs are read.
    prctl(_PR_PDEATHSIG, signal.SIGKILL)
    prctl(_PR_SUBREAPER, 1)
    # Where memory runs out, the kernel ends a task and not the controller.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    # A process of the same user may not look into this one.
    prctl(_PR_DUMPABLE, 0)
    sys.path_hooks.insert(0, _find_compiled)
    if settings["kind"] == "graph":
        with suppress(ImportError):
            _graph_entry()
    try:
        worker = Worker(settings, jobs, results)
        if worker.try_import():
            prctl(_PR_PDEATHSIG, 0)
            worker.serve()
    except BaseException as error:
        traceback.print_exc()
        write_line(results, {"fault": f"the worker failed: {describe(error)}"})
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


if __name__ == "__main__":
    main()
