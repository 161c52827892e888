"""The `command` proposer: any coding-agent CLI, run in the workspace.

It reads SKILL.md and STEP.md there, edits what the step allows, and writes submission.json. A configuration for
Claude Code; docs/PROPOSERS.md has more:

    proposer:
      kind: command
      command: [claude, -p, "{prompt}", --permission-mode, acceptEdits, --allowedTools, "Read,Grep,Glob,Edit,Write"]
      environment: [ANTHROPIC_API_KEY]
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bco_graph.config import ProposerConfig, nearest
from bco_graph.errors import ConfigError, StepFailed, SubmissionRefused
from bco_graph.proposers.intake import Intake
from bco_graph.proposers.jail import find_jail
from bco_graph.proposers.running import Ended, run_program
from bco_graph.proposers.step_files import (
    PROMPT,
    REFUSED,
    STEP,
    STEP_FILES,
    SUBMISSION,
    read_submission,
    remove_step_files,
    write_refused,
    write_step,
)
from bco_graph.proposers.tree import Seal
from bco_graph.proposers.workspace import SCAFFOLD, writable_paths
from bco_graph.protocols import Caller, Step, StepResult

T = TypeVar("T")

_FIELD = re.compile(r"\{([a-z_]+)\}")
_FIELDS = ("prompt", "prompt_file", "workspace", "gateway", "token")
_ALWAYS = ("PATH", "HOME", "LANG", "TERM")


class CommandProposer:
    """Runs the command once per try; all tries of a step share `timeout_s`.

    `gateway_socket` is where a confined command reaches the gateway; `hide` are folders that it must not see.
    `token_for` gives the gateway's bearer token for a caller. `environ` is read here and not later (None: this
    process's own). Raises ConfigError for a command, placeholder or variable that cannot work.
    """

    def __init__(
        self,
        config: ProposerConfig,
        *,
        gateway_url: str,
        token_for: Callable[[Caller], str],
        gateway_socket: Path | None = None,
        hide: Sequence[Path] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._config = config
        self._gateway_url = gateway_url
        self._token_for = token_for
        self._environment = _environment(config, os.environ if environ is None else environ)
        self._secrets = {name: self._environment[name] for name in config.environment}
        self._seals: dict[str, Seal] = {}
        _check_command(config.command, self._environment.get("PATH"))
        self._jail = find_jail(
            config, self._environment, hide=hide, gateway_url=gateway_url, gateway_socket=gateway_socket
        )

    def describe(self) -> str:
        """Which program, and what confines it."""
        program = shutil.which(self._config.command[0], path=self._environment.get("PATH"))
        return f"{program or self._config.command[0]}, {self._jail.describe() if self._jail else 'not confined'}"

    async def perform(self, step: Step[T]) -> StepResult[T]:
        intake = Intake(step, self._config.max_refusals)
        deadline = time.monotonic() + self._config.timeout_s
        remove_step_files(step.workspace, SUBMISSION, REFUSED)
        seal = self._seals.setdefault(str(step.workspace), Seal(step.workspace))
        await asyncio.to_thread(seal.close, _open_paths(step))
        removed: list[str] = []
        while True:
            write_step(step)
            ended, thrown_away = await self._run(step, deadline - time.monotonic())
            removed += thrown_away
            removed += await asyncio.to_thread(_check_seal, step, seal, ended)
            _check_end(step, self._config, ended)
            try:
                accepted = self._take(step, intake, ended)
            except SubmissionRefused as refused:
                write_refused(step.workspace, refused.reasons)
                continue
            remove_step_files(step.workspace, *STEP_FILES)
            notes = {"exit_code": ended.code, "seconds": round(ended.seconds, 3), "output": ended.output}
            return intake.result(accepted, notes=notes | ({"removed": removed} if removed else {}))

    def _take(self, step: Step[T], intake: Intake[T], ended: Ended) -> tuple[T, dict[str, Any]]:
        try:
            text = read_submission(step.workspace / SUBMISSION)
        except SubmissionRefused as refused:
            intake.refuse(refused.reasons, ended.output)
        finally:
            remove_step_files(step.workspace, SUBMISSION)
        return intake.offer(text)

    async def _run(self, step: Step[Any], timeout_s: float) -> tuple[Ended, list[str]]:
        """How the command ended, and what it made in its jail that is not kept."""
        token = self._token_for(Caller(role="proposer", step=f"{step.iteration}/{step.name}"))
        values = {
            "prompt": PROMPT,
            "prompt_file": str(step.workspace.resolve() / STEP),
            "workspace": str(step.workspace.resolve()),
            "gateway": self._gateway_url,
            "token": token,
        }
        argv = [_FIELD.sub(lambda found: values.get(found[1], found[0]), word) for word in self._config.command]
        run = partial(
            run_program, cwd=step.workspace, timeout_s=max(0.0, timeout_s),
            secrets={**self._secrets, "token": token},
        )  # fmt: skip
        try:
            if self._jail is None:
                return await run(argv, environment=self._environment), []
            with self._jail.entered(step, self._environment) as place:
                ended = await run([*place.argv, *argv], environment=place.environment)
                return ended, place.collect()
        except OSError as error:
            reason = f"cannot start {argv[0]!r}: {error.strerror}; install it or mend proposer.command"
            raise StepFailed(step.name, cause="command", reasons=[reason]) from error


def _environment(config: ProposerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    if missing := [name for name in config.environment if name not in environ]:
        raise ConfigError(
            f"proposer.environment names {', '.join(map(repr, missing))}, which the environment does not have; "
            "set it before the run, or take the name out"
        )
    return {name: environ[name] for name in (*_ALWAYS, *config.environment) if name in environ}


def _check_command(command: list[str], path: str | None) -> None:
    if not command:
        raise ConfigError('proposer.kind is "command", so proposer.command must hold the argv, one word per entry')
    for word in command:
        for name in _FIELD.findall(word):
            if name not in _FIELDS and (hint := nearest(name, _FIELDS)):
                known = ", ".join(f"{{{field}}}" for field in _FIELDS)
                raise ConfigError(f"proposer.command holds the unknown field {{{name}}}{hint}; known: {known}")
    if "/" not in command[0] and "{" not in command[0] and shutil.which(command[0], path=path) is None:
        raise ConfigError(f"proposer.command starts with {command[0]!r}, which is not on PATH; install it")


def _open_paths(step: Step[Any]) -> Callable[[str], bool]:
    writable = writable_paths(step)

    def is_open(path: str) -> bool:
        return path in STEP_FILES or path in writable or (SCAFFOLD in writable and path.startswith(f"{SCAFFOLD}/"))

    return is_open


def _check_seal(step: Step[Any], seal: Seal, ended: Ended) -> list[str]:
    """Remove what was added outside of the writable paths and return it; raises StepFailed where evidence changed."""
    try:
        removed, altered = seal.remove_added(), seal.altered()
    except OSError as error:
        reason = f"the workspace can no longer be checked: {error}"
        raise StepFailed(step.name, cause="tampered", reasons=[reason], raw=ended.output) from error
    scaffold = step.workspace / SCAFFOLD
    if scaffold.is_symlink() or not scaffold.is_dir():
        altered.append(f"{SCAFFOLD}/")
    if altered:
        shown = ", ".join(altered[:10]) + (f" and {len(altered) - 10} more" if len(altered) > 10 else "")
        reason = f"the command changed or removed what it may only read: {shown}"
        raise StepFailed(step.name, cause="tampered", reasons=[reason], raw=ended.output)
    return removed


def _check_end(step: Step[Any], config: ProposerConfig, ended: Ended) -> None:
    if ended.code is None:
        reason = f"the command was killed at the step's limit of {config.timeout_s:g} s (proposer.timeout_s)"
        raise StepFailed(step.name, cause="timeout", reasons=[reason], raw=ended.output)
    if ended.code != 0 and not (step.workspace / SUBMISSION).exists():
        last = next((line for line in reversed(ended.output.splitlines()) if line.strip()), "it printed nothing")
        how = f"exit code {ended.code}" if ended.code > 0 else f"signal {-ended.code}"
        reason = f"the command ended with {how} and wrote no {SUBMISSION}; its last line: {last.strip()}"
        raise StepFailed(step.name, cause="command", reasons=[reason], raw=ended.output)
