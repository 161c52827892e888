"""The world model's Markdown: what is written is read back to the letter, and nothing is dropped in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bco_graph.errors import DocumentError
from bco_graph.world_model import (
    Belief,
    BeliefKind,
    Document,
    Evidence,
    Experiment,
    HistoryRecord,
    WorldModel,
    check_append_only,
    lint,
    parse_document,
    render_document,
)

FRAGMENTS = [
    *"\\|;()[]{}&#>-:/`*~\n\r\t\x00\x85\u2028\ud800\u00a0\u2003 é中😀",
    *("->", "\r\n", "\\\n", "\\|", "  ", "a/", " /b", "https://x.y/z"),
    *("&#13;", "&amp;#13;", "&#55296;", "&#65;", "&#9999999;"),
]
LINES = [
    *("## Beliefs", "## History", "## Calibration ", "### iter_003 -> iter_004 distill", "## iter_7", "\\## Beliefs"),
    *("[E3] ", "[kept 1/2]", " | conf:0.5", "- E3: ", " -> held (", "Retired ids: E1", "Folded: 1 older", "when:"),
]
texts = st.lists(st.sampled_from([*FRAGMENTS, *LINES]) | st.text(max_size=3), max_size=6).map("".join)
some = texts.filter(bool)
ids = st.integers(1, 40)
evidence = st.lists(st.builds(Evidence, path=some, locator=texts), max_size=3).map(tuple)


@st.composite
def beliefs(draw: st.DrawFn, name: str) -> Belief:
    kinds: dict[str, BeliefKind] = {"E": "execution", "V": "evaluation"}
    return Belief(
        id=name, kind=kinds[name[0]], claim=draw(some), conditions=draw(texts), confidence=draw(st.floats(0, 1)),
        status=draw(st.sampled_from(["hypothesis", "confirmed", "refuted"])), evidence_for=draw(evidence),
        evidence_against=draw(evidence), mass=draw(st.floats(0, 1e9) | st.integers(0, 90)),
        older_for=draw(st.integers(0, 3)), older_against=draw(st.integers(0, 3)),
        origin=draw(st.sampled_from(["proposer", "human"])), pinned=draw(st.booleans()), vetoed=draw(st.booleans()),
    )  # fmt: skip


names = st.builds("{}{}".format, st.sampled_from("EV"), ids)
experiments = st.builds(
    Experiment,
    beliefs=st.lists(names, max_size=3).map(tuple),
    candidate=st.sampled_from(["", "iter_003", "a.b-c"]),
    edit=texts,
    verdict=st.sampled_from(["held", "refuted", "inert", "void", "undecided"]),
    note=texts,
)


@st.composite
def records(draw: st.DrawFn) -> HistoryRecord:
    iteration, text = draw(ids), draw(texts)
    heading = draw(st.sampled_from(["", f"## iter_001 → iter_{iteration:03d} distill (noon)", f"### iter_{iteration}"]))
    return HistoryRecord(iteration=iteration, text=text, heading=heading)


@st.composite
def documents(draw: st.DrawFn) -> Document:
    unique = draw(st.lists(names, max_size=3, unique=True))
    head = WorldModel(
        beliefs=tuple(draw(beliefs(name)) for name in unique),
        experiments=draw(st.lists(experiments, max_size=3).map(tuple)),
        retired=draw(st.lists(names, max_size=2).map(tuple)),
        folded=draw(st.integers(0, 12)),
    )
    head = draw(st.sampled_from([head, WorldModel()]))
    return Document(preamble=draw(texts), head=head, history=draw(st.lists(records(), max_size=3).map(tuple)))


slow = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

CLAIM = "The target drops a unit when two are named"


def plain_belief(name: str = "E3", **changes: object) -> Belief:
    given: dict[str, object] = {
        "id": name,
        "kind": "execution" if name[0] == "E" else "evaluation",
        "claim": CLAIM,
        "confidence": 0.6,
        "status": "hypothesis",
        "evidence_for": ({"path": "iterations/iter_000/traces/t1.json", "locator": "last call"},),
        "mass": 3,
    }
    return Belief.model_validate(given | changes)


@slow
@given(documents(), st.none() | texts.map(lambda text: text.replace("\ud800", "")))
@example(Document(head=WorldModel(beliefs=(plain_belief(claim="\n", confidence=1e-6, mass=1e9),))), None)
@example(Document(head=WorldModel(beliefs=(plain_belief(claim="\n\xa0"),))), None)
@example(Document(head=WorldModel(beliefs=(plain_belief(claim="a \\\n\n| b\\", conditions=" \n "),))), "")
def test_any_document_comes_back_from_its_markdown_and_its_markdown_from_it(
    document: Document, block: str | None
) -> None:
    text = render_document(document, calibration_block=block)
    assert parse_document(text) == document
    assert render_document(parse_document(text), calibration_block=block) == text
    assert text.encode("utf-8").decode("utf-8") == text
    assert parse_document(text.replace("\n", "\r\n")) == document
    assert "\r" not in text


@slow
@given(documents())
def test_any_document_comes_back_from_plain_json(document: Document) -> None:
    assert Document.from_json(json.loads(json.dumps(document.to_json(), allow_nan=False))) == document


def test_the_file_reads_like_the_paper_s_listing() -> None:
    belief = plain_belief(
        claim="First line\nsecond | line", conditions="two units", confidence=0.26, status="refuted",
        evidence_for=({"path": "a.json", "locator": "steps 3-6: what"}, {"path": "b.json"}), older_for=2,
        evidence_against=({"path": "iterations/iter_001/outcome.json"},), mass=2.5,
    )  # fmt: skip
    other = plain_belief("V1", evidence_for=({"path": "c.json"},))
    experiments = (
        Experiment(
            beliefs=("E3", "V1"), candidate="iter_004", edit="ask  for\nthe unit", verdict="held", note="3 -> 5"
        ),
        Experiment(beliefs=(), edit="a -> b", verdict="void"),
    )
    head = WorldModel(beliefs=(belief, other), experiments=experiments, retired=("E1", "E2"), folded=4)
    document = Document(head=head, history=(HistoryRecord(iteration=4, text="- Learned: ask\n"),))
    assert render_document(document, calibration_block="| stated | held |") == (
        "## Beliefs\n"
        "[E3] First line\\\n"
        "     second \\| line\n"
        "     | conf:0.26 | status:refuted\n"
        "     | when:two units\n"
        "     | evidence:a.json (steps 3-6: what); b.json; [kept 2/4]\n"
        "     | against:iterations/iter_001/outcome.json\n"
        "     | mass:~2.5\n"
        "\n"
        "[V1] The target drops a unit when two are named\n"
        "     | conf:0.6 | status:hypothesis\n"
        "     | evidence:c.json\n"
        "     | mass:~3\n"
        "\n"
        "Retired ids: E1, E2\n"
        "\n"
        "## Experiments\n"
        "Folded: 4 older experiments, whole in History.\n"
        "- E3, V1 (iter_004): ask for the unit -> held (3 -> 5)\n"
        "- none: a -\\> b -> void\n"
        "\n"
        "## Calibration\n"
        "| stated | held |\n"
        "\n"
        "## History\n"
        "\n"
        "### iter_003 -> iter_004 distill\n"
        "- Learned: ask\n"
        "\n"
    )


def test_a_new_document_has_its_sections_and_lints_clean() -> None:
    text = render_document(Document())
    assert text == "## Beliefs\n\n## Experiments\n\n## History\n"
    assert parse_document(text) == Document()
    assert lint(Document()) == []


PAPER_FORM = """\
## Beliefs
[E2] Tool output longer than a page buries the line
     that matters, and the target then answers from
     read/
     write order alone
     | conf:0.91 | status:CONFIRMED | when:runs with
       more than ten calls
     | evidence:base/dumps/iter002/
       trace.json (steps 3-6: two reports; "x" (both)
       ignored); [...]; seed/[...] ctrf.json (7/7 versus
       5/7)
     | against:c.json
     | mass:~1

