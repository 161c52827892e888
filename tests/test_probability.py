"""What counts as a probability, and what does not."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from bco_graph.probability import Probability, parse_probability


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0.75", 0.75), (".75", 0.75), ("0.", 0.0), ("1", 1.0), ("1.0", 1.0), ("0", 0.0), ("75%", 0.75),
        ("75 %", 0.75), ("100%", 1.0), ("0.5%", 0.005), ("  0.3\n", 0.3), (0.2, 0.2), (0, 0.0), (1, 1.0),
    ],
)  # fmt: skip
def test_a_probability_is_read_as_people_write_it(written: Any, value: float) -> None:
    assert parse_probability(written) == value
    assert type(parse_probability(written)) is float


@pytest.mark.parametrize(
    "written",
    [
        "75", "3/4", "0,75", "high", "", "-0.1", "1.01", "101%", "0.5 or so", "about 0.5", "0.5 0.6", "1e-1", "nan",
        "+0.5", "٠.٥", "0.5%%", True, False, float("nan"), float("inf"), -0.01, 1.0001, 75, None, [0.5],
        Decimal("0.5"),
    ],
)  # fmt: skip
def test_what_is_no_probability_is_refused_and_never_guessed(written: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a probability: write 0\.75, \.75 or 75%"):
        parse_probability(written)


@settings(deadline=None)
@given(st.floats(0, 1).map(lambda value: round(value, 6)))
def test_a_plain_decimal_reads_back_as_the_number_it_was(value: float) -> None:
    assert parse_probability(f"{value:.6f}") == value


def test_the_annotated_type_checks_the_fields_of_a_model() -> None:
    class Bet(BaseModel):
        confidence: Probability

    assert Bet.model_validate({"confidence": "60%"}).confidence == 0.6
    with pytest.raises(ValidationError, match="is not a probability"):
        Bet.model_validate({"confidence": "likely"})
