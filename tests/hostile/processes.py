"""Processes, limits and ends: forks, daemons, loops, hogs, exits, signals, tracing, namespaces, clocks."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.hostile.hands import Hands


def fork_bomb(hands: Hands) -> None:
    """Bounded: what is tested is that none of them is left."""
    for _ in range(hands.rng.choice([5, 40])):
        if os.fork() == 0:
            if hands.rng.random() < 0.5:
                os.fork()
            time.sleep(300)
            os._exit(0)


def daemon_on_the_pipes(hands: Hands) -> None:
    """Leaves its group and session and holds every pipe open."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 32):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            until = time.monotonic() + 300
            while time.monotonic() < until:
                try:
                    os.write(1, b"still here\n")
                except OSError:
                    pass
                time.sleep(0.05)
        os._exit(0)
    os.wait()


def vanishing_chain(hands: Hands) -> None:
    """Each process is gone before anybody can have listed it."""
    until = time.monotonic() + 3
    if os.fork() == 0:
        while time.monotonic() < until:
            if os.fork():
                os._exit(0)
            os.setsid()
        time.sleep(300)


def deaf_loop(hands: Hands) -> None:
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    if hands.rng.random() < 0.5:
        os.closerange(0, 4096)
    if hands.rng.random() < 0.3:
        threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=False).start()
    while True:
        pass


def sleep_for_ever(hands: Hands) -> None:
    while True:
        try:
            time.sleep(300)
        except BaseException:
            pass


def memory_hog(hands: Hands) -> None:
    kept = []
    try:
        while True:
            kept.append(bytearray(b"x" * (1 << hands.rng.randint(18, 24))))
    except MemoryError:
        if hands.rng.random() < 0.3:
            time.sleep(300)
        kept.clear()


def shared_memory_left(hands: Hands) -> None:
    libc = ctypes.CDLL(None)
    for key in range(4711, 4715):
        found = libc.shmget(key, 4096, 0o666)
        if found >= 0:
            libc.shmat.restype = ctypes.c_void_p
            address = libc.shmat(found, None, 0)
            hands.found(ctypes.string_at(address, 40))
        made = libc.shmget(key, 4096, 0o1666)
        if made >= 0:
            libc.shmat.restype = ctypes.c_void_p
            secret = str(hands.inputs.get("secret", "")).encode()
            ctypes.memmove(libc.shmat(made, None, 0), secret, len(secret))
    libc.semget(4711, 1, 0o1666)
    libc.msgget(4711, 0o1666)


def end_at_once(hands: Hands) -> None:
    way = hands.rng.randrange(9)
    if way == 0:
        os._exit(hands.rng.choice([0, 1, 70, 255]))
    elif way == 1:
        sys.exit(hands.rng.choice([None, 0, "a text", 3]))
    elif way == 2:
        os.abort()
    elif way == 3:
        ctypes.string_at(0)
    elif way == 4:
        os.kill(os.getpid(), hands.rng.choice([9, 15, 11, 19, 34]))
    elif way == 5:
        os.killpg(0, signal.SIGKILL)
    elif way == 6:
        os.execv("/bin/sh", ["sh", "-c", "echo '{\"answer\": 1}' >&3; sleep 300"])
    elif way == 7:
        raise KeyboardInterrupt
    else:
        raise GeneratorExit("at import")


def unprintable_error(hands: Hands) -> None:
    class UnprintableError(BaseException):
        def __str__(self) -> str:
            raise type(self)

        __repr__ = __str__

        @property  # type: ignore[misc]
        def __class__(self):  # type: ignore[no-untyped-def]
            raise SystemExit("asked")

    raise UnprintableError


def signals_around(hands: Hands) -> None:
    me = {os.getpid()}
    for pid in [1, os.getppid(), *hands.pids(), -1]:
        if pid in me:
            continue
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1):
            try:
                os.kill(pid, number)
            except OSError:
                pass


def trace_others(hands: Hands) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for pid in [1, os.getppid(), *hands.pids()]:
        if pid == os.getpid():
            continue
        for request in (16, 0x4206):
            if libc.ptrace(request, pid, None, None) == 0:
                hands.say(f"traced {pid}")
        for part in ("mem", "maps", "environ", "syscall", "stack"):
            hands.read(f"/proc/{pid}/{part}")
        local = ctypes.create_string_buffer(64)
        vector = (ctypes.c_size_t * 2)(ctypes.addressof(local), 64)
        remote = (ctypes.c_size_t * 2)(id(hands), 64)
        if libc.process_vm_readv(pid, vector, 1, remote, 1, 0) > 0:
            hands.found(local.raw)


def new_namespaces(hands: Hands) -> None:
    """A namespace of its own may be had; it must open nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    libc.unshare(0x10000000 | hands.rng.choice([0, 0x20000, 0x20000 | 0x40000000, 0x20000000 | 0x20000]))
    for path in ("/tmp", "/scaffold", "/usr", "/", "/proc", "/dev"):
        libc.umount2(path.encode(), 2)
        libc.mount(None, path.encode(), None, 32 | 4096, None)
        libc.mount(b"proc", path.encode(), b"proc", 0, None)
    libc.chroot(b"/proc/1/root")
    for path in hands.canaries:
        hands.read(path)
        try:
            os.close(os.open(path, os.O_WRONLY))
            hands.say(f"breach opened {path} in a namespace of its own")
        except OSError:
            pass
    for kind in ("mnt", "pid", "net", "user", "ipc"):
        for pid in hands.pids():
            try:
                libc.setns(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY), 0)
            except OSError:
                pass
    for path in hands.canaries:
        hands.read(path)
    os._exit(0)


def clocks_and_limits(hands: Hands) -> None:
    try:
        time.clock_settime(time.CLOCK_REALTIME, 0)
        hands.say("breach set the clock")
    except OSError:
        pass
    for kind in range(16):
        _, hard = resource.getrlimit(kind)
        for wanted in (resource.RLIM_INFINITY, hard + 1 if hard > 0 else 1):
            try:
                resource.setrlimit(kind, (wanted, wanted))
                if hard not in (wanted, resource.RLIM_INFINITY):
                    hands.say(f"breach raised the limit {kind}")
            except (OSError, ValueError):
                pass
    for pid in hands.pids():
        try:
            resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))
        except OSError:
            pass
        try:
            os.sched_setaffinity(pid, {0})
            os.setpriority(os.PRIO_PROCESS, pid, 19)
        except OSError:
            pass
    for name, text in (("oom_score_adj", "-1000"), ("uid_map", "0 0 4294967295"), ("loginuid", "0")):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError:
            pass
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches"):
        try:
            os.close(os.open(path, os.O_WRONLY))
            hands.say(f"breach opened {path}")
        except OSError:
            pass


def threads_without_end(hands: Hands) -> None:
    gc.disable()
    for _ in range(hands.rng.choice([10, 100])):
        threading.Thread(target=time.sleep, args=(300,), daemon=hands.rng.random() < 0.5).start()


PIECES = (
    fork_bomb, daemon_on_the_pipes, vanishing_chain, deaf_loop, sleep_for_ever, memory_hog, shared_memory_left,
    end_at_once, unprintable_error, signals_around, trace_others, new_namespaces, clocks_and_limits,
    threads_without_end,
)  # fmt: skip
