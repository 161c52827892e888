"""A run's events as lines for a person: what was tried, what was predicted, what came, what was learned. Pure.

One `Story` is told the events in order and answers each with the lines it adds. It remembers what later lines are
compared with (means of earlier candidates, what was expected), and tells nothing twice: a node that runs again after a
kill repeats its events.
"""

from __future__ import annotations

from collections.abc import Callable

from bco_graph.distill import CAUSES
from bco_graph.events import Event
from bco_graph.report.lines import Line, Part, fact, heading, prose
from bco_graph.report.phrases import (
    VERDICT_STYLES,
    belief_change,
    decision_line,
    direction,
    reason_lines,
    spend_parts,
    total,
)
from bco_graph.report.wording import (
    BASELINE,
    FIT_SCORE,
    STOPS,
    change,
    count,
    difference,
    interval,
    kinds,
    one_line,
    over_bound,
    score,
    subset,
)
from bco_graph.state import JSON, candidate_id


class Story:
    """Give it every event in order. Events of an unknown type, as newer versions may write, add nothing."""

    def __init__(self) -> None:
        self._run: Event = {}
        self._means: dict[str, float | None] = {}
        self._held_out_means: dict[str, float | None] = {}
        self._names: dict[str, str] = {}
        self._expected: dict[int, float] = {}
        self._headed: set[int] = set()
        self._told: set[tuple[int, str, str]] = set()
        self._refusals: list[Line] = []
        self._spend: dict[str, dict[str, JSON]] = {}
        self._tellers: dict[str, Callable[[Event], list[Line]]] = {
            "run_started": self._run_started,
            "evaluation": self._evaluation,
            "step_refused": self._step_refused,
            "step_failed": self._step_failed,
            "proposal": self._proposal,
            "prediction": self._prediction,
            "candidate": self._candidate,
            "heldout": self._held_out,
            "grade": self._grade,
            "beliefs": self._beliefs,
            "decided": self._decided,
            "spend": self._spent,
            "warning": self._warning,
            "unreadable": self._unreadable,
            "run_failed": self._run_failed,
            "run_ended": self._run_ended,
        }

    def tell(self, event: Event) -> list[Line]:
        teller = self._tellers.get(event["type"])
        return teller(event) if teller else []

    def _first(self, event: Event, mark: str = "") -> bool:
        """Whether this is the first such event of its iteration."""
        key = (event["iteration"], event["type"], mark)
        new = key not in self._told
        self._told.add(key)
        return new

    def _head(self, iteration: int, *parts: Part) -> list[Line]:
        if iteration in self._headed:
            return []
        self._headed.add(iteration)
        return [heading((candidate_id(iteration), "bold"), *parts)]

    # -- the run -----------------------------------------------------------------------------------------------

    def _run_started(self, event: Event) -> list[Line]:
        self._run = event
        for candidate in event.get("candidates", []):
            self._means[candidate["id"]] = candidate["mean"]
        sandbox = one_line(event["sandbox"])
        return [
            heading(
                (one_line(event["name"]), "bold"),
                (f"method {event['method']}", ""),
                (count(event["iterations"], "iteration"), ""),
                (count(event["tasks"], "train task"), ""),
                (f"goes on at {candidate_id(event['iteration'])}" if event["iteration"] > 0 else "", "cyan"),
            ),
            fact("target", (one_line(event["target"]), "")),
            fact("sandbox", (sandbox, "yellow" if sandbox.startswith("none") else "")),
        ]

    def _run_failed(self, event: Event) -> list[Line]:
        return [heading(("failed", "bold red"), (event["error"], "red")), *reason_lines([event["message"]])]

    def _warning(self, event: Event) -> list[Line]:
        return [fact("warning", (one_line(f"{event['about']}: {event['message']}"), "yellow"))]

    def _unreadable(self, event: Event) -> list[Line]:
        return [fact("note", (f"line {event['line']} of the event log is torn and was passed over", "yellow"))]

    def _run_ended(self, event: Event) -> list[Line]:
        stop = event["stop"]
        ended = STOPS.get(stop, "the graph came to its end")
        lines = [heading(("ended", "bold"), (ended, "red" if stop == "failures" else ""))]
        lines += self._standing(event)
        lines += [fact("spend", *spend_parts(self._spend))] if self._spend else []
        return [*lines, *self._next(event)]

    def _standing(self, event: Event) -> list[Line]:
        best, mean, baseline = event["best"], event["mean"], event["baseline"]
        untouched = fact("baseline", (score(baseline), ""), (BASELINE, ""), ("untouched", "dim"))
        if best is None:
            return [fact("best", ("no candidate has enough real results to be ranked", "yellow")), untouched]
        if best == BASELINE:
            return [untouched, fact("best", ("none: no candidate beats the untouched baseline", "yellow"))]
        gain = f"{change(difference(mean, baseline))} on baseline"
        claim = f"a {FIT_SCORE} on train tasks: no claim about other tasks"
        named = (best, "bold"), (self._names.get(best, ""), "")
        return [fact("best", (score(mean), "bold"), *named, (gain, "green")), untouched, fact("", (claim, "dim"))]

    def _next(self, event: Event) -> list[Line]:
        run = one_line(self._run.get("folder", f"runs/{self._run.get('name', 'NAME')}"))
        if event["stop"] == "failures":
            commands = [
                (f"bco show {run} {candidate_id(event['iteration'])}", "what failed"),
                (f"bco resume {run}", "try again"),
            ]
        elif event["stop"] == "budget":
            commands = [
                (f"bco status {run}", "what was spent, and where"),
                (f"bco resume {run} --set budget.LIMIT=N", "go on with more calls, tokens, usd or wall_s"),
            ]
        elif event["stop"] in (None, "drained"):
            commands = [(f"bco resume {run}", "go on from here")]
        elif event["best"] in (None, BASELINE):
            commands = [(f"bco status {run}", "where it stands"), (f"bco resume {run} --iterations N", "go on to N")]
        else:
            commands = [
                (f"bco heldout {run}", "measure on unseen tasks"),
                (f"bco export {run} FOLDER", "take the best"),
            ]
        longest = max(len(command) for command, _ in commands)
        return [
            fact("next" if index == 0 else "", (command.ljust(longest), "cyan"), (why, "dim"))
            for index, (command, why) in enumerate(commands)
        ]

    def _spent(self, event: Event) -> list[Line]:
        self._spend = event["totals"]
        return []

    def spent(self) -> tuple[int, float | None]:
        """Tokens and dollars (None: unknown) of the whole run, as the last `spend` event had them."""
        return total(self._spend)

    # -- an iteration ------------------------------------------------------------------------------------------

    def _evaluation(self, event: Event) -> list[Line]:
        if event["split"] != "train":
            return self._held_out_head(event)
        if event["iteration"] == 0:
            return self._head(0, ("baseline", "cyan"), ("the untouched scaffold", "dim"))
        return self._head(event["iteration"])

    def _held_out_head(self, event: Event) -> list[Line]:
        key = (event["iteration"], "evaluation", "held-out")
        if key in self._told:
            return []
        self._told.add(key)
        return [heading((event["candidate"], "bold"), ("held-out tasks", "cyan"))]

    def _held_out(self, event: Event) -> list[Line]:
        candidate, mean = event["candidate"], event["mean"]
        if not self._first(event, str(event["looks"])):
            return []
        self._held_out_means[candidate] = mean
        parts: list[Part] = [(f"mean {score(mean)}", "bold"), (f"{event['passed']}/{event['tasks']} passed", "")]
        gain = difference(mean, self._held_out_means.get(BASELINE))
        if gain is not None and candidate != BASELINE:
            parts.append((f"{change(gain)} on baseline", direction(gain)))
        if event["coverage"] < 1:
            parts.append((f"coverage {event['coverage']:.2f}", "yellow"))
        parts.append((f"look {event['looks']}", "dim"))
        return [*self._held_out_head(event), fact("held-out", *parts)]

    def _proposal(self, event: Event) -> list[Line]:
        if not self._first(event):
            return []
        iteration = event["iteration"]
        self._names[candidate_id(iteration)] = one_line(event["name"])
        lines = self._head(
            iteration,
            (event.get("mode") or "", "cyan"),
            (one_line(event["name"]), "bold"),
            (f"(on {event['parent']})", "dim"),
        )
        lines.append(prose("mechanism", event["mechanism"]))
        lines += [prose("attacks", event["failure_mode"])] if event.get("failure_mode") else []
        lines += [fact("at stake", (", ".join(event["beliefs"]), ""))] if event.get("beliefs") else []
        refused, self._refusals = self._refusals, []
        return [*lines, *refused]

    def _prediction(self, event: Event) -> list[Line]:
        self._expected[event["iteration"]] = event["expected"]
        if not self._first(event):
            return []
        change_ = interval(event["expected"], event["low"], event["high"])
        where = subset(event["tasks"], event["types"])
        return [
            *self._head(event["iteration"]),
            fact("predicted", (change_, ""), (f"on {where}", ""), (f"confidence {event['confidence']:.2f}", "")),
        ]

    def _candidate(self, event: Event) -> list[Line]:
        iteration, candidate = event["iteration"], event["candidate"]
        if candidate is None:
            failure = event["failure"]
            return self._failed(iteration, failure["step"], failure["cause"], failure["reasons"])
        self._means[candidate] = event["mean"]
        if not self._first(event):
            return []
        return [*self._head(iteration), fact("outcome", *self._outcome(event))]

    def _outcome(self, event: Event) -> list[Part]:
        mean, parent = event["mean"], event["parent"]
        if mean is None:
            return [("no real result", "red"), (kinds(event.get("kinds", {})), "")]
        parts: list[Part] = [(f"mean {score(mean)}", "bold"), (f"{event['passed']}/{event['tasks']} passed", "")]
        for rival, name in ((parent, parent), (BASELINE, "baseline")):
            gain = difference(mean, self._means.get(rival)) if rival else None
            if gain is not None and rival != event["candidate"] and not (name == parent == BASELINE):
                parts.append((f"{change(gain)} on {name}", direction(gain)))
        if event["coverage"] < 1:
            unreal = {k: n for k, n in event.get("kinds", {}).items() if k in ("infra_error", "ungradeable")}
            why = f" ({kinds(unreal)})" if unreal else ""
            parts.append((f"coverage {event['coverage']:.2f}{why}", "yellow"))
        if event["best"] == event["candidate"] != BASELINE:
            parts.append(("best so far", "green"))
        return parts

    def _grade(self, event: Event) -> list[Line]:
        if not self._first(event):
            return []
        verdict, expected = event["verdict"], self._expected.get(event["iteration"])
        observed = change(event["subset_change"])
        moved = f"subset {observed}" if expected is None else f"subset {change(expected)} -> {observed}"
        return [
            *self._head(event["iteration"]),
            fact(
                "grade",
                (verdict, VERDICT_STYLES.get(verdict, "")),
                (moved, ""),
                (over_bound(event.get("losses"), event.get("bound")), ""),
                (CAUSES.get(event["cause"], ""), ""),
            ),
        ]

    def _beliefs(self, event: Event) -> list[Line]:
        if not self._first(event):
            return []
        changes = [belief_change(item) for item in event["changes"]]
        return [*self._head(event["iteration"]), fact("beliefs", *(changes or [("unchanged", "dim")]))]

    def _decided(self, event: Event) -> list[Line]:
        return [*self._head(event["iteration"]), decision_line(event)] if self._first(event, event["step"]) else []

    # -- what went wrong ---------------------------------------------------------------------------------------

    def _step_refused(self, event: Event) -> list[Line]:
        text = f"{event['step']}: {'; '.join(event['reasons'])}"
        line = prose("refused", text, "yellow")
        if event["iteration"] in self._headed:
            return [line]
        self._refusals.append(line)
        return []

    def _step_failed(self, event: Event) -> list[Line]:
        return self._failed(event["iteration"], event["step"], event["cause"], event["reasons"])

    def _failed(self, iteration: int, step: str, cause: str, reasons: list[str]) -> list[Line]:
        if (iteration, "failed", step) in self._told:
            return []
        self._told.add((iteration, "failed", step))
        head = self._head(iteration, ("no candidate", "red"))
        refused, self._refusals = self._refusals, []
        return [
            *head,
            *refused,
            fact("failed", (f"step {step}", "bold red"), (f"cause {cause}", "red")),
            *reason_lines(reasons),
        ]
