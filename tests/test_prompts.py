"""What models are told: the reader is strict, the methods differ by one include, the examples pass their own forms."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from pathlib import Path
from typing import cast, get_args

import pytest
from pydantic import BaseModel

import bco_graph.prompts as prompts
from bco_graph.prediction import build_prediction, check_prediction
from bco_graph.prompts import Fragments, digests, render, skill
from bco_graph.state import REAL_OUTCOMES, Cause, Method, Mode, OutcomeKind, Proposal, Verdict
from bco_graph.submissions import GradeSubmission, PredictSubmission, ProposeSubmission, ProposeWithBeliefs
from bco_graph.world_model import Add, Delta, Merge, Remove, Revise, WorldModel, apply

FOLDER = Path(prompts.__file__).resolve().parent
OURS = Fragments(FOLDER)
GOLDENS = Path(__file__).parent / "goldens" / "prompts"
METHODS: tuple[Method, ...] = get_args(Method)
TASK = "Raise the mean score of the agent on 8 toy tasks, in 3 iterations."
SURFACE = """`agent.py` and `prompt.md` may be edited. `agent.py:solve(task, target)` is the entry point.

A task holds `inputs["question"]`; the answer is one word. `prompt.md` holds the field `{question}` and costs $1."""


def toy_skill(method: Method) -> str:
    return skill(method, surface=SURFACE, task=TASK)


def write(folder: Path, **fragments: str) -> Fragments:
    for name, text in fragments.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return Fragments(folder)


# -- the reader ---------------------------------------------------------------------------------------------------


def test_values_go_in_as_they_are_and_are_not_looked_at_again(tmp_path: Path) -> None:
    fragments = write(tmp_path, page="é $body costs $$5\n", other="secret\n")
    hostile = "${other} $x $$ {a} \\1\n<!-- include: other.md -->"
    assert fragments.render("page", body=hostile) == f"é {hostile} costs $5\n"


def test_numbers_are_written_as_text(tmp_path: Path) -> None:
    assert write(tmp_path, page="round ${n}\n").render("page", n=7) == "round 7\n"


def test_a_missing_and_an_unused_field_are_both_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'page'.*missing field\(s\) 'body'.*unused field\(s\) 'extra', 'more'"):
        write(tmp_path, page="$body $head\n").render("page", head="", extra="", more="")


def test_a_field_that_only_an_include_names_is_wanted(tmp_path: Path) -> None:
    fragments = write(tmp_path, page="<!-- include: part.md -->\n", part="$inner\n")
    assert fragments.fields("page") == {"inner"}
    with pytest.raises(ValueError, match=r"missing field.*'inner'"):
        fragments.render("page")


@pytest.mark.parametrize("name", ["pages", "../page", "page.md", ""])
def test_an_unknown_template_is_named_beside_those_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown template {re.escape(repr(name))}; available: page"):
        write(tmp_path, page="").render(name)


def test_a_lone_dollar_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'page'.*line 2 after includes; write '\$\$'"):
        write(tmp_path, page="$$ fine\ncosts $5\n").render("page")


def test_an_include_stands_for_the_file_and_one_blank_line_at_any_depth(tmp_path: Path) -> None:
    fragments = write(
        tmp_path, page="a\n<!-- include: one.md -->\nz\n", one="\nb\n<!-- include: two.md -->\n", two="c\n\n\n"
    )
    assert fragments.render("page") == "a\nb\nc\n\nz\n"


def test_the_same_file_may_be_included_twice_side_by_side(tmp_path: Path) -> None:
    page = "<!-- include: part.md -->\n<!-- include: part.md -->\n"
    assert write(tmp_path, page=page, part="p\n").render("page") == "p\n\np\n\n"


def test_a_cycle_is_refused_and_drawn(tmp_path: Path) -> None:
    fragments = write(
        tmp_path, a="<!-- include: b.md -->\n", b="<!-- include: c.md -->\n", c="<!-- include: b.md -->\n"
    )
    with pytest.raises(ValueError, match="cycle: a -> b -> c -> b"):
        fragments.render("a")


def test_an_include_of_an_unknown_file_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'page', line 2: includes the unknown file 'gone\.md'; available: 'page'"):
        write(tmp_path, page="\n<!-- include: gone.md -->\n").render("page")


@pytest.mark.parametrize(
    "line",
    [
        "<!-- include: ../page.md -->",
        " <!-- include: part.md -->",
        "<!-- include: part.md --> x",
        "<!--INCLUDE part.md-->",
    ],
)
def test_a_misspelt_include_line_is_refused_and_never_shown_to_a_model(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match=r"'page', line 1: .* is no include line"):
        write(tmp_path, page=f"{line}\n", part="").render("page")


def test_the_digest_is_of_the_text_whatever_the_line_ends_on_disk(tmp_path: Path) -> None:
    (tmp_path / "unix.md").write_bytes(b"a\nb\n")
    (tmp_path / "windows.md").write_bytes(b"a\r\nb\r\n")
    expected = hashlib.sha256(b"a\nb\n").hexdigest()
    assert Fragments(tmp_path).digests() == {"unix": expected, "windows": expected}


def test_every_fragment_of_the_package_has_a_digest_and_renders_with_its_fields() -> None:
    assert list(digests()) == sorted(path.stem for path in FOLDER.glob("*.md"))
    for name in digests():
        fields = {field: f"<{field}>" for field in OURS.fields(name)}
        text = render(name, **fields)
        assert all(f"<{field}>" in text for field in fields)
        assert "<!-- include" not in text


def test_the_table_of_the_reader_lists_exactly_the_templates_and_their_fields() -> None:
    rows = (prompts.__doc__ or "").partition("template  ")[2].splitlines()[1:]
    listed: dict[str, set[str]] = {}
    for row in rows:
        names, fields = re.split(r" {2,}", row)
        for name in names.split(", "):
            listed[name] = set() if fields == "-" else set(fields.split(", "))
    assert listed == {name: set(OURS.fields(name)) for name in OURS.names()}


def test_each_step_shows_its_iteration_its_candidate_and_its_schema() -> None:
    for name in OURS.names():
        if name.startswith("step_"):
            assert {"iteration", "candidate", "schema"} <= OURS.fields(name)


# -- the methods --------------------------------------------------------------------------------------------------


def changed_lines(one: str, other: str) -> list[str]:
    return [line for line in difflib.ndiff(one.splitlines(), other.splitlines()) if line[0] in "+-"]


def test_the_sources_of_bco_and_vanilla_differ_by_exactly_the_include_of_the_calibration_module() -> None:
    vanilla, bco, notes = (OURS.text(f"skill_{method}") for method in ("vanilla", "bco", "notes"))
    assert changed_lines(vanilla, bco) == ["+ <!-- include: calibration_module.md -->"]
    assert changed_lines(vanilla, notes) == ["+ <!-- include: notes_module.md -->"]


@pytest.mark.parametrize(("method", "module"), [("bco", "calibration_module"), ("notes", "notes_module")])
def test_a_skill_without_its_module_is_the_vanilla_skill(method: Method, module: str) -> None:
    text, part = toy_skill(method), render(module).strip("\n") + "\n\n"
    assert text.count(part) == 1
    assert text.replace(part, "") == toy_skill("vanilla")


def test_what_every_method_is_told_names_nothing_that_only_one_method_has() -> None:
    only_some = r"belief|predict|confiden|calibrat|world.model|hypothes|refut|agent_notes|your notes"
    assert re.findall(only_some, toy_skill("vanilla"), re.IGNORECASE) == []
    assert re.findall(r"belief|predict|confiden|calibrat|world.model|refut", toy_skill("notes"), re.IGNORECASE) == []
    assert re.findall(only_some, render("agent_system"), re.IGNORECASE) == []
    step = render("step_propose", **dict.fromkeys(OURS.fields("step_propose"), ""))
    assert re.findall(only_some, step, re.IGNORECASE) == []


def test_blank_lines_around_what_a_suite_says_of_itself_do_not_matter() -> None:
    assert skill("bco", surface=f"\n{SURFACE}\n\n", task=f" {TASK}\n") == toy_skill("bco")


@pytest.mark.parametrize("method", METHODS)
def test_the_rendered_skill_is_the_golden_one(method: Method) -> None:
    golden = GOLDENS / f"{method}_SKILL.md"
    text = toy_skill(method).encode("utf-8")
    if os.environ.get("BCO_WRITE_GOLDENS") == "1":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_bytes(text)
    assert text == golden.read_bytes(), "if the change is meant: BCO_WRITE_GOLDENS=1 pytest tests/test_prompts.py"


def test_the_longest_skill_stays_readable_in_one_go() -> None:
    """The paper's has 61 + 123 + 169 lines (Appendix B)."""
    lines = toy_skill("bco").splitlines()
    assert len(lines) <= 350
    assert max(map(len, lines)) <= 220


