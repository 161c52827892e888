"""Probabilities as people and models write them: 0.75, .75 and 75%, and nothing that is not one."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_DECIMAL = re.compile(r"(?:[01]?\.\d+|[01]\.?)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?) ?%", re.ASCII)


def parse_probability(value: Any) -> float:
    """A probability in [0, 1].

    Takes a float or int in range, or text: a plain decimal (`0.75`, `.75`, `1`) or a percentage (`75%`). Raises
    ValueError for everything else: booleans, NaN, numbers out of range, `75`, `3/4`, `0,75`, `high`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a probability: write 0.75, .75 or 75%")
    number = _parse_text(value.strip()) if isinstance(value, str) else float(value)
    if number is None or not math.isfinite(number) or not 0 <= number <= 1:
        raise ValueError(f"{value!r} is not a probability: write 0.75, .75 or 75%")
    return number


def _parse_text(text: str) -> float | None:
    if percent := _PERCENT.fullmatch(text):
        return float(percent[1]) / 100
    return float(text) if _DECIMAL.fullmatch(text) else None


Probability = Annotated[float, Field(ge=0, le=1), BeforeValidator(parse_probability)]
