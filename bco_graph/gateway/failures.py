"""Upstream failures as this package's errors, by status and code.

One table for all lanes. The text of an error is looked at for one thing only: some servers report an overflow of the
context window as a plain 400 without a code. The text of an answer is never looked at.
"""

from __future__ import annotations

import math
from email.utils import parsedate_to_datetime
from time import time

from bco_graph.errors import (
    AuthenticationFailed,
    ContextOverflow,
    ModelCallError,
    RequestRejected,
    UpstreamUnavailable,
)

_OVERFLOW_CODES = frozenset({"context_length_exceeded", "context_window_exceeded"})
_OVERFLOW_TEXTS = (
    "maximum context length",
    "context window",
    "context length exceeded",
    "prompt is too long",
    "input is too long",
    "exceeds the available context size",
)
_MAY_PASS = frozenset({408, 409, 425, 429})


def failure(
    message: str, *, status: int | None, code: str | None = None, retry_after_s: float | None = None, raw: str = ""
) -> ModelCallError:
    """The error that a status (None: there was no answer) and the body's `error.code` stand for."""
    kind: type[ModelCallError]
    if status in (401, 402, 403) or code == "insufficient_quota":
        kind = AuthenticationFailed
    elif status in (400, 413, 422) and (code in _OVERFLOW_CODES or _tells_overflow(message)):
        kind = ContextOverflow
    elif status is not None and 300 <= status < 500 and status not in _MAY_PASS:
        kind = RequestRejected
    else:
        kind = UpstreamUnavailable
    return kind(message, status=status, retry_after_s=retry_after_s, raw=raw)


def _tells_overflow(message: str) -> bool:
    lowered = message.lower()
    return any(text in lowered for text in _OVERFLOW_TEXTS)


def retry_after_s(header: str | None) -> float | None:
    """Seconds from now that a Retry-After header asks for, as a number or a date; None where it says neither."""
    if not header:
        return None
    try:
        asked_s = float(header)
    except ValueError:
        try:
            asked_s = parsedate_to_datetime(header).timestamp() - time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, asked_s) if math.isfinite(asked_s) else None
