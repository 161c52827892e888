"""Submissions: strict JSON, the step's form, reasons that can be acted on, a bound on refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from bco_graph.errors import CandidateRefused, StepFailed, SubmissionRefused
from bco_graph.proposers.intake import Intake, take
from bco_graph.protocols import Step
from bco_graph.submissions import PredictSubmission


class Add(BaseModel):
    model_config = ConfigDict(extra="forbid")
    op: Literal["add"]
    claim: str


class Remove(BaseModel):
    model_config = ConfigDict(extra="forbid")
    op: Literal["remove"]
    belief: str


class Delta(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ops: list[Annotated[Add | Remove, Field(discriminator="op")]]
    mode: Literal["probe", "act"] = "act"


def step(schema: type[BaseModel]) -> Step[BaseModel]:
    return Step("update", 1, "bco", Path("nowhere"), "", schema, lambda model: model)


def reasons(schema: type[BaseModel], raw: Any) -> list[str]:
    with pytest.raises(SubmissionRefused) as caught:
        take(step(schema), raw)
    return caught.value.reasons


def test_text_and_mapping_give_the_same_and_the_submission_is_kept_as_it_came() -> None:
    raw: dict[str, Any] = {"ops": [{"op": "add", "claim": "naïve \U0001f600"}]}
    value, kept = take(step(Delta), raw)
    assert isinstance(value, Delta)
    assert kept == raw
    assert take(step(Delta), '\ufeff {"ops": [{"op": "add", "claim": "naïve \\ud83d\\ude00"}]}\n')[1] == raw


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("", "empty"),
        ("[1]", "a JSON array, not an object"),
        ('{"ops": []} {"ops": []}', "Extra data at line 1, column 13"),
        ('{"ops": [], "ops": []}', "the key 'ops' stands in one object twice"),
        ('{"ops": NaN}', "NaN is no number"),
        ('{"ops": -Infinity}', "-Infinity is no number"),
        ('{"ops": 1e999}', "1e999 is too large"),
        ('{"ops": "\\ud800"}', "surrogate"),
        ('{"ops": ' + "[" * 100_000, "nested too deeply"),
        ({"ops": float("nan")}, "not plain JSON"),
        ({"ops": {1, 2}}, "not plain JSON"),
        ("Sure! Here it is: {}", "not JSON: Expecting value at line 1, column 1"),
    ],
)
def test_what_is_not_one_strict_object_is_refused(raw: Any, why: str) -> None:
    assert why in reasons(Delta, raw)[0]


def test_each_problem_names_field_expected_given_and_nearest() -> None:
    told = reasons(PredictSubmission, {"subset": {"expected": 3, "lo": 1, "high": 1}, "anchor": [], "confidence": "x"})
    assert "base_why: missing; it is required (string)" in told
    assert "subset.expected: Input should be less than or equal to 1, not 3" in told
    assert "subset.lo: unknown field (did you mean 'low'?); known here: tasks, types, expected, low, high" in told
    assert "confidence: 'x' is not a probability: write 0.75, .75 or 75%, not 'x'" in told
    assert any(reason.startswith("anchor: unknown field (did you mean 'anchors'?)") for reason in told)


def test_fields_inside_a_tagged_union_are_explained_by_the_tag() -> None:
    told = reasons(Delta, {"ops": [{"op": "remove", "belif": "E1"}]})
    assert "ops[0].remove.belif: unknown field (did you mean 'belief'?); known here: op, belief" in told
    assert "ops[0].remove.belief: missing; it is required (string)" in told


def test_a_wrong_choice_names_the_nearest() -> None:
    assert "(did you mean 'probe'?)" in reasons(Delta, {"ops": [], "mode": "prob"})[0]
    assert "(did you mean 'remove'?)" in reasons(Delta, {"ops": [{"op": "remov"}]})[0]


def test_a_long_wrong_value_is_shown_cut_with_its_size() -> None:
    (told,) = reasons(Delta, {"ops": "x" * 5000})
    assert "(5002 characters)" in told
    assert len(told) < 300


def test_a_scaffold_that_cannot_be_staged_is_a_refusal_that_can_be_mended() -> None:
    def accept(model: BaseModel) -> str:
        raise CandidateRefused(["agent.py: is no longer a plain file"])

    with pytest.raises(SubmissionRefused, match=r"agent\.py: is no longer"):
        take(Step("propose", 1, "bco", Path("nowhere"), "", Delta, accept), '{"ops": []}')


def test_refusals_are_counted_and_the_one_past_the_bound_fails_the_step() -> None:
    intake = Intake(step(Delta), max_refusals=1)
    with pytest.raises(SubmissionRefused):
        intake.offer("{}")
    with pytest.raises(StepFailed) as caught:
        intake.offer('{"ops": 7}')
    assert caught.value.cause == "refused"
    assert caught.value.raw == '{"ops": 7}'
    assert [len(r) for r in intake.refusals] == [1, 1]
