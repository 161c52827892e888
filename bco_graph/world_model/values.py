"""What the world model is made of (paper section 3.2, Eq. 4): frozen values. No disk, no clock.

Document
├── preamble   text before the first section; empty in documents that this package starts
├── head       WorldModel: what is believed now; rewritten by `world_model.apply`
│   ├── beliefs       Belief: claim, conditions, confidence, status, evidence for and against, mass
│   └── experiments   Experiment: which edit probed which belief, with what verdict
└── history    HistoryRecord, one an update; only grows

Everybody else imports these names from `bco_graph.world_model`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from bco_graph.errors import DocumentError
from bco_graph.probability import Probability
from bco_graph.state import JSON, Verdict, candidate_id

BeliefKind = Literal["execution", "evaluation"]
BeliefStatus = Literal["hypothesis", "confirmed", "refuted"]
BeliefOrigin = Literal["proposer", "human"]
MARKS = ("human", "pinned", "vetoed")
"""What a belief may carry that only people set, as the document words it: added by one, kept by one, ruled out."""
LETTERS: dict[BeliefKind, str] = {"execution": "E", "evaluation": "V"}
"""First letter of a belief's id. `E` is the paper's; it shows no evaluation belief."""

BeliefId = Annotated[str, StringConstraints(pattern=r"^[EV][1-9][0-9]{0,8}$")]
Confidence = Annotated[Probability, AfterValidator(lambda value: round(abs(value), 6))]
"""In [0, 1], kept to six decimals."""
Mass = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False), AfterValidator(lambda value: round(abs(value), 3))]
"""About how many observed failures a belief explains; not negative, kept to three decimals."""
Count = Annotated[int, Field(ge=0)]


def _storable(text: Any) -> Any:
    return re.sub("[\ud800-\udfff]", "\ufffd", text) if isinstance(text, str) else text


Prose = Annotated[str, BeforeValidator(_storable)]
"""Any text. Half of a surrogate pair, which no UTF-8 file can hold, becomes U+FFFD; all else is kept."""

_ITERATION = "iter_([0-9]{1,9})"
RECORD_HEADING = rf"#{{2,3}} {_ITERATION}(?: (?:->|→) {_ITERATION})?(?:[^0-9\r\n][^\r\n]*)?"
"""A line that opens a record of HISTORY: `### iter_001 -> iter_002 distill`. The last number is its iteration."""


class Value(BaseModel):
    """Frozen and strict about names; goes to plain JSON and back without loss."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> dict[str, JSON]:
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: JSON) -> Self:
        """Raises DocumentError when the JSON was not made by `to_json`."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise DocumentError(first_problem(error), source=f"{cls.__name__} JSON") from error


def first_problem(error: ValidationError) -> str:
    """The first of a validation error's problems in one line, with the field it is about."""
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else problem["msg"]


class Evidence(Value):
    """`path` is relative to the run's evidence; `locator` is free text, such as `steps 3-6: what they show`."""

    path: Annotated[Prose, Field(min_length=1, max_length=1000)]
    locator: Prose = ""


class Belief(Value):
    """One falsifiable claim about how the environment answers to an edit (`execution`) or scores it (`evaluation`)."""

    id: BeliefId
    kind: BeliefKind
    claim: Annotated[Prose, Field(min_length=1)]
    conditions: Prose = ""
    confidence: Confidence
    status: BeliefStatus
    evidence_for: tuple[Evidence, ...] = ()
    """Oldest first, as is `evidence_against`."""
    evidence_against: tuple[Evidence, ...] = ()
    mass: Mass
    older_for: Count = 0
    """How many entries compaction took from the front of `evidence_for`; HISTORY holds them."""
    older_against: Count = 0
    origin: BeliefOrigin = "proposer"
    pinned: bool = False
    """A person keeps it: it is not merged away or removed, and its claim stays to the letter."""
    vetoed: bool = False
    """A person has ruled it out: no edit may stake it, and no operation changes it, until a person lifts that."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Those of `MARKS` that it carries."""
        carried = (self.origin == "human", self.pinned, self.vetoed)
        return tuple(mark for mark, on in zip(MARKS, carried, strict=True) if on)

    @model_validator(mode="after")
    def _letter_fits(self) -> Self:
        if self.id[0] != LETTERS[self.kind]:
            raise ValueError(f"{self.id!r} is no id of kind {self.kind!r}: those begin with {LETTERS[self.kind]}")
        return self


def _one_line(text: Any) -> Any:
    return " ".join(text.split()) if isinstance(text, str) else text


class Experiment(Value):
    """One edit that probed beliefs. `edit` is kept as one line: runs of blanks and newlines become one blank."""

    beliefs: tuple[BeliefId, ...]
    candidate: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$")] = ""
    """Empty where the document does not say it, as in the paper's."""
    edit: Annotated[Prose, BeforeValidator(_one_line)]
    verdict: Verdict
    note: Prose = ""


class WorldModel(Value):
    """The HEAD. Empty at the start of a run: a belief comes from the run's own evidence or not at all."""

    beliefs: tuple[Belief, ...] = ()
    experiments: tuple[Experiment, ...] = ()
    """Oldest first."""
    retired: tuple[BeliefId, ...] = ()
    """Ids of merged and removed beliefs, in the order they went; never given again."""
    folded: Count = 0
    """How many of the oldest experiments compaction moved to HISTORY."""

    def find(self, name: str) -> Belief | None:
        return next((belief for belief in self.beliefs if belief.id == name), None)

    @property
    def used_ids(self) -> frozenset[str]:
        return frozenset(belief.id for belief in self.beliefs) | frozenset(self.retired)


def default_heading(iteration: int) -> str:
    """`### iter_015 -> iter_016 distill` for 16; the baseline, 0, has nothing before it."""
    before = f"{candidate_id(iteration - 1)} -> " if iteration else ""
    return f"### {before}{candidate_id(iteration)} distill"


class HistoryRecord(Value):
    """What one update left behind. `text` is Markdown, kept to the letter.

    A text that opens with a record heading of its own (`## iter_015 -> iter_016 distill`) lends it to the record,
    at level 3; without one the heading is made from the iteration.
    """

    iteration: Count
    text: Prose
    heading: Prose = ""

    @property
    def markdown(self) -> str:
        """Heading and text; a record made from its iteration and this has the same heading and text."""
        return f"{self.heading}\n{self.text}"

    @model_validator(mode="before")
    @classmethod
    def _has_heading(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("heading"):
            return given
        iteration, text = given.get("iteration"), given.get("text")
        if not isinstance(iteration, int) or iteration < 0 or not isinstance(text, str):
            return given
        first, _, rest = text.partition("\n")
        if heading_iteration(first) == iteration:
            return {**given, "text": rest, "heading": f"### {first.lstrip('# ')}"}
        return {**given, "heading": default_heading(iteration)}

    @model_validator(mode="after")
    def _heading_fits(self) -> Self:
        if heading_iteration(self.heading) != self.iteration:
            raise ValueError(f"{self.heading!r} is no heading for a record of iteration {self.iteration}")
        return self


def heading_iteration(line: str) -> int | None:
    """The iteration that a record heading names last, or None when the line is no record heading."""
    match = re.fullmatch(RECORD_HEADING, line)
    return int(match[2] or match[1]) if match else None


class Document(Value):
    """HEAD and HISTORY together: what `world_model_calibration.md` holds, less the Calibration block."""

    preamble: Prose = ""
    head: WorldModel = WorldModel()
    history: tuple[HistoryRecord, ...] = ()
