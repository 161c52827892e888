"""What a recording holds beside the proposer's steps: what people replied, and HEADs that came from outside."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from bco_graph.receipts import dumps
from bco_graph.state import JSON, AskName


@dataclass(frozen=True)
class RecordedChange:
    """Another HEAD than the update of an iteration left: by a person between two nodes, or by a program.

    `after` is the iteration and the step (of `places.DONE`) that had ended last before it; `on` is the digest of the
    HEAD that it was made on; `record` is as the receipts have it.
    """

    after: tuple[int, str]
    on: str
    record: Mapping[str, JSON]


@runtime_checkable
class Recorded(Protocol):
    """Offered by a proposer that plays a recorded run again."""

    def reply(self, question: AskName, iteration: int, workspace: Path) -> dict[str, JSON] | None:
        """What a person replied, or None where nobody did; the scaffold that they had changed by hand lies in
        `workspace/scaffold` then."""

    def changes(self, iteration: int) -> Sequence[RecordedChange]:
        """Those after the update of an iteration, in their order."""


def digest_of(head: Mapping[str, JSON]) -> str:
    """sha256 (hex) of a HEAD as JSON."""
    return hashlib.sha256(dumps(head).encode("utf-8")).hexdigest()
