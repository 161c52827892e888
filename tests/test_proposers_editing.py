"""Edits: exact or refused with what helps; line endings, byte order mark and last line break of the file are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bco_graph.errors import ToolRefused
from bco_graph.proposers.editing import edit

BOM = b"\xef\xbb\xbf"


def test_one_line_of_a_crlf_file_with_a_bom_changes_and_no_other_byte() -> None:
    before = BOM + b"one\r\ntwo\r\nthree\r\n"
    edited = edit(before, "two\n", "2\n")
    assert edited.content == BOM + b"one\r\n2\r\nthree\r\n"
    assert (edited.match, edited.line) == ("exact", 2)


def test_lines_that_an_edit_adds_get_the_files_line_ending() -> None:
    assert edit(b"a\r\nb\r\n", "a\n", "a\nnew\n").content == b"a\r\nnew\r\nb\r\n"
    assert edit(b"a\nb\n", "a\r\n", "a\r\nnew\r\n").content == b"a\nnew\nb\n"


def test_in_a_file_of_mixed_endings_lines_outside_of_the_change_keep_theirs() -> None:
    assert edit(b"a\r\nb\nc\r\nd\n", "a\nb\nc\nd", "a\nB\nc\nd").content == b"a\r\nB\nc\r\nd\n"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\nlast", "last", "last\nmore\n", b"a\nlast\nmore"),
        (b"a\nlast\n", "last\n", "end", b"a\nend\n"),
        (b"a\r\nlast\r\n", "last\n", "end", b"a\r\nend\r\n"),
        (b"a\nlast", "\nlast", "", b"a"),
        (b"a\nlast\n", "last\n", "", b"a\n"),
        (b"only", "only", "", b""),
    ],
)
def test_the_last_line_break_stays_as_it_was(before: bytes, old: str, new: str, after: bytes) -> None:
    assert edit(before, old, new).content == after


def test_bytes_that_are_not_utf8_are_carried_through() -> None:
    assert edit(b"\xff\xfe = 1\nx = 1\n", "x = 1", "x = 2").content == b"\xff\xfe = 1\nx = 2\n"


def test_trailing_blanks_are_looked_past_where_one_place_matches() -> None:
    edited = edit(b"def f():   \n    return 1\t\n", "def f():\n    return 1\n", "def f():\n    return 2\n")
    assert edited.content == b"def f():\n    return 2\n"
    assert edited.match == "loose"


def test_the_last_line_matches_loosely_though_it_has_no_line_break() -> None:
    assert edit(b"a\nlast", "last\n", "end\n").content == b"a\nend"


def test_indentation_is_never_looked_past() -> None:
    with pytest.raises(ToolRefused, match="no match"):
        edit(b"    return 1\n", "  return 1 \n", "return 2\n")


def test_blank_lines_match_as_they_stand_only() -> None:
    with pytest.raises(ToolRefused, match="no match"):
        edit(b"a\n\nb\n", "  \n", "x\n")


def test_two_places_are_refused_with_their_lines() -> None:
    with pytest.raises(ToolRefused, match=r"2 places match `old` \(lines 1, 3\)"):
        edit(b"x = 1\ny\nx = 1\n", "x = 1", "x = 2")


def test_two_loose_places_are_refused_too() -> None:
    with pytest.raises(ToolRefused, match=r"2 places"):
        edit(b"x = 1 \nx = 1\t\n", "x = 1  \n", "x = 2\n")


def test_overlapping_places_count() -> None:
    with pytest.raises(ToolRefused, match="2 places"):
        edit(b"aaa", "aa", "b")


def test_without_a_match_the_nearest_lines_are_told_with_numbers() -> None:
    with pytest.raises(ToolRefused, match="nearest") as caught:
        edit(b"import re\n\ndef solve(task, target):\n    return 1\n", "def solve(task):\n    return 1\n", "")
    assert "3: def solve(task, target):\n4:     return 1" in str(caught.value)


def test_text_that_is_nowhere_near_is_said_to_be_so() -> None:
    with pytest.raises(ToolRefused, match="no line of the file is near"):
        edit(b"abc\n", "0123456789 0123456789", "x")


@pytest.mark.parametrize(("old", "new", "why"), [("", "x", "`old` is empty"), ("a", "a", "nothing would change")])
def test_edits_that_mean_nothing_are_refused(old: str, new: str, why: str) -> None:
    with pytest.raises(ToolRefused, match=why):
        edit(b"a\n", old, new)


LINES = st.lists(st.sampled_from(["a", "bb", "c ", "", "d\t"]), min_size=1, max_size=6)


@given(LINES, st.lists(st.sampled_from(["\n", "\r\n"]), min_size=6, max_size=6), st.booleans(), st.data())
def test_an_edit_of_a_unique_line_changes_that_line_only(
    lines: list[str], ends: list[str], bom: bool, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(lines) - 1))
    lines = [*lines[:at], "UNIQUE", *lines[at + 1 :]]

    def file(text: list[str]) -> bytes:
        joined = "".join(line + end for line, end in zip(text, ends, strict=False))
        return (BOM if bom else b"") + joined.encode()

    assert edit(file(lines), "UNIQUE", "new").content == file([*lines[:at], "new", *lines[at + 1 :]])
