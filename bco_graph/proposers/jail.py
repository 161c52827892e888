"""What a command proposer sees of this machine: bubblewrap around it, with the workspace read-only but for its work.

Where there is none, `landlock_jail.py` takes its place.

Shown, read-only: the system, our Python, what is on PATH, where the command's programs lie, what else the command
names by an absolute path, and `proposer.readable`.
Writable: an empty /tmp and HOME, what the step may write, and the workspace's top, where new files are thrown away but
for the step's results. Nothing else of the run, no other run, no suite. docs/SANDBOX.md says more.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bco_graph.config import ProposerConfig
from bco_graph.errors import ConfigError
from bco_graph.evaluation import landlock
from bco_graph.evaluation.sandbox import closed_system, left_open, strongest
from bco_graph.evaluation.shown import executable, python_binds, python_folders, system_binds, to_hide
from bco_graph.proposers import jailed
from bco_graph.proposers.landlock_jail import LandlockJail
from bco_graph.proposers.step_files import STEP_FILES, SUBMISSION
from bco_graph.proposers.workspace import SCAFFOLD, writable_paths
from bco_graph.protocols import Step

_TOP = ".jail-"
_INSIDE = "/run/bco-graph"
_FOR_PROGRAMS = ("passwd", "group", "nsswitch.conf", "ssl", "pki", "ca-certificates", "ca-certificates.conf")
_FOR_NETWORK = ("hosts", "host.conf", "gai.conf", "services", "protocols")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Jail:
    """How commands are confined; made by `find_jail`."""

    shown: tuple[Path, ...]
    hide: tuple[Path, ...]
    network: bool
    gateway_url: str
    gateway_socket: Path | None

    def describe(self) -> str:
        return f"in bubblewrap, with {'the network' if self.network else 'the gateway alone to reach'}"

    @contextmanager
    def entered(self, step: Step[Any], environment: Mapping[str, str]) -> Iterator[Top]:
        """The workspace's top as the command sees it, for one run of the command; see `Top`."""
        workspace = step.workspace.resolve()
        for left in workspace.parent.glob(f"{_TOP}*"):
            shutil.rmtree(left, ignore_errors=True)  # of a run that was killed
        folder = Path(tempfile.mkdtemp(prefix=_TOP, dir=workspace.parent))
        try:
            yield Top.lay(folder, workspace, step, environment, self._before(workspace, environment), self._launcher())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _before(self, workspace: Path, environment: Mapping[str, str]) -> list[str]:
        """bubblewrap's command up to the workspace. Later mounts lie over earlier ones."""
        argv = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
        argv += ["--cap-drop", "ALL", "--tmpfs", "/tmp"]
        argv += ["--share-net"] if self.network else []
        if home := environment.get("HOME"):
            argv += ["--tmpfs", home]
        ours = python_folders()
        argv += [*system_binds(), *python_binds(ours)]
        argv += [w for name, file in _etc(network=self.network).items() for w in ("--ro-bind-try", str(file), name)]
        theirs = [path for path in self.shown if not any(path.is_relative_to(known) for known in (*ours, Path("/usr")))]
        argv += [word for path in theirs for word in ("--ro-bind", str(path), str(path))]
        for folder in to_hide([workspace.parent, *self.hide], [Path("/usr"), *ours, *theirs]):
            argv += ["--tmpfs", str(folder)]
        argv += [*closed_system(), "--ro-bind", jailed.__file__, f"{_INSIDE}/jailed.py"]
        if self.gateway_socket is not None:
            argv += ["--ro-bind", str(self.gateway_socket), f"{_INSIDE}/gateway.sock"]
        return argv

    def _launcher(self) -> list[str]:
        """What bubblewrap starts, up to the argv that is to be run."""
        port = urlsplit(self.gateway_url).port
        forwards = not self.network and self.gateway_socket is not None and port is not None
        way = f"{port}:{_INSIDE}/gateway.sock" if forwards else "-"
        return ["--", executable(), "-I", "-S", "-B", f"{_INSIDE}/jailed.py", way]


