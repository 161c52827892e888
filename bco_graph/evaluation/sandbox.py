"""Where a worker runs: inside bubblewrap where that works, else unconfined, and then it says so.

Inside, a candidate sees the system's programs and libraries, the Python that runs us, its own source, the worker with
its entry for graphs and the gateway's socket, all read-only; an empty /tmp; no network; no variable but the few named
here.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bco_graph.errors import ConfigError
from bco_graph.evaluation import worker

Isolation = Literal["task", "candidate", "none"]
"""`task`: own namespaces for each task, nothing of one is seen by another; `candidate`: one sandbox around all tasks
of a candidate, which share its /tmp; `none`: a separate process only."""

PROBE_TIMEOUT_S = 20.0
_WORKER = Path(worker.__file__)
_GRAPH_ENTRY = _WORKER.with_name("graph_entry")
_ROOTS_IN_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
"""Parts of /proc that root may write, which a candidate is when root runs it: the kernel asks for the user there, not
for a capability, and bubblewrap itself leaves them open then."""
_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
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


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What confines candidates; `reason` says why it is not more, and is empty when it is all there is."""

    name: Literal["bubblewrap", "none"]
    isolation: Isolation
    reason: str = ""

    def describe(self) -> str:
        what = {
            "task": "bubblewrap, with namespaces of its own for each task",
            "candidate": "bubblewrap around each candidate, whose tasks share one /tmp",
            "none": "none: candidates run as plain processes, with network and this user's files in reach",
        }[self.isolation]
        return f"{what} ({self.reason})" if self.reason else what

    def launch(self, folder: Path, socket_path: Path, *, hide: Sequence[Path] = ()) -> Launch:
        """`folder` is the executor's own and holds `scaffold/` and an empty `work/`; `hide` are folders of this
        machine that are shown empty, wherever they would be visible. Unconfined, nothing can be hidden."""
        if self.name == "none":
            return Launch(
                argv=[sys.executable, *_FLAGS, str(_WORKER)],
                environment=_environment(str(folder / "work")), cwd=str(folder / "work"), isolation=self.isolation,
                scaffold=str(folder / "scaffold"), socket=str(socket_path), work=str(folder / "work"), keep=[],
            )  # fmt: skip
        binds = ["--ro-bind", str(folder / "scaffold"), "/scaffold"]
        if socket_path.is_socket():
            binds += ["--ro-bind", str(socket_path), "/run/gateway.sock"]
        return Launch(
            argv=[*_bubblewrap(binds, hide), *_PYTHON],
            environment=_environment("/tmp"), cwd="/", isolation=self.isolation,
            scaffold="/scaffold", socket="/run/gateway.sock", work="/tmp", keep=_below_tmp(),
        )  # fmt: skip


def pick_sandbox(mode: Literal["auto", "required", "off"] = "auto") -> Sandbox:
    """The strongest sandbox that works here, found out by starting it once in this process's life.

    Logs a warning when there is none, but for `off`; raises ConfigError then for `required`.
    """
    if mode == "off":
        return Sandbox("none", "none", "evaluation.sandbox is off")
    sandbox = _strongest()
    if sandbox.name == "none" and mode == "required":
        raise ConfigError(
            f"evaluation.sandbox is required and there is none: {sandbox.reason}. Install bubblewrap and allow user "
            "namespaces, or set evaluation.sandbox to auto or off to run candidates unconfined"
        )
    if sandbox.reason:
        log.warning("sandbox: %s", sandbox.describe())
    return sandbox


@functools.cache
def _strongest() -> Sandbox:
    if not sys.platform.startswith("linux"):
        return Sandbox("none", "none", f"bubblewrap runs on Linux only, not on {sys.platform}")
    if shutil.which("bwrap") is None:
        return Sandbox("none", "none", "the program bwrap of bubblewrap is not on PATH")
    argv = [*_bubblewrap([], ()), *_PYTHON, "--probe", *_below_tmp()]
    try:
        done = subprocess.run(
            argv, env=_environment("/tmp"), stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Sandbox("none", "none", f"bubblewrap does not start: {error}")
    found = done.stdout.decode("utf-8", errors="replace").strip()
    if done.returncode or not found:
        said = done.stderr.decode("utf-8", errors="replace").strip()
        return Sandbox("none", "none", f"bubblewrap does not work: {said or f'exit status {done.returncode}'}")
    if found != "task":
        return Sandbox("bubblewrap", "candidate", f"no namespaces for tasks: {found}")
    return Sandbox("bubblewrap", "task")


_PYTHON = [sys.executable, *_FLAGS, "/worker.py"]


def _environment(home: str) -> dict[str, str]:
    """All that a candidate's process is given. It is bubblewrap's own environment too: /proc would show that."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": home,
        "PYTHONHASHSEED": "0",
    }


def _bubblewrap(binds: Sequence[str], hide: Sequence[Path]) -> list[str]:
    """The command up to the program. Later mounts lie over earlier ones; the root is closed last."""
    shown = _python_folders()
    argv = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
    argv += ["--hostname", "candidate", "--tmpfs", "/tmp", "--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM_FOLDERS:
        folder = Path("/", name)
        if folder.is_symlink():
            argv += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            argv += ["--ro-bind", str(folder), str(folder)]
    for path in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"):
        argv += ["--ro-bind-try", path, path]
    for folder in shown:
        argv += ["--ro-bind", str(folder), str(folder)]
    for link, to in _links_to_python(shown):
        argv += ["--symlink", to, link]
    for folder in _to_hide(hide, [Path("/usr"), *shown]):
        argv += ["--tmpfs", str(folder), "--remount-ro", str(folder)]
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    for name in _ROOTS_IN_PROC:
        argv += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    for file in (_WORKER, _GRAPH_ENTRY):
        argv += ["--ro-bind", str(file), f"/{file.name}"]
    argv += [*binds, "--remount-ro", "/", "--chdir", "/tmp", "--"]
    return argv


def _python_folders() -> list[Path]:
    """Folders outside of /usr that hold our Python and its packages, as they are named and as they resolve."""
    named = [Path(prefix) for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)]
    found: list[Path] = []
    for folder in [*named, *(prefix.resolve() for prefix in named)]:
        if not any(folder.is_relative_to(known) for known in [Path("/usr"), *found]):
            found.append(folder)
    return found


def _links_to_python(shown: Sequence[Path]) -> list[tuple[str, str]]:
    """The links that lead from our executable to a file that is shown, each with what it points to."""
    links = []
    path = Path(sys.executable)
    while path.is_symlink():
        to = path.readlink()
        if not any(path.is_relative_to(folder) for folder in [Path("/usr"), *shown]):
            links.append((str(path), str(to)))
        path = Path(os.path.normpath(path.parent / to))
    return links


def _to_hide(hide: Sequence[Path], shown: Sequence[Path]) -> list[Path]:
    """Suites and their gold answers lie in our package: a candidate sees it empty, this copy and an installed one."""
    package = _WORKER.parents[1]
    installed = [Path(sysconfig.get_path(name), package.name) for name in ("purelib", "platlib")]
    folders = [package, *installed, *hide]
    both = dict.fromkeys(form for folder in folders for form in (folder.absolute(), folder.resolve()))
    seen = [path for path in both if path.is_dir() and any(path.is_relative_to(folder) for folder in shown)]
    # A folder inside of a hidden one is gone already, and could not be mounted over.
    return [path for path in seen if not any(other in path.parents for other in seen)]


def _below_tmp() -> list[str]:
    return [str(folder) for folder in _python_folders() if folder.is_relative_to("/tmp")]
