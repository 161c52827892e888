"""What a proposer hands in at each step: the forms strangers' input is checked against.

The update step's form is `world_model.Delta`. All text is kept as it came.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from bco_graph.probability import Probability
from bco_graph.state import Cause, Mode, Verdict

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=20_000)]
Slug = Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}$")]
Change = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
"""A change of a mean score, in [-1, 1]."""


class Submission(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ProposeSubmission(Submission):
    """Methods `vanilla` and `notes`: the edit is what `scaffold/` holds against `parent`'s source."""

    parent: Text
    name: Slug
    mechanism: Text


class ProposeWithBeliefs(ProposeSubmission):
    """Method `bco`: the edit with the beliefs it stakes."""

    mode: Mode
    failure_mode: Text
    beliefs: list[Text]
    live_signature: Text


class Subset(Submission):
    """The tasks a prediction is about: named tasks, whole types, or both; never empty together.

    `expected` is the predicted change of the subset's mean score against the parent; `low` and `high` bound it.
    """

    tasks: list[str] = Field(default_factory=list)
    types: list[str] = Field(default_factory=list)
    expected: Change
    low: Change
    high: Change


class PredictSubmission(Submission):
    """Listing 2, less the fields that the proposal already states."""

    base_why: Text
    assumption_audit: str = ""
    behavioural: Text
    subset: Subset
    confidence: Probability
    downside_bound: Annotated[int, Field(ge=0)]
    """At most this many tasks that pass stably on the parent may fail."""
    upside_types: list[str]
    downside_types: list[str] = Field(default_factory=list)
    net_effect: Change
    anchors: list[str] = Field(default_factory=list)
    falsification: Text


class OwnNumbers(Submission):
    """The proposer's own figures; they count only in `grading: paper`, elsewhere differences are recorded."""

    subset_change: Change | None = None
    overall_change: Change | None = None
    regressions: int | None = None


class GradeSubmission(Submission):
    """Listing 3's reading of the outcome; the figures beside it are computed."""

    behavioural_check: Text
    behaviour_changed: Literal["yes", "no", "unclear"]
    verdict: Verdict
    cause: Cause | None = None
    unstable: list[str] = Field(default_factory=list)
    learned: Text
    belief_update: str = ""
    numbers: OwnNumbers = Field(default_factory=OwnNumbers)