@dataclass(frozen=True)
class Top:
    """The workspace's top level, laid anew for one run: what stands there is mounted over it, read-only; the step's own
    files are copies, so that they can be replaced as well as written."""

    folder: Path
    workspace: Path
    copied: tuple[str, ...]
    argv: list[str]
    environment: Mapping[str, str]

    @classmethod
    def lay(
        cls,
        folder: Path,
        workspace: Path,
        step: Step[Any],
        environment: Mapping[str, str],
        before: Sequence[str],
        after: Sequence[str],
    ) -> Top:
        writable = writable_paths(step)
        copied = (*STEP_FILES, *(name for name in writable if name != SCAFFOLD))
        argv = [*before, "--bind", str(folder), str(workspace)]
        for path in sorted(workspace.iterdir()):
            if path.name in copied:
                shutil.copyfile(path, folder / path.name, follow_symlinks=False)
            else:
                how = "--bind" if path.name == SCAFFOLD and SCAFFOLD in writable else "--ro-bind"
                argv += [how, str(path), str(path)]
        argv += ["--remount-ro", "/", "--chdir", str(workspace), *after]
        return cls(folder, workspace, copied, argv, environment)

    def collect(self) -> list[str]:
        """Take what the step may leave over into the workspace; the paths of what else was made, which is not kept."""
        mine = (SUBMISSION, *(name for name in self.copied if name not in STEP_FILES))
        for name in mine:
            path = self.folder / name
            if path.is_symlink() or path.is_file():
                path.replace(self.workspace / name)
        known = {path.name for path in self.workspace.iterdir()} | set(self.copied)
        extra = [path for path in self.folder.iterdir() if path.name not in known]
        made = [*extra, *(inner for path in extra if not path.is_symlink() for inner in path.rglob("*"))]
        return sorted(path.relative_to(self.folder).as_posix() for path in made)


def find_jail(
    config: ProposerConfig,
    environment: Mapping[str, str],
    *,
    hide: Sequence[Path],
    gateway_url: str,
    gateway_socket: Path | None,
) -> Jail | LandlockJail | None:
    """How this machine can confine a command; None where it cannot, or is not to. Raises ConfigError for `required`,
    and for a readable path that is not there."""
    readable = [Path(path).expanduser().absolute() for path in config.readable]
    if missing := [str(path) for path in readable if not path.exists()]:
        raise ConfigError(f"proposer.readable names {', '.join(missing)}, which does not exist")
    if config.sandbox == "off":
        return None
    found = strongest()
    if found.name != "bubblewrap" and config.sandbox == "required":
        raise ConfigError(
            f"proposer.sandbox is required and there is less than bubblewrap: {found.reason}. Install bubblewrap and "
            "allow user namespaces, or set proposer.sandbox to auto or off to run the command with what there is"
        )
    if found.name == "none":
        log.warning("the proposer's command is not confined, it has this user's files and network: %s", found.reason)
        return None
    home = environment.get("HOME")
    programs = _programs(config.command, environment.get("PATH", ""), home)
    shown = tuple(dict.fromkeys([*programs, *readable, *(path.resolve() for path in readable)]))
    if found.name == "landlock":
        log.warning(
            "the proposer's command is confined by Landlock only, which leaves open %s: %s",
            left_open(landlock.abi()), found.reason,
        )  # fmt: skip
        shown = (*shown, *(path for path in _etc(network=config.network).values() if path.exists()))
        return LandlockJail(shown, tuple(hide), config.network, gateway_url)
    return Jail(shown, tuple(hide), config.network, gateway_url, gateway_socket)


def _etc(*, network: bool) -> dict[str, Path]:
    """What is shown of /etc, and which file each really is where a link of the machine's would lead out of the jail."""
    names = [*_FOR_PROGRAMS, *(_FOR_NETWORK if network else ())]
    files = {f"/etc/{name}": Path("/etc", name) for name in names}
    return {**files, **({"/etc/resolv.conf": Path("/etc/resolv.conf").resolve()} if network else {})}


def _programs(command: Iterable[str], path: str, home: str | None) -> list[Path]:
    """The folders on PATH, where the programs that the command's words name really lie, and absolute paths."""
    folders = [Path(entry) for entry in path.split(os.pathsep) if entry.startswith("/")]
    for word in command:
        folders += [Path(word)] if word.startswith("/") else []
        found = shutil.which(word, path=path) if word and " " not in word else None
        if found is not None:
            folders += [Path(found).absolute().parent, *_installation(Path(found).resolve())]
    # PATH may name a folder that this user may not look at, where `Path.exists` raises.
    outside = [folder for folder in folders if os.access(folder, os.F_OK) and str(folder) not in ("/", home)]
    return list(dict.fromkeys(folder for folder in outside if not folder.is_relative_to("/usr")))


def _installation(program: Path) -> list[Path]:
    """The folder of a program; of one in a virtual environment, all of it and the Python that it uses."""
    venv = program.parent.parent
    if not (venv / "pyvenv.cfg").is_file():
        return [program.parent]
    return [venv, (venv / "bin" / "python").resolve().parents[1]]
