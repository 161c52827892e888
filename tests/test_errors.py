"""The error tree: one root, facts as attributes, and every leaf survives pickling."""

from __future__ import annotations

import inspect
import pickle

import pytest

from bco_graph import errors

EXAMPLES = [
    errors.ConfigError("x"),
    errors.MissingExtra("the local model", extra="local"),
    errors.DocumentError("no id", line=3, source="doc.md"),
    errors.SubmissionRefused(["a", "b"]),
    errors.StepFailed("grade", cause="empty", reasons=["r"], raw="reply"),
    errors.CandidateRefused(["a"]),
    errors.UpstreamUnavailable("503", status=503, attempts=3),
    errors.BudgetExceeded("tokens", used=5, allowed=4),
    errors.RunLocked("x"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_survives_pickling_with_its_facts(error: errors.BcoError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_every_error_is_in_the_tree_that_is_drawn_on_top() -> None:
    drawn = errors.__doc__ or ""
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.BcoError)]
    assert len(classes) > 15
    assert [c.__name__ for c in classes if c.__name__ not in drawn] == []
