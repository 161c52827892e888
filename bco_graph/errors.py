"""Every error this package raises on purpose; leaves are split by what the caller would do next.

BcoError
├── ConfigError              mend the config, the arguments or the environment, then run again
│   └── MissingExtra         install the extra that is named
├── DocumentError            mend the text at the line that is named
├── SubmissionRefused        tell the proposer the reasons and ask again
├── ToolRefused              give the model the reason as the tool's result
├── StepFailed               record a failed iteration and go on with the next
├── CandidateRefused         record a failed iteration: the edit broke an invariant before any paid call
├── SuiteBroken              stop: the grader or the loader itself failed
├── Tampered                 stop: grader, gold or tasks changed while a candidate was evaluated
├── ModelCallError           a model call gave no answer
│   ├── AuthenticationFailed   mend the key; never retried
│   ├── RequestRejected        mend the request (unknown model, bad parameter); never retried
│   ├── ContextOverflow        a real result: the prompt did not fit the model's window
│   └── UpstreamUnavailable    says nothing about the caller (429, 5xx, connection, time limit)
├── BudgetExceeded           stop the run in order; everything paid is kept
└── RunError                 look at the run folder
    ├── RunExists              resume it, name another, or overwrite it by an explicit flag
    ├── RunLocked              another process owns the folder
    ├── RunMismatch            what is asked differs from what the folder was made with
    ├── StaleCheckpoint        the run has gone on from there: fork it, or go on where it stands
    └── RunUnreadable          torn or newer than this version; left untouched
"""

from __future__ import annotations

from typing import Any


def _rebuild(cls: type[BcoError], args: tuple[Any, ...], facts: dict[str, Any]) -> BcoError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(facts)
    return error


class BcoError(Exception):
    """The root. Subclasses keep their facts as attributes and survive pickling."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ConfigError(BcoError):
    """The configuration, an argument or the environment is wrong."""


class MissingExtra(ConfigError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(f"{what} needs the extra {extra!r}: pip install 'bco-graph[{extra}]'")
        self.extra = extra


class DocumentError(BcoError):
    """A document cannot be parsed; nothing of it was taken over."""

    def __init__(self, reason: str, *, line: int | None = None, source: str = "document") -> None:
        where = source if line is None else f"{source}, line {line}"
        super().__init__(f"{where}: {reason}")
        self.reason = reason
        self.line = line
        self.source = source


class SubmissionRefused(BcoError):
    """A proposer's submission is not acceptable; `reasons` are sentences to send back."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


class ToolRefused(BcoError):
    """A tool of the `agent` proposer did nothing; the message says why and what to do instead."""


class StepFailed(BcoError):
    """A step ended without an accepted submission.

    `cause` is one word for the kind (`empty`, `refused`, `format`, `turns`, `tokens`, `overflow`, `upstream`,
    `command`, `timeout`, `tampered`, `missing`), `reasons` say it in full, `raw` is the last reply as it came, for
    the record.
    """

    def __init__(self, step: str, *, cause: str, reasons: list[str], raw: str = "") -> None:
        super().__init__(f"step {step!r} failed ({cause}): {'; '.join(reasons)}")
        self.step = step
        self.cause = cause
        self.reasons = list(reasons)
        self.raw = raw


class CandidateRefused(BcoError):
    """A staged edit broke an invariant that is checked before any paid call."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


class SuiteBroken(BcoError):
    """A suite's own loader or grader failed: no score of it can be trusted."""


class Tampered(BcoError):
    """A file that decides scores was changed during an evaluation: its results are void."""


class ModelCallError(BcoError):
    """A model call gave no answer. `status` is the upstream's HTTP status where there was one.

    `retry_after_s` is what the upstream asked to wait, in seconds; `raw` is its body as it came, for the record.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        attempts: int = 1,
        retry_after_s: float | None = None,
        raw: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.attempts = attempts
        self.retry_after_s = retry_after_s
        self.raw = raw


class AuthenticationFailed(ModelCallError):
    """401 or 403: the key is missing, wrong or not allowed."""


class RequestRejected(ModelCallError):
    """The endpoint will never take this request: unknown model, unsupported parameter."""


class ContextOverflow(ModelCallError):
    """The prompt, with the room asked for the answer, is longer than the model's context window."""


class UpstreamUnavailable(ModelCallError):
    """Rate limit, server fault, connection fault or time limit, after all retries."""


class BudgetExceeded(BcoError):
    """A call was refused before it was made because it would pass a budget."""

    def __init__(self, limit: str, *, used: float, allowed: float, reserved: float = 0) -> None:
        kept = f", of which {reserved:g} are kept for the held-out evaluation" if reserved else ""
        super().__init__(f"the budget {limit!r} is used up: {used:g} of {allowed:g}{kept}")
        self.limit = limit
        self.used = used
        self.allowed = allowed
        self.reserved = reserved


class RunError(BcoError):
    """Something about a run folder."""


class RunExists(RunError):
    """The folder already holds a run."""


class RunLocked(RunError):
    """Another live process owns the run folder."""


class RunMismatch(RunError):
    """What is asked differs from what the run was made with."""


class StaleCheckpoint(RunError):
    """A node was started from a checkpoint that its run folder has left behind."""


class RunUnreadable(RunError):
    """The folder's state is torn, or written by a newer version; nothing was changed."""
