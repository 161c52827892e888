"""The whole product around scripted models: what the tests of this folder share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from bco_graph.cli import main
from bco_graph.config import RunConfig, check_config
from bco_graph.driver import Ended, drive
from bco_graph.protocols import Suite
from bco_graph.receipts import CallRecord, Receipts
from bco_graph.run_folder import RunFolder
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall
from tests.toy import AGENT, GRADE, PREDICT, PROPOSE, SHORT, ToySuite, answer

BCO = str(Path(sys.executable).parent / "bco")
TOY = Path(__file__).parents[1] / "toy.py"
TARGET, PROPOSER = "toy-model", "proposer-model"
MARKED = AGENT.replace("    reply =", "    target.trace('asked-alone')\n    reply =")

Act = Reply | str | Sequence[ToolCall]
"""One reply of the proposer's model; a sequence is the tool calls of one reply."""
When = tuple[int, str]
"""Iteration and step: first, propose, predict, grade or update."""


def submit(form: Mapping[str, Any]) -> list[ToolCall]:
    return [ToolCall("submit", dict(form))]


def write(path: str, content: str) -> ToolCall:
    return ToolCall("write_file", {"path": f"scaffold/{path}", "content": content})


def edit(path: str, old: str, new: str) -> ToolCall:
    return ToolCall("edit_file", {"path": path, "old": old, "new": new})


BARE = {"parent": "iter_000", "name": "an-edit", "mechanism": "It asks in another way."}
"""What the methods without beliefs hand in at propose."""
FIRST = {
    "op": "add", "kind": "execution", "claim": "It says too much.", "confidence": 0.6, "status": "hypothesis",
    "evidence_for": [{"path": "iterations/iter_000/traces/toy-train-0.json"}], "mass": 8, "reason": "all of them",
}  # fmt: skip
SOLVES_SHORT = [write("prompt.md", SHORT), write("agent.py", MARKED)]
USUAL: Mapping[str, Sequence[Act]] = {
    "first": [submit({"ops": [FIRST]})],
    "propose": [[*SOLVES_SHORT, *submit(PROPOSE)]],
    "predict": [submit(PREDICT)],
    "grade": [submit(GRADE)],
    "update": [submit({"ops": []})],
}
_HEADING = re.compile(r"^# Iteration (\d+): (?:the )?(\w+)", re.MULTILINE)


def step_of(body: Mapping[str, Any]) -> When | None:
    """The step that a proposer's request is about: the last one that was asked for; None where it is about none."""
    found = [match for message in body["messages"] for match in _HEADING.findall(str(message.get("content") or ""))]
    return (int(found[-1][0]), found[-1][1]) if found else None


class ScriptedProposerModel:
    """Gives out the acts of each step in their order, the last one again and again; what is not named goes as usual."""

    def __init__(self, acts: Mapping[When, Sequence[Act]]) -> None:
        self._acts = acts
        self._given: Counter[When] = Counter()
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any]) -> Reply:
        when = step_of(body)
        if when is None:
            return Reply("ok")
        with self._lock:
            at = self._given[when]
            self._given[when] += 1
        acts = self._acts.get(when) or USUAL[when[1]]
        act = acts[min(at, len(acts) - 1)]
        if isinstance(act, Reply | str):
            return act if isinstance(act, Reply) else Reply(act)
        return Reply(None, tool_calls=list(act))


def told(body: Mapping[str, Any]) -> str:
    """All that a request says to the model, as one text."""
    return "\n".join(str(message.get("content") or "") for message in body["messages"])


