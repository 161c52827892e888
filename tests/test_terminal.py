"""What a person sees of a run: its story on a terminal and in a log, and following the run of another process."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from bco_graph.events import Event, Events
from bco_graph.report.wording import duration, tokens, usd
from bco_graph.terminal import RunView, follow

TARGET = {"calls": 8, "cache_hits": 1, "prompt_tokens": 11_000, "completion_tokens": 1_000, "usd": 0.04, "seconds": 9.0}
PROPOSER = {**TARGET, "prompt_tokens": 1_000_000, "usd": None}


def event(type: str, iteration: int, at: float = 1000.0, **facts: Any) -> Event:
    return {"v": 1, "at": at, "type": type, "iteration": iteration, **facts}


def started(iteration: int = 0, **changes: Any) -> Event:
    facts = {"name": "quick", "method": "bco", "iterations": 12, "tasks": 40, "sandbox": "bubblewrap", "target": "smol"}
    return event("run_started", iteration, **{**facts, "folder": "runs/quick", **changes})


def candidate(iteration: int, mean: float | None, parent: str | None = "iter_000", **changes: Any) -> Event:
    name = f"iter_{iteration:03d}"
    facts = {"candidate": name, "parent": parent, "mean": mean, "coverage": 1.0, "passed": 22, "tasks": 40,
             "by_type": {}, "kinds": {"scored": 40}, "failure": None, "best": "iter_000"}  # fmt: skip
    return event("candidate", iteration, **{**facts, **changes})


def proposal(iteration: int = 3, **changes: Any) -> Event:
    facts = {"parent": "iter_001", "name": "retry-when-empty", "mode": "refine", "beliefs": ["E1", "E2"],
             "failure_mode": "empty answers", "mechanism": "Ask once more when the answer is empty."}  # fmt: skip
    return event("proposal", iteration, **{**facts, **changes})


def prediction(iteration: int = 3, **changes: Any) -> Event:
    facts = {"digest": "ab12", "confidence": 0.7, "mode": "refine", "beliefs": ["E2"], "tasks": ["t1", "t2"],
             "types": ["lookup"], "expected": 0.12, "low": 0.04, "high": 0.2}  # fmt: skip
    return event("prediction", iteration, **{**facts, **changes})


def belief(op: str, name: str, before: float | None, after: float | None, status: str = "hypothesis") -> dict[str, Any]:
    return {
        "op": op, "id": name,
        "before": None if before is None else {"confidence": before, "status": "hypothesis"},
        "after": None if after is None else {"confidence": after, "status": status},
    }  # fmt: skip


def ended(**changes: Any) -> Event:
    return event(
        "run_ended", 3, **{"stop": "iterations", "best": "iter_003", "mean": 0.6, "baseline": 0.425, **changes}
    )


WHOLE = [
    started(),
    event("node_started", 0, node="evaluate"),
    event("evaluation", 0, candidate="iter_000", split="train", tasks=40, done=0),
    candidate(0, 0.425, None, passed=17),
    candidate(1, 0.5, best="iter_001"),
    event("step_refused", 3, step="propose", reasons=["belief 'E9' is not in the world model"]),
    proposal(),
    prediction(),
    candidate(3, 0.6, "iter_001", best="iter_003"),
    event("grade", 3, candidate="iter_003", verdict="held", cause=None, subset_change=0.15),
    event("beliefs", 3, changes=[belief("revise", "E2", 0.6, 0.75, "confirmed"), belief("add", "E4", None, 0.5),
                                 belief("remove", "E1", 0.2, None)]),
    event("spend", 3, totals={"target": TARGET, "proposer": PROPOSER}),
    ended(),
]  # fmt: skip


def seen(events: Iterable[Event], *, width: int = 80, **options: Any) -> str:
    file = StringIO()
    with RunView(Console(file=file, width=width, highlight=False), **options) as view:
        for item in events:
            view(item)
    return file.getvalue()


# -- the story -----------------------------------------------------------------------------------------------------


def test_an_iteration_is_told_from_the_edit_to_what_was_learned() -> None:
    text = seen(WHOLE)
    assert text[text.index("iter_003") : text.index("\nended")] == (
        "iter_003  refine  retry-when-empty  (on iter_001)\n"
        "  mechanism  Ask once more when the answer is empty.\n"
        "  attacks    empty answers\n"
        "  at stake   E1, E2\n"
        "  refused    propose: belief 'E9' is not in the world model\n"
        "  predicted  +0.120 [+0.040, +0.200]  on lookup, 2 tasks  confidence 0.70\n"
        "  outcome    mean 0.600  22/40 passed  +0.100 on iter_001  +0.175 on baseline\n"
        "             best so far\n"
        "  grade      held  subset +0.120 -> +0.150\n"
        "  beliefs    E2 0.60 -> 0.75 confirmed  +E4 0.50  -E1\n"
    )


def test_a_run_begins_with_what_it_is_and_ends_with_the_best_beside_the_untouched_baseline() -> None:
    text = seen(WHOLE)
    assert text.startswith(
        "\nquick  method bco  12 iterations  40 train tasks\n  target     smol\n  sandbox    bubblewrap\n"
    )
    assert text[text.index("ended") :] == (
        "ended  all iterations were run\n"
        "  best       0.600  iter_003  retry-when-empty  +0.175 on baseline\n"
        "  baseline   0.425  iter_000  untouched\n"
        "             a fit score on train tasks: no claim about other tasks\n"
        "  spend      proposer 1.00M tokens, unknown price  target 12.0k tokens, $0.04\n"
        "  next       bco heldout runs/quick        measure on unseen tasks\n"
        "             bco export runs/quick FOLDER  take the best\n"
    )


def held_out(iteration: int, mean: float | None, **changes: Any) -> Event:
    facts = {"candidate": f"iter_{iteration:03d}", "mean": mean, "coverage": 1.0, "tasks": 10, "passed": 4, "looks": 1}
    return event("heldout", iteration, **{**facts, **changes})


def test_held_out_means_are_told_beside_the_baselines_once_for_each_look() -> None:
    best = held_out(3, 0.5, passed=5, looks=2, coverage=0.9)
    again = held_out(3, 0.6, passed=6, looks=3)
    begun = event("evaluation", 0, candidate="iter_000", split="heldout", tasks=10, done=0)
    text = seen([*WHOLE, begun, held_out(0, 0.4), best, held_out(0, 0.4), best, again])
    assert text[text.index("\niter_000  held-out") :] == (
        "\niter_000  held-out tasks\n"
        "  held-out   mean 0.400  4/10 passed  look 1\n"
        "\niter_003  held-out tasks\n"
        "  held-out   mean 0.500  5/10 passed  +0.100 on baseline  coverage 0.90  look 2\n"
        "  held-out   mean 0.600  6/10 passed  +0.200 on baseline  look 3\n"
    )
    assert "mean none  0/10 passed  coverage 0.00" in seen([held_out(1, None, passed=0, coverage=0.0)])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"best": "iter_000", "mean": 0.425}, "none: no candidate beats the untouched baseline"),
        ({"best": None, "mean": None}, "no candidate has enough real results to be ranked"),
        ({"stop": "failures"}, "too many failed iterations in a row"),
        ({"stop": "failures"}, "bco show runs/quick iter_003"),
        ({"stop": "budget"}, "bco status runs/quick"),
    ],
)
def test_every_kind_of_end_says_why_and_what_to_type_next(changes: dict[str, Any], expected: str) -> None:
    text = seen([started(), ended(**changes)])
    assert expected in text
    assert "0.425  iter_000  untouched" in text
    assert "  next       bco " in text


def test_the_baseline_is_headed_once_and_compared_with_nothing() -> None:
    text = seen(WHOLE[:4])
    assert text.count("iter_000") == 1
    assert "iter_000  baseline  the untouched scaffold\n  outcome    mean 0.425  17/40 passed\n" in text


def test_a_candidate_on_the_baseline_is_compared_with_it_once() -> None:
    assert "mean 0.500  22/40 passed  +0.075 on baseline  best so far" in seen(WHOLE[:5])


def test_missing_results_are_shown_where_there_are_any() -> None:
    short = candidate(2, 0.5, coverage=0.95, kinds={"scored": 37, "timeout": 1, "infra_error": 2})
    assert "coverage 0.95 (2 infra_error)" in seen([candidate(0, 0.5, None), short])
    none = candidate(2, None, coverage=0.0, kinds={"infra_error": 40})
    assert "no real result  40 infra_error" in seen([none])


def test_a_failed_step_is_named_in_full_and_only_once() -> None:
    long = "scaffold/agent.py: does not parse: " + "unexpected indent in a very long line; " * 8 + "end of the reason"
    failure: dict[str, Any] = {
        "step": "propose",
        "cause": "refused",
        "reasons": [long, "parent 'iter_9' is no candidate"],
    }
    text = seen([event("step_failed", 2, **failure), candidate(2, None, None, candidate=None, failure=failure)])
    assert text.startswith("\niter_002  no candidate\n  failed     step propose  cause refused\n")
    assert " ".join(text.split()).endswith(f"- {long} - parent 'iter_9' is no candidate")
    assert text.count("end of the reason") == 1


def test_a_candidate_that_the_checks_refused_is_told_although_no_step_failed() -> None:
    failure = {"step": "evaluate", "cause": "checks", "reasons": ["it never called the target"]}
    text = seen([proposal(2), candidate(2, None, None, candidate=None, failure=failure)])
    assert "step evaluate  cause checks\n             - it never called the target\n" in text


def test_a_missed_prediction_shows_its_cause() -> None:
    graded = event("grade", 3, candidate="iter_003", verdict="refuted", cause="belief_wrong", subset_change=None)
    assert "refuted  subset +0.120 -> none  the belief was wrong" in seen([prediction(), graded])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (belief("revise", "E2", 0.6, 0.4), "E2 0.60 -> 0.40\n"),
        (belief("revise", "E2", 0.6, 0.6, "refuted"), "E2 0.60 refuted\n"),
        (belief("revise", "E2", 0.6, 0.6), "E2 0.60 reworded\n"),
        ({**belief("merge", "E2", 0.6, 0.7), "merged": ["E5", "E7"]}, "E5 and E7 into E2 0.70\n"),
    ],
)
def test_each_kind_of_belief_change_has_its_words(change: dict[str, Any], expected: str) -> None:
    assert seen([event("beliefs", 3, changes=[change])]).endswith(f"  beliefs    {expected}")
    assert "unchanged" in seen([event("beliefs", 3, changes=[])])


def test_events_that_a_resumed_node_repeats_are_told_once() -> None:
    again = [WHOLE[0], *WHOLE[6:11], *WHOLE[6:11]]
    text = seen(again)
    for word in ("mechanism", "predicted", "outcome", "grade", "beliefs"):
        assert text.count(f"  {word} ") == 1


def test_a_resumed_run_knows_the_means_from_before() -> None:
    earlier = [{"id": "iter_000", "mean": 0.4}, {"id": "iter_001", "mean": 0.5}]
    text = seen([started(3, candidates=earlier), candidate(3, 0.6, "iter_001")])
    assert "goes on at iter_003" in text
    assert "+0.100 on iter_001  +0.200 on baseline" in text


def test_a_run_without_a_sandbox_stands_out() -> None:
    bare_run = started(sandbox="none: candidates run as plain processes")
    assert "\x1b[33mnone: candidates run as plain processes" in on_terminal([bare_run])
    assert "\x1b[33m" not in on_terminal([started()])


def test_an_error_that_ends_the_run_is_shown() -> None:
    text = seen([event("run_failed", 1, error="SuiteBroken", message="the grader raised on task 't1'")])
    assert text == "\nfailed  SuiteBroken\n             - the grader raised on task 't1'\n"


def test_unknown_events_of_newer_versions_add_nothing() -> None:
    assert seen([event("weather", 3, wind="north")]) == ""


def test_quiet_shows_nothing() -> None:
    assert seen([*WHOLE, event("step_failed", 4, step="propose", cause="turns", reasons=["x"])], quiet=True) == ""


# -- fitting the console -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [24, 40, 80])
def test_no_line_is_wider_than_the_console_and_none_ends_in_blanks(width: int) -> None:
    wide = proposal(4, name="n" * 70, mechanism="全角文字の説明。" * 20, failure_mode="長い" * 40)
    failed = event("step_failed", 5, step="propose", cause="format", reasons=["漢字" * 90, "x" * 200])
    slow = [event("evaluation", 4, candidate="iter_004", split="train", tasks=40, done=0)]
    slow += [task(done, 1000.0 + 5 * done) for done in range(1, 40)]
    lines = seen([*WHOLE[:-1], wide, *slow, failed, WHOLE[-1]], width=width).split("\n")
    assert max(cell_len(line) for line in lines) <= width
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("width", range(40, 60))
def test_no_figure_is_lost_where_rows_are_narrow(width: int) -> None:
    row = " ".join(seen(WHOLE[4:9], width=width).split())
    assert "mean 0.600 22/40 passed +0.100 on iter_001 best so far" in row
    assert "+0.120 [+0.040, +0.200] on lookup, 2 tasks confidence 0.70" in row


def test_long_prose_is_cut_with_a_mark_and_is_one_line() -> None:
    lines = seen([proposal(mechanism="Ask\nonce more, " + "and again, " * 20)]).splitlines()
    cut = next(line for line in lines if "mechanism" in line)
    assert cut.startswith("  mechanism  Ask once more, and again,")
    assert cut.endswith("…")
    assert cell_len(cut) <= 80


def test_a_console_without_unicode_gets_plain_marks_and_no_error() -> None:
    raw = BytesIO()
    console = Console(file=TextIOWrapper(raw, encoding="ascii", write_through=True), width=80)
    with RunView(console) as view:
        view(proposal(mechanism="Grüße … " + "and again, " * 20, name="x"))
    text = raw.getvalue().decode("ascii")
    assert "Gr??e ?" in text
    assert "..." in text


def test_text_of_a_model_is_no_markup_and_no_control_sequence() -> None:
    text = seen([proposal(mechanism="[bold red]x[/] \x1b[2J\x07 \u202egone \x9b2J")])
    assert "[bold red]x[/] \\x1b[2J\\x07 \\u202egone \\x9b2J" in text


# -- progress ------------------------------------------------------------------------------------------------------


def task(done: int, at: float, tasks: int = 40, **facts: Any) -> Event:
    given = {"candidate": "iter_004", "split": "train", "task": f"t{done}", "kind": "scored", "score": 1.0}
    return event("task_done", 4, at, **given, done=done, tasks=tasks, **facts)


def evaluation(tasks: int = 40, done: int = 0, at: float = 1000.0, **changes: Any) -> Event:
    facts = {"candidate": "iter_004", "split": "train", "tasks": tasks, "done": done}
    return event("evaluation", 4, at, **{**facts, **changes})


def progress(events: Iterable[Event]) -> list[str]:
    return [line.strip() for line in seen(events).splitlines() if line.startswith("  evaluate")]


def test_a_log_gets_a_line_a_quarter() -> None:
    lines = progress([evaluation(400), *(task(i, 1000 + i / 20, 400) for i in range(1, 401))])
    assert [line.split()[1] for line in lines] == ["100/400", "200/400", "300/400"]
    assert lines[0] == "evaluate   100/400 tasks  20.0/s  0:15 left"


def test_an_evaluation_of_seconds_is_told_by_its_outcome_alone() -> None:
    assert progress([evaluation(400), *(task(i, 1000 + i / 250, 400) for i in range(1, 401))]) == []


def test_a_slow_evaluation_speaks_within_ten_seconds_and_then_less_often() -> None:
    lines = progress([evaluation(1000), *(task(i, 1000.0 + 3 * i, 1000) for i in range(1, 200))])
    assert [int(line.split()[1].split("/")[0]) for line in lines] == [4, 11, 25, 52, 106]
    assert "20.0/min" in lines[0]


def test_tasks_that_were_done_before_count_as_done_and_not_as_speed() -> None:
    lines = progress([evaluation(40, done=19), task(20, 1002.0)])
    assert lines == ["evaluate   20/40 tasks  30.0/min  0:40 left"]


def test_spend_grows_with_each_task_and_is_money_only_where_prices_are_known() -> None:
    before = event("spend", 3, totals={"target": TARGET})
    known = [before, evaluation(), *(task(i, 1000.0 + i, tokens=100, usd=0.01) for i in range(1, 11))]
    assert progress(known)[0].endswith("13.0k tokens  $0.14")
    unknown = [before, evaluation(), *(task(i, 1000.0 + i, tokens=100, usd=None) for i in range(1, 11))]
    assert progress(unknown)[0].endswith("13.0k tokens")


# -- on a terminal -------------------------------------------------------------------------------------------------


def on_terminal(events: Iterable[Event], *, width: int = 80, environment: dict[str, str] | None = None) -> str:
    file = StringIO()
    console = Console(
        file=file, width=width, height=24, force_terminal=True, color_system="standard",
        _environ={"TERM": "xterm", **(environment or {})},
    )  # fmt: skip
    with RunView(console) as view:
        for item in events:
            view(item)
    return file.getvalue()


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_terminal_shows_a_bar_with_what_is_done_and_left_and_takes_it_away() -> None:
    now = time.time()
    text = on_terminal([evaluation(at=now - 10), *(task(i, now, tokens=100, usd=0.01) for i in range(1, 21))])
    bar = next(line for line in re.split(r"[\r\n]", bare(text)) if "20/40 tasks" in line)
    assert re.fullmatch(r"  iter_004  (━+)(─+)  20/40 tasks  2\.0/s  0:10 left  2\.0k tokens  \$0\.20", bar)
    assert abs(bar.count("━") - bar.count("─")) <= 1
    assert "  evaluate " not in bare(text)
    assert text.rstrip().endswith("\x1b[2K")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")


@pytest.mark.parametrize("width", [24, 40])
def test_a_narrow_bar_keeps_the_count_and_the_edge(width: int) -> None:
    now = time.time()
    text = on_terminal([evaluation(at=now - 10), *(task(i, now, tokens=100) for i in range(1, 21))], width=width)
    rows = [row for row in re.split(r"[\r\n]", bare(text)) if "iter_004  " in row]
    assert any("20/40" in row for row in rows)
    assert max(cell_len(row) for row in rows) < width


def test_a_step_under_way_is_shown_with_the_time_it_has_taken() -> None:
    text = bare(on_terminal([event("node_started", 3, time.time() - 65, node="propose")]))
    assert "iter_003  propose  1:05" in text


def test_a_held_out_evaluation_is_named_as_one() -> None:
    held = {**evaluation(at=time.time(), split="heldout"), "candidate": "iter_000"}
    text = bare(on_terminal([held, {**task(3, time.time()), "split": "heldout"}]))
    assert "iter_000 held-out  " in text
    assert "3/40 tasks" in text


def test_no_bar_is_left_when_the_last_task_is_done() -> None:
    file = StringIO()
    view = RunView(Console(file=file, force_terminal=True, _environ={"TERM": "xterm"}))
    for item in (evaluation(split="heldout", at=time.time()), *(task(i, time.time()) for i in range(1, 41))):
        view(item)
    assert file.getvalue().rfind("\x1b[?25h") > file.getvalue().rfind("\x1b[?25l")


def test_verdicts_are_coloured_unless_colours_are_off() -> None:
    graded = WHOLE[9]
    assert "\x1b[32mheld" in on_terminal([graded])
    off = on_terminal([graded], environment={"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", off)
    assert "held  subset" in bare(off)


def _interrupted(view: RunView) -> None:
    view(event("node_started", 3, time.time(), node="propose"))
    raise KeyboardInterrupt


def test_the_cursor_comes_back_after_an_error() -> None:
    file = StringIO()
    console = Console(file=file, force_terminal=True, _environ={"TERM": "xterm"})
    view = RunView(console)
    with pytest.raises(KeyboardInterrupt), view:
        _interrupted(view)
    assert file.getvalue().rfind("\x1b[?25h") > file.getvalue().rfind("\x1b[?25l")


# -- following -----------------------------------------------------------------------------------------------------


def test_a_finished_log_is_read_to_its_end(tmp_path: Path) -> None:
    events = Events(tmp_path / "events.jsonl")
    for item in WHOLE:
        events.emit(
            item["type"],
            item["iteration"],
            **{k: v for k, v in item.items() if k not in ("v", "at", "type", "iteration")},
        )
    got: list[Event] = []
    assert follow(tmp_path / "events.jsonl", got.append, stop=within())
    assert [item["type"] for item in got] == [item["type"] for item in WHOLE]


def test_a_growing_log_is_followed_and_a_half_written_line_is_waited_for(tmp_path: Path) -> None:
    path, got = tmp_path / "events.jsonl", list[Event]()
    reader = threading.Thread(target=follow, args=(path, got.append), kwargs={"stop": within()})
    reader.start()
    first, last = json.dumps(started()), json.dumps(ended())
    with path.open("w", encoding="utf-8") as file:
        file.write(first + "\n" + last[:30])
        file.flush()
        wait_for(lambda: len(got) == 1)
        time.sleep(0.3)
        assert len(got) == 1
        file.write(last[30:] + "\n")
        file.flush()
        reader.join(10)
    assert [item["type"] for item in got] == ["run_started", "run_ended"]


def test_a_line_that_a_crash_tore_is_passed_over_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"v":1,"ty' + json.dumps(started()) + "\n" + json.dumps(ended()) + "\n", encoding="utf-8")
    got: list[Event] = []
    assert follow(path, got.append, stop=within())
    assert [item["type"] for item in got] == ["unreadable", "run_ended"]
    assert "line 1 of the event log is torn" in seen(got[:1])


def test_the_end_of_a_run_that_was_resumed_is_not_the_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = [started(), ended(stop="budget"), started(4), ended()]
    path.write_text("".join(json.dumps(item) + "\n" for item in log), encoding="utf-8")
    got: list[Event] = []
    assert follow(path, got.append, stop=within())
    assert len(got) == 4
    path.write_text("".join(json.dumps(item) + "\n" for item in [*log, started(5)]), encoding="utf-8")
    assert not follow(path, got.append, stop=lambda: True)


def test_held_out_looks_after_the_end_do_not_undo_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = [started(), ended(), evaluation(split="heldout")]
    path.write_text("".join(json.dumps(item) + "\n" for item in log), encoding="utf-8")
    assert follow(path, lambda item: None, stop=within())


def test_following_stops_when_it_is_told_to_with_all_that_was_written_shown(tmp_path: Path) -> None:
    path, got = tmp_path / "events.jsonl", list[Event]()
    assert not follow(path, got.append, stop=lambda: True)
    path.write_text(json.dumps(started()) + "\n", encoding="utf-8")
    assert not follow(path, got.append, stop=lambda: True)
    assert len(got) == 1


def within(seconds: float = 10.0) -> Callable[[], bool]:
    """Tells a follower to stop once it has taken too long."""
    limit = time.monotonic() + seconds
    return lambda: time.monotonic() > limit


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)


# -- words ---------------------------------------------------------------------------------------------------------


def test_figures_are_worded_for_people() -> None:
    assert [tokens(n) for n in (0, 999, 1_000, 12_345, 999_949, 999_950, 4_567_000)] == [
        "0", "999", "1.0k", "12.3k", "999.9k", "1.00M", "4.57M",
    ]  # fmt: skip
    assert [usd(a) for a in (None, 0.0, 0.00001, 0.0123, 0.01, 0.1, 1234.5)] == [
        "unknown price", "$0.00", "below $0.0001", "$0.0123", "$0.01", "$0.10", "$1,234.50",
    ]  # fmt: skip
    assert [duration(s) for s in (-1, 0.4, 8, 75, 3723)] == ["0:00", "0:00", "0:08", "1:15", "1:02:03"]
