"""What a command proposer may do where there is no bubblewrap but Landlock: the kernel refuses the rest.

Read: what bubblewrap would show. Written: `scaffold/` where the step may edit it, the step's own files in place, and a
HOME and TMPDIR that are thrown away. What is refused can be told from what is not there, and names, sizes and modes of
files are seen; docs/SANDBOX.md says what else Landlock leaves open.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bco_graph.evaluation import worker
from bco_graph.evaluation.shown import executable, readable
from bco_graph.proposers import landlocked
from bco_graph.proposers.step_files import SUBMISSION
from bco_graph.proposers.workspace import SCAFFOLD, writable_paths
from bco_graph.protocols import Step
from bco_graph.scratch import scratch


@dataclass(frozen=True)
class LandlockJail:
    """How commands are confined; `shown` are paths to read beside the system and our Python."""

    shown: tuple[Path, ...]
    hide: tuple[Path, ...]
    network: bool
    gateway_url: str

    def describe(self) -> str:
        return f"under Landlock, with {'the network' if self.network else 'TCP to the gateway alone'}"

    @contextmanager
    def entered(self, step: Step[Any], environment: Mapping[str, str]) -> Iterator[Place]:
        """How to start the command, for one run of it; see `Place`."""
        with scratch("command") as folder:
            home = folder / "home"
            home.mkdir()
            (folder / "tmp").mkdir()
            if known := environment.get("HOME"):
                self._link_from(home, Path(known))
            workspace = step.workspace.resolve()
            files = tuple(workspace / name for name in (SUBMISSION, *writable_paths(step)) if name != SCAFFOLD)
            rules = folder / "rules.json"
            rules.write_text(json.dumps(self._rules(step, workspace, [home, folder / "tmp", *files])), encoding="utf-8")
            made = [path for path in files if not path.exists()]
            for path in made:
                path.touch()
            own = {"HOME": str(home), "TMPDIR": str(folder / "tmp")}
            argv = [executable(), "-I", "-S", "-B", landlocked.__file__, str(rules)]
            yield Place(argv, {**environment, **own}, tuple(made))

    def _link_from(self, home: Path, known: Path) -> None:
        """What may be read of the user's HOME is found in the command's, too."""
        for path in self.shown:
            if path.is_relative_to(known) and path != known:
                link = home / path.relative_to(known)
                if not any(parent.is_symlink() for parent in [link, *link.parents]):
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(path)

    def _rules(self, step: Step[Any], workspace: Path, writable: list[Path]) -> dict[str, Any]:
        read, listed = readable([workspace.parent, *self.hide], self.shown)
        port = urlsplit(self.gateway_url).port
        if SCAFFOLD in writable_paths(step):
            writable = [workspace / SCAFFOLD, *writable]
        return {
            "program": str(Path(worker.__file__).parent), "read": [*read, str(workspace)], "listed": listed,
            "writable": [str(path) for path in writable],
            "ports": None if self.network else [port] if port is not None else [],
        }  # fmt: skip


@dataclass(frozen=True)
class Place:
    """`argv` up to the command's own, and all of its environment. The step's files are there, empty, to be written."""

    argv: list[str]
    environment: Mapping[str, str]
    _made: tuple[Path, ...]

    def collect(self) -> list[str]:
        """Take away what was made for the command and not used. Nothing else can have been made: always empty."""
        for path in self._made:
            if path.is_file() and path.stat().st_size == 0:
                path.unlink()
        return []