def raw_config(folder: Path, server: ScriptedModelServer, **changes: Any) -> dict[str, Any]:
    """A bco.yaml: the toy suite, the `agent` proposer behind the gateway, no retries; `changes` win, section by
    section."""
    base: dict[str, Any] = {
        "name": "toy", "suite": f"{TOY}:ToySuite", "suite_options": {"scaffold": str(folder / "initial")},
        "method": "vanilla", "iterations": 1,
        "models": {
            "model_list": [
                {**server.deployment(TARGET, temperature=0), "model_name": "toy"},
                {**server.deployment(PROPOSER), "model_name": "proposer"},
            ],
            "retries": 0,
        },
        "roles": {"target": "toy", "proposer": "proposer"},
        "proposer": {"kind": "agent", "protocol": "tools"},
        "evaluation": {"concurrency": 4, "timeout_s": 20.0},
    }  # fmt: skip
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) and key in base else value
    return base


@dataclass
class Played:
    """A run that was driven in this process, as it lies in its folder."""

    config: RunConfig
    server: ScriptedModelServer
    ended: Ended
    events: list[Any] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.config.run_dir

    @contextmanager
    def receipts(self) -> Iterator[Receipts]:
        with receipts_of(self.folder) as receipts:
            yield receipts

    def asked(self, iteration: int, step: str) -> list[dict[str, Any]]:
        """The proposer's requests of one step, in order."""
        bodies = [request.body for request in self.server.requests_of(PROPOSER)]
        return [body for body in bodies if step_of(body) == (iteration, step)]

    def failures(self) -> list[tuple[int, str, str]]:
        """Iteration, step and cause of each step that failed."""
        return [(e["iteration"], e["step"], e["cause"]) for e in self.events if e["type"] == "step_failed"]

    def source(self, candidate: str, path: str) -> bytes:
        return (self.folder / "iterations" / candidate / "source" / path).read_bytes()


def play(
    folder: Path, server: ScriptedModelServer, *, suite: Suite | None = None, by: Any = None, **changes: Any
) -> Played:
    """Drive a run to its end; `by` proposes instead of the scripted model; `changes` go to `raw_config`."""
    raw = raw_config(folder, server, **{"runs": str(folder / "runs"), **changes})
    config = check_config(raw)
    events: list[Any] = []
    chosen = suite or ToySuite(folder / "initial")
    ended = asyncio.run(drive(config, suite=chosen, proposer=by, subscriber=events.append))
    return Played(config, server, ended, events)


@contextmanager
def models(acts: Mapping[When, Sequence[Act]] | None = None, target: Any = answer) -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer({TARGET: target, PROPOSER: ScriptedProposerModel(acts or {})}) as server:
        yield server


@contextmanager
def receipts_of(folder: Path) -> Iterator[Receipts]:
    receipts = Receipts(RunFolder(folder).receipts)
    try:
        yield receipts
    finally:
        receipts.close()


def calls_of(folder: Path, candidate: str, task: str, repeat: int = 0) -> list[CallRecord]:
    with receipts_of(folder) as receipts:
        return receipts.calls_of(candidate, task, repeat)


@dataclass(frozen=True)
class Said:
    """How a command of the command line ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def text(self) -> str:
        """Both streams with their white space squeezed, since the terminal wraps lines."""
        return " ".join(f"{self.out} {self.err}".split())


def bco(folder: Path, *args: str, code: int | None = 0) -> Said:
    """One command in this process, in `folder`; its exit code must be `code` (None: any), and it may not raise."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(main, args)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    said = Said(done.exit_code, done.stdout, done.stderr)
    assert code is None or said.code == code, said.out + said.err
    return said


def bco_process(folder: Path, *args: str, code: int | None = 0, **environment: str) -> Said:
    """The same in a process of its own, for what its environment, its signals or its raw output decide."""
    done = subprocess.run(
        [BCO, *args], cwd=folder, env={**os.environ, **environment}, capture_output=True, check=False, timeout=240
    )
    said = Said(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert code is None or said.code == code, said.out + said.err
    assert "Traceback" not in said.err, said.err
    return said


def write_config(folder: Path, server: ScriptedModelServer, **changes: Any) -> None:
    (folder / "bco.yaml").write_text(yaml.safe_dump(raw_config(folder, server, **changes)), encoding="utf-8")


def digest(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes, to compare before and after; the lock is no content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }
