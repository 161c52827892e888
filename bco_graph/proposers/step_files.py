"""The files by which a step is asked of, and answered by, somebody who works in the workspace by other tools."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bco_graph.errors import SubmissionRefused
from bco_graph.proposers.tree import write_file
from bco_graph.proposers.workspace import SCAFFOLD, writable_paths
from bco_graph.protocols import Step

STEP = "STEP.md"
SUBMISSION = "submission.json"
REFUSED = "REFUSED.md"
STEP_FILES = frozenset({STEP, SUBMISSION, REFUSED})
MAX_SUBMISSION_BYTES = 4_000_000

PROMPT = (
    f"Read SKILL.md, then {STEP}, in the current folder. Do the step that {STEP} describes, and write its result as "
    f"one JSON object to {SUBMISSION}. If {REFUSED} is there, it says why your last {SUBMISSION} was refused."
)


def write_step(step: Step[Any]) -> Path:
    """STEP.md: the instructions, and how to hand in. Writing it again changes nothing."""
    writable = " and ".join(f"`{name}/`" if name == SCAFFOLD else f"`{name}`" for name in writable_paths(step))
    may = f"Only {writable} and `{SUBMISSION}` may be written" if writable else f"Only `{SUBMISSION}` may be written"
    text = (
        f"{step.instructions.rstrip()}\n\n## Handing in\n\nWrite the submission to `{SUBMISSION}` in this folder: one "
        f"JSON object and nothing else. {may}; what stands elsewhere is not kept.\n"
    )
    path = step.workspace / STEP
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_file(path, text.encode("utf-8"), beside=step.workspace)
    return path


def write_refused(workspace: Path, reasons: Sequence[str]) -> None:
    text = f"The last {SUBMISSION} was refused. Mend this and write it again:\n\n"
    text += "".join(f"- {reason}\n" for reason in reasons)
    write_file(workspace / REFUSED, text.encode("utf-8", "replace"), beside=workspace)


def remove_step_files(workspace: Path, *names: str) -> None:
    for name in names:
        (workspace / name).unlink(missing_ok=True)


def read_submission(path: Path) -> str:
    """The text of a submission file; raises SubmissionRefused where there is none that can be read."""
    try:
        status = path.lstat()
    except OSError as error:
        raise SubmissionRefused([f"{path.name} was not written; the step's result is expected in it"]) from error
    if not stat.S_ISREG(status.st_mode):
        raise SubmissionRefused([f"{path.name} is no regular file"])
    if status.st_size > MAX_SUBMISSION_BYTES:
        raise SubmissionRefused(
            [f"{path.name} holds {status.st_size:,} bytes; at most {MAX_SUBMISSION_BYTES:,} are read"]
        )
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SubmissionRefused([f"{path.name} is not UTF-8: {error.reason} at byte {error.start}"]) from error
