"""The documents of a run as text: refused with the line, or read, and written back the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bco_graph.distill import parse_distill, render_distill
from bco_graph.errors import DocumentError
from bco_graph.paper_prediction import read_paper_prediction
from bco_graph.prediction import parse_prediction, render_prediction
from bco_graph.prose import escape, parse_names, render_names, unescape
from bco_graph.report.patches import diff_stat
from bco_graph.world_model import lint, parse_document, render_document
from tests.fuzz.strategies import FUZZ, broken_text, cuts, refused_or, texts
from tests.test_distill import PREDICTION
from tests.test_prediction import EARLIER
from tests.test_world_model_text import EARLIER_FORM, PAPER_FORM

DISTILL = """\
## iter_015 -> iter_016 distill (2026-01-02)
- Mode: refine
- Behavioral check (self): The second call was made.
  In 2 of 2 traces.
- Aggregate check (computed): subset +1.000
- Verdict: refuted
- Cause: belief_wrong -- the belief was wrong
- What was learned: Units can be asked for.
"""
Read = Callable[[str], Any]
KINDS: dict[str, tuple[Read, Callable[[Any], str] | None, str]] = {
    "listing": (parse_document, render_document, PAPER_FORM),
    "earlier": (parse_document, render_document, EARLIER_FORM),
    "prediction": (parse_prediction, render_prediction, render_prediction(PREDICTION)),
    "distill": (parse_distill, render_distill, DISTILL),
    "paper": (read_paper_prediction, None, EARLIER),
}
kinds = st.sampled_from(sorted(KINDS))


@FUZZ
@given(kinds.flatmap(lambda kind: st.tuples(st.just(kind), broken_text(KINDS[kind][2]))))
@example(("prediction", KINDS["prediction"][2].replace("iter_016 prediction", f"iter_{'9' * 5000} prediction")))
@example(("paper", EARLIER.replace("+0.07", "9" * 400)))
def test_a_broken_document_is_refused_by_line_or_read_and_written_back(case: tuple[str, str]) -> None:
    read, write, _ = KINDS[case[0]]
    found = refused_or(DocumentError, lambda: read(case[1]))
    if found is None or write is None:
        return
    if case[0] in ("listing", "earlier"):
        lint(found)
    assert read(write(found)) == found


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_document_cut_off_anywhere_is_refused_or_read_and_written_back(kind: str) -> None:
    read, write, text = KINDS[kind]
    for cut in cuts(text):
        found = refused_or(DocumentError, lambda cut=cut: read(cut))  # type: ignore[misc]
        if found is not None and write is not None:
            assert read(write(found)) == found


@FUZZ
@given(st.lists(texts, max_size=4).map("".join))
@example("\\" * 200_000)
def test_free_text_comes_back_from_its_escaped_form(text: str) -> None:
    assert unescape(escape(text)) == text


@FUZZ
@given(st.lists(texts, max_size=4), texts)
def test_names_come_back_from_a_list_and_other_text_is_refused(names: list[str], text: str) -> None:
    assert parse_names(render_names(names)) == names
    refused_or(ValueError, lambda: parse_names(text))


PATCH = """\
diff --git a/a.py b/a.py
index 1111111..2222222 100644
--- a/a.py
+++ b/a.py
@@ -1,2 +1,2 @@
 same
-old
+new
diff --git a/b c.bin b/b c.bin
new file mode 100644
GIT binary patch
literal 3
Kcmc
"""


@FUZZ
@given(broken_text(PATCH))
@example(PATCH.replace("-1,2", f"-{'9' * 5000},2"))
def test_a_patch_gives_counts_whatever_stands_in_it(patch: str) -> None:
    for change in diff_stat(patch):
        assert change["how"] in ("added", "removed", "changed")
        assert change["added"] is None or change["added"] >= 0