# -- what must not be said, and what must -------------------------------------------------------------------------

DENIED = {
    "schedule": r"every (\d+|n|few|other|second|third|two|three|four|five) iterations?|each (\d+|n)th|alternate between"
    r"|(first|last) (\d+|two|three|few) iterations|(in|by) iteration \d|half of (the|your) iterations",
    "quota": r"must cover|cover (all|every)|quota|one belief per|coverage of|no (more|fewer) than \d"
    r"|at least (\d+|n|two|three|four|five) (beliefs?|probes?|modes?|types?|tasks?)"
    r"|at most (\d+|n|two|three|four|five) (beliefs?|probes?|ops?)",
    "failure mode": r"hallucinat|lost in the middle|tool misuse|tool.call error|premature|infinite loop|off.by.one"
    r"|wrong format|formatting error|truncat|retriev|chain.of.thought|self.consistency|few.shot|majority vote"
    r"|common failure|typical failure|failure modes (such as|like|include)|look for (failures|errors) (such as|like)",
    "benchmark": r"gaia|longmemeval|locomo|appworld|terminal.bench|spider2",
}


@pytest.mark.parametrize("kind", DENIED)
def test_no_fragment_names_a(kind: str) -> None:
    for name in OURS.names():
        found = re.search(DENIED[kind], " ".join(OURS.text(name).split()), re.IGNORECASE)
        assert found is None, f"{name}.md names a {kind}: {found}"