[V1] The grader reads the first number
| conf:26% | status:refuted
| evidence:grade.md
| mass:12.5

## Experiments
- E2: a bounded journal with explicit deletion
      /truncation reports -> held (the subset moved 0->1,
      nothing else)
- E2, V1 (iter_003): quarantine after a -> b
  -> VOID (no mark in any trace)
"""


def test_the_paper_s_own_form_is_read_with_its_wrapped_lines() -> None:
    head = parse_document(PAPER_FORM).head
    first, second = head.beliefs
    assert first.claim.endswith("the line that matters, and the target then answers from read/write order alone")
    assert (first.kind, first.confidence, first.status, first.mass) == ("execution", 0.91, "confirmed", 1)
    assert first.conditions == "runs with more than ten calls"
    assert [(entry.path, entry.locator) for entry in first.evidence_for] == [
        ("base/dumps/iter002/trace.json", 'steps 3-6: two reports; "x" (both) ignored'),
        ("[...]", ""),
        ("seed/[...] ctrf.json", "7/7 versus 5/7"),
    ]
    assert first.evidence_against == (Evidence(path="c.json"),)
    assert (second.kind, second.confidence, second.mass) == ("evaluation", 0.26, 12.5)
    assert [(e.beliefs, e.candidate, e.edit, e.verdict, e.note) for e in head.experiments] == [
        (("E2",), "", "a bounded journal with explicit deletion/truncation reports", "held",
         "the subset moved 0->1, nothing else"),
        (("E2", "V1"), "iter_003", "quarantine after a -> b", "void", "no mark in any trace"),
    ]  # fmt: skip
    assert parse_document(render_document(parse_document(PAPER_FORM))) == parse_document(PAPER_FORM)


EARLIER_FORM = """\
# What the edits taught

