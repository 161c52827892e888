"""Where a worker runs: inside bubblewrap where that works, else its tasks under Landlock, else unconfined.

Inside bubblewrap, a candidate sees the system's programs and libraries, the Python that runs us, its own source, the
worker with its entry for graphs and the gateway's socket, all read-only; an empty /tmp; no network; no variable but
the few named here. docs/SANDBOX.md says what each strength covers.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bco_graph.errors import ConfigError
from bco_graph.evaluation import landlock, worker
from bco_graph.evaluation.shown import (
    below_tmp,
    executable,
    python_binds,
    python_folders,
    readable,
    system_binds,
    to_hide,
)

Isolation = Literal["task", "candidate", "none"]
"""`task`: own namespaces for each task, nothing of one is seen by another; `candidate`: one sandbox around all tasks
of a candidate, which share its /tmp; `none`: no namespaces."""

PROBE_TIMEOUT_S = 20.0
_WORKER = Path(worker.__file__)
_GRAPH_ENTRY = _WORKER.with_name("graph_entry")
_ROOTS_IN_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
"""Parts of /proc that root may write, which a candidate is when root runs it: the kernel asks for the user there, not
for a capability, and bubblewrap itself leaves them open then."""
_FLAGS = ("-P", "-s", "-B")
"""No script folder or user site on the path, no bytecode files. `-I` would also make Python deaf to PYTHONHASHSEED."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a worker, and where it finds its things as seen from inside."""

    argv: list[str]
    environment: dict[str, str]
    cwd: str
    isolation: Isolation
    scaffold: str
    socket: str
    work: str
    keep: list[str]
    """Folders below /tmp that a task's own /tmp must show."""
    landlock: Mapping[str, list[str]] | None = None
    """What a task may `read`, and of which folders it may see what is `listed`."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What confines candidates; `reason` says why it is not more, and is empty when it is all there is."""

    name: Literal["bubblewrap", "landlock", "none"]
    isolation: Isolation
    reason: str = ""

    def describe(self) -> str:
        what = {
            ("bubblewrap", "task"): "bubblewrap, with namespaces of its own for each task",
            ("bubblewrap", "candidate"): "bubblewrap around each candidate, whose tasks share one /tmp",
            ("landlock", "none"): f"Landlock for each task, which leaves open {left_open(landlock.abi())}",
        }.get(
            (self.name, self.isolation),
            "none: candidates run as plain processes, with network and this user's files in reach",
        )
        return f"{what} ({self.reason})" if self.reason else what

    def launch(self, folder: Path, socket_path: Path, *, hide: Sequence[Path] = ()) -> Launch:
        """`folder` is the executor's own and holds `scaffold/` and an empty `work/`; `hide` are folders of this
        machine that are shown empty, wherever they would be visible. Unconfined, nothing can be hidden."""
        if self.name == "bubblewrap":
            binds = ["--ro-bind", str(folder / "scaffold"), "/scaffold"]
            # To give tasks namespaces of their own, root's worker needs one that bubblewrap leaves to it.
            binds += ["--cap-drop", "ALL"] if self.isolation == "candidate" else []
            if socket_path.is_socket():
                binds += ["--ro-bind", str(socket_path), "/run/gateway.sock"]
            return Launch(
                argv=[*_bubblewrap(binds, hide), *_PYTHON],
                environment=_environment("/tmp"), cwd="/", isolation=self.isolation,
                scaffold="/scaffold", socket="/run/gateway.sock", work="/tmp", keep=below_tmp(),
            )  # fmt: skip
        rules = None
        if self.name == "landlock":
            read, listed = readable(hide)
            ours = [str(path) for path in (folder / "scaffold", _WORKER, _GRAPH_ENTRY)]
            rules = {"read": [*read, *ours], "listed": listed}
        return Launch(
            argv=[executable(), *_FLAGS, str(_WORKER)],
            environment=_environment(str(folder / "work")), cwd=str(folder / "work"), isolation=self.isolation,
            scaffold=str(folder / "scaffold"), socket=str(socket_path), work=str(folder / "work"), keep=[],
            landlock=rules,
        )  # fmt: skip