def terms(text: str) -> set[str]:
    """Words in code type that open a table row."""
    return set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE))


def test_the_contract_explains_every_outcome_and_whether_it_counts() -> None:
    text = OURS.text("base_contract")
    assert terms(text) == set(get_args(OutcomeKind))
    assert set(re.findall(r"^\| `([a-z_]+)` \| yes", text, re.MULTILINE)) == set(REAL_OUTCOMES)


def test_the_calibration_module_explains_every_verdict_cause_and_mode() -> None:
    text = OURS.text("calibration_module")
    assert terms(text) == {*get_args(Verdict), *get_args(Cause)}
    assert all(f"`{mode}`, an edit" in text or f"`{mode}`, the parent" in text for mode in get_args(Mode))


def test_the_calibration_module_explains_every_field_beyond_the_base_ones() -> None:
    text = OURS.text("calibration_module")
    more = ProposeWithBeliefs.model_fields.keys() - ProposeSubmission.model_fields.keys()
    assert all(f"`{field}`" in text for field in {*more, *PredictSubmission.model_fields})


@pytest.mark.parametrize(
    ("name", "form"),
    [("step_propose", ProposeSubmission), ("step_grade", GradeSubmission), ("step_update", Delta)],
)
def test_a_step_explains_every_field_of_its_form(name: str, form: type[BaseModel]) -> None:
    assert all(f"`{field}`" in OURS.text(name) for field in form.model_fields)


# -- the worked examples ------------------------------------------------------------------------------------------

EXAMPLES: list[tuple[str, type[BaseModel]]] = [
    ("step_propose", ProposeSubmission),
    ("step_predict", PredictSubmission),
    ("step_grade", GradeSubmission),
    ("step_update", Delta),
    ("step_construct", Delta),
    ("calibration_module", ProposeWithBeliefs),
]


def example(name: str) -> str:
    blocks: list[str] = re.findall(r"^```json[^\n]*\n(.*?)^```$", OURS.text(name), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    return blocks[0]


@pytest.mark.parametrize(("name", "form"), EXAMPLES)
def test_the_example_of_a_step_passes_its_own_form(name: str, form: type[BaseModel]) -> None:
    form.model_validate(json.loads(example(name)))


def test_the_examples_of_the_world_model_steps_apply_one_after_the_other() -> None:
    def applied(head: WorldModel, name: str, iteration: int, touched: set[str] | None) -> WorldModel:
        delta = Delta.model_validate(json.loads(example(name)))
        return apply(head, delta, iteration=iteration, touched=touched, evidence_exists=lambda path: True).head

    first = applied(WorldModel(), "step_construct", 0, None)
    staked = set(json.loads(example("calibration_module"))["beliefs"])
    second = applied(first, "step_update", 1, staked)
    assert [belief.id for belief in first.beliefs] == ["E1"]
    assert [belief.id for belief in second.beliefs] == ["E1", "E2"]


def test_the_example_prediction_has_nothing_to_refuse_for_the_example_proposal() -> None:
    edit = ProposeWithBeliefs.model_validate(json.loads(example("calibration_module")))
    proposal = cast(Proposal, {**edit.model_dump(), "iteration": 1, "tree": "", "failure": None})
    predicted = PredictSubmission.model_validate(json.loads(example("step_predict")))
    prediction = build_prediction(proposal, predicted, attempts=0)
    types = ["conversion", "counting"]
    found = check_prediction(
        prediction, task_ids=[], types=types, belief_ids=["E1"], stable_tasks=[], attempts=prediction.attempts
    )
    assert found == []


def test_the_update_step_explains_every_operation_with_its_fields() -> None:
    rows = {row.split("`")[1]: row for row in OURS.text("step_update").splitlines() if row.startswith("| `")}
    assert rows.keys() == {"add", "revise", "merge", "remove"}
    for form in (Add, Revise, Merge, Remove):
        fields = form.model_fields.keys() - ({"op", "id"} if form is Add else {"op"})
        assert all(f"`{field}`" in rows[form.__name__.lower()] for field in fields)


def test_every_example_is_tried() -> None:
    assert {name for name in OURS.names() if "```json" in OURS.text(name)} == {name for name, _ in EXAMPLES}