Entries are never rewritten.

## Observability

Each round gives a score & traces; `&#39;` stays.

## iter_001 → iter_002 distill (2026-01-02T03:04:05Z)
- Outcome mismatch: hoped for +0.10; got +0.02 (0.30 → 0.32).
- Unresolved: whether the cap was met.
- Belief update: the reader, not the ranker.

## iter_001 → iter_002 distill (2026-01-02T04:00:00Z)
- Outcome mismatch: none.

  ### a heading of its own | and a table
"""


def test_a_document_of_the_earlier_protocol_is_kept_to_the_letter() -> None:
    document = parse_document(EARLIER_FORM)
    assert render_document(document) == EARLIER_FORM
    assert document.head == WorldModel()
    assert [record.iteration for record in document.history] == [2, 2]
    assert document.history[0].text.startswith("- Outcome mismatch: hoped")
    assert document.preamble.endswith("stays.")
    assert lint(document) == []


def test_an_earlier_document_goes_on_as_one_with_a_head() -> None:
    old = parse_document(EARLIER_FORM)
    record = HistoryRecord(iteration=3, text="- Learned: more")
    new = Document(preamble=old.preamble, head=WorldModel(beliefs=(plain_belief(),)), history=(*old.history, record))
    text = render_document(new)
    assert parse_document(text) == new
    assert text.index("## Observability") < text.index("## Beliefs") < text.index("## History\n\n## iter_001")
    assert text.endswith("### iter_002 -> iter_003 distill\n- Learned: more\n")
    check_append_only(EARLIER_FORM, text)


def test_a_record_takes_its_heading_from_its_text_or_else_from_its_iteration() -> None:
    own = HistoryRecord(iteration=16, text="## iter_012 -> iter_016 distill\n- Mode: refine")
    assert (own.heading, own.text) == ("### iter_012 -> iter_016 distill", "- Mode: refine")
    assert HistoryRecord(iteration=0, text="").heading == "### iter_000 distill"
    assert HistoryRecord(iteration=16, text="x").heading == "### iter_015 -> iter_016 distill"
    assert own.markdown == "### iter_012 -> iter_016 distill\n- Mode: refine"
    assert HistoryRecord(iteration=16, text=own.markdown) == own
    other = HistoryRecord(iteration=5, text="### iter_004\nx")
    assert (other.heading, other.text) == ("### iter_004 -> iter_005 distill", "### iter_004\nx")
    with pytest.raises(ValueError, match="no heading for a record of iteration 5"):
        HistoryRecord(iteration=5, text="x", heading="### iter_004 distill")


def test_the_calibration_block_is_no_part_of_the_document() -> None:
    document = Document(head=WorldModel(beliefs=(plain_belief(),)), history=(HistoryRecord(iteration=1, text="x"),))
    with_block = render_document(document, calibration_block="## History\n[E9] boo\n### iter_009\nend")
    assert "\\## History\n\\[E9] boo\n\\### iter_009\nend\n" in with_block
    assert with_block.index("## Experiments") < with_block.index("## Calibration") < with_block.index("\n## History")
    assert parse_document(with_block) == document


HEAD = "## Beliefs\n[E1] a\n | conf:0.5 | status:hypothesis\n | evidence:a.json\n | mass:~1\n"
LACKING = "'## Experiments' is missing"
FAULTS = [
    (HEAD, None, LACKING),
    ("## Experiments\n", None, "'## Beliefs' is missing"),
    ("", None, "'## Beliefs' is missing"),
    ("I am sorry, I could not finish the update.\n", None, "'## Beliefs' is missing"),
    ("## History\n\n### iter_001\nx\n", None, "'## Beliefs' is missing"),
    ("### iter_001 -> iter_002 distill\nx\n", None, "'## Beliefs' is missing"),
    (f"{HEAD}## Experiments\n## Beliefs\n", 7, "a second section '## Beliefs'; the first is on line 1"),
    (f"## Experiments\n{HEAD}", 2, "too late: it belongs before '## Experiments' on line 1"),
    (f"{HEAD}## Experiments\n### iter_001\nx\n## History\n", 9, "too late"),
    (f"{HEAD}Sorry for the delay.\n## Experiments\n", 6, "'Sorry for the delay.' is no belief"),
    (f"{HEAD}## Experiment\n## Experiments\n", 6, "is no belief"),
    (f"[E1] a claim\n{HEAD}## Experiments\n", 1, "outside of a section"),
    ("## Beliefs\n  goes on\n## Experiments\n", 2, "goes on with nothing"),
    (f"{HEAD}{HEAD[11:]}## Experiments\n", 6, "a second belief 'E1'"),
    (HEAD.replace("E1", "E01") + "## Experiments\n", 2, "id: "),
    (HEAD.replace("[E1] a", "[E1]") + "## Experiments\n", 2, "claim: "),
    (HEAD.replace("conf:0.5 | ", "") + "## Experiments\n", 2, "has no '| conf:'"),
    (HEAD.replace(" | status:hypothesis", "") + "## Experiments\n", 2, "has no '| status:'"),
    (HEAD.replace(" | mass:~1\n", "") + "## Experiments\n", 2, "has no '| mass:'"),
    (HEAD.replace("0.5", "high") + "## Experiments\n", 2, "'high' is not a probability"),
    (HEAD.replace("0.5", "1.5") + "## Experiments\n", 2, "'1.5' is not a probability"),
    (HEAD.replace("hypothesis", "likely") + "## Experiments\n", 2, "status: "),
    (HEAD.replace("~1", "few") + "## Experiments\n", 5, "mass 'few' is no number"),
    (HEAD.replace("a.json", "a.json | b") + "## Experiments\n", 4, r"'| b' is no field: expected one of conf, status"),
    (HEAD.replace("a.json", "a.json\n | evidence:b") + "## Experiments\n", 5, "a second field 'evidence'"),
    (HEAD.replace("a.json", "a.json; ") + "## Experiments\n", 4, "path: "),
    (HEAD.replace("a.json", "a (b) c") + "## Experiments\n", 4, "'a (b) c' is no evidence"),
    (HEAD.replace("a.json", "a; [kept 2/3]") + "## Experiments\n", 4, "stands after 1 entries"),
    (HEAD.replace("a.json", "a; [kept 1/1]") + "## Experiments\n", 4, "stands after 1 entries"),
    (f"{HEAD}Retired ids: E2, X9\n## Experiments\n", 1, "retired.1: "),
    (f"{HEAD}Retired ids: E2\nRetired ids: E3\n## Experiments\n", 7, "is no belief"),
    (f"{HEAD}## Experiments\n- E1: edit -> works (fine)\n", 7, "is no experiment: expected"),
    (f"{HEAD}## Experiments\n- E1: edit -> held, mostly\n", 7, "is no experiment"),
    (f"{HEAD}## Experiments\n- B1: edit -> held\n", 7, "is no experiment"),
    (f"{HEAD}## Experiments\n- E1: edit -> held\nFolded: 2 older experiments, whole in History.\n", 8, "no experiment"),
    (f"{HEAD}## Experiments\n- E1 (.a): edit -> held\n", 7, "candidate: "),
    (f"{HEAD}## Experiments\n## History\nlost words\n### iter_001\n", 8, "'lost words' belongs to no record"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "reason"), FAULTS)
def test_what_cannot_be_read_is_refused_with_its_line(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_document(text, source="wm.md")
    assert caught.value.line == line
    assert reason in caught.value.reason
    assert str(caught.value).startswith("wm.md" if line is None else f"wm.md, line {line}: ")


def test_json_of_something_else_is_refused_by_name() -> None:
    with pytest.raises(DocumentError, match=r"WorldModel JSON: beliefs\.0\.claim: Field required"):
        WorldModel.from_json(
            {"beliefs": [{"id": "E1", "kind": "execution", "confidence": 1, "status": "refuted", "mass": 0}]}
        )
    with pytest.raises(DocumentError, match="'E1' is no id of kind 'evaluation'"):
        Belief.from_json(plain_belief("E1").to_json() | {"kind": "evaluation"})
    with pytest.raises(DocumentError, match="mass"):
        Belief.from_json(plain_belief().to_json() | {"mass": -1})


def test_a_document_survives_a_file_opened_in_text_mode(tmp_path: Path) -> None:
    text = "one\r\ntwo\rthree \ud800 &#13; &amp;#13;"
    document = Document(preamble=text, head=WorldModel(beliefs=(plain_belief(claim=text),)),
                        history=(HistoryRecord(iteration=1, text=text),))  # fmt: skip
    path = tmp_path / "world_model_calibration.md"
    path.write_text(render_document(document), encoding="utf-8")
    assert parse_document(path.read_text(encoding="utf-8")) == document


RECORDS = tuple(HistoryRecord(iteration=number, text=f"text {number}") for number in range(3))


def test_history_may_grow_and_do_nothing_else() -> None:
    check_append_only((), RECORDS)
    check_append_only(RECORDS, RECORDS)
    check_append_only(RECORDS[:2], Document(history=RECORDS))
    check_append_only(render_document(Document(history=RECORDS[:1])), render_document(Document(history=RECORDS)))
    with pytest.raises(DocumentError, match="record 3, '### iter_001 -> iter_002 distill', is gone"):
        check_append_only(RECORDS, RECORDS[:2])
    altered = (RECORDS[0], RECORDS[1].model_copy(update={"text": "text 1!"}), RECORDS[2])
    with pytest.raises(DocumentError, match="record 2, '### iter_000 -> iter_001 distill', was changed"):
        check_append_only(Document(history=RECORDS), altered)
    with pytest.raises(DocumentError, match="record 1,"):
        check_append_only(RECORDS, RECORDS[1:])


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"a \| b \[x\] &#124; &#65;", "a | b [x] | A"),
        (r"C:\data ends on \\", "C:\\data ends on \\"),
        ("&#55296; &#57343; &#9999999; &amp; \\&#65;", "&#55296; &#57343; &#9999999; &amp; &#65;"),
        ("one\\\n  two\\\\\n  three", "one\ntwo\\ three"),
        ("and /\n  or", "and / or"),
        ("and\n  / or", "and / or"),
        ("ends in a backslash \\", "ends in a backslash \\"),
    ],
)
def test_an_escape_written_by_hand_is_read_as_markdown_reads_it(written: str, meant: str) -> None:
    document = parse_document(HEAD.replace("[E1] a", f"[E1] {written}") + "## Experiments\n")
    assert document.head.beliefs[0].claim == meant
    assert parse_document(render_document(document)) == document