def left_open(abi: int) -> str:
    """What Landlock of an ABI does not refuse, in words."""
    gaps = ["Unix sockets that have a path", "UDP", "names and sizes of files"]
    gaps += ["TCP"] if abi < landlock.TCP_ABI else []
    gaps += ["signals to this user's processes"] if abi < landlock.SCOPE_ABI else []
    return f"{', '.join(gaps[:-1])} and {gaps[-1]}"


def pick_sandbox(
    mode: Literal["auto", "required", "off"] = "auto", isolation: Literal["task", "candidate"] = "task"
) -> Sandbox:
    """The strongest sandbox that works here, found out by starting it once in this process's life, up to the isolation
    that is asked for.

    Logs a warning when it is less than that, but for `off`; raises ConfigError then for `required`.
    """
    if mode == "off":
        return Sandbox("none", "none", "evaluation.sandbox is off")
    sandbox = strongest()
    if sandbox.name == "bubblewrap" and isolation == "candidate":
        return Sandbox("bubblewrap", "candidate")
    if sandbox.reason and mode == "required":
        raise ConfigError(
            f"evaluation.sandbox is required with evaluation.isolation {isolation!r}, and here there is only "
            f"{sandbox.describe()}. Install bubblewrap and allow user namespaces, or set evaluation.sandbox to auto to "
            "run candidates with what there is"
        )
    if sandbox.reason:
        log.warning("sandbox: %s", sandbox.describe())
    return sandbox


@functools.cache
def strongest() -> Sandbox:
    """What works here at best, tried once in this process's life."""
    if not sys.platform.startswith("linux"):
        return Sandbox("none", "none", f"bubblewrap and Landlock are there on Linux only, not on {sys.platform}")
    if shutil.which("bwrap") is None:
        return _second_best("the program bwrap of bubblewrap is not on PATH")
    argv = [*_bubblewrap([], ()), *_PYTHON, "--probe", *below_tmp()]
    try:
        done = subprocess.run(
            argv, env=_environment("/tmp"), stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return _second_best(f"bubblewrap does not start: {error}")
    found = done.stdout.decode("utf-8", errors="replace").strip()
    if done.returncode or not found:
        said = done.stderr.decode("utf-8", errors="replace").strip()
        return _second_best(f"bubblewrap does not work: {said or f'exit status {done.returncode}'}")
    if found != "task":
        return Sandbox("bubblewrap", "candidate", f"no namespaces for tasks: {found}")
    return Sandbox("bubblewrap", "task")


def _second_best(reason: str) -> Sandbox:
    abi = landlock.abi()
    if abi >= landlock.MIN_ABI:
        return Sandbox("landlock", "none", reason)
    lacking = (
        f"the kernel's Landlock has ABI {abi}, {landlock.MIN_ABI} is needed" if abi else "the kernel has no Landlock"
    )
    return Sandbox("none", "none", f"{reason}; {lacking}")


_PYTHON = [executable(), *_FLAGS, "/worker.py"]


def _environment(home: str) -> dict[str, str]:
    """All that a candidate's process is given. It is bubblewrap's own environment too: /proc would show that."""
    environment = {
        "PATH": os.pathsep.join([str(Path(executable()).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": home,
        "PYTHONHASHSEED": "0",
    }
    if sys.platform == "darwin":  # its libraries else end a process that was forked
        environment["OBJC_DISABLE_INITIALIZE_FORK_SAFETY"] = "YES"
    return environment


def _bubblewrap(binds: Sequence[str], hide: Sequence[Path]) -> list[str]:
    """The command up to the program. Later mounts lie over earlier ones; the root is closed last."""
    shown = python_folders()
    argv = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
    argv += ["--hostname", "candidate", "--tmpfs", "/tmp", *system_binds(), *python_binds(shown)]
    for folder in to_hide(hide, [Path("/usr"), *shown]):
        argv += ["--tmpfs", str(folder), "--remount-ro", str(folder)]
    argv += closed_system()
    for file in (_WORKER, _GRAPH_ENTRY):
        argv += ["--ro-bind", str(file), f"/{file.name}"]
    argv += [*binds, "--remount-ro", "/", "--chdir", "/tmp", "--"]
    return argv


def closed_system() -> list[str]:
    """bubblewrap's arguments for /proc and /dev, with nothing in them that is writable but /dev/shm."""
    argv = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    for name in _ROOTS_IN_PROC:
        argv += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    return argv
