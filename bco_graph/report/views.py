"""How `show` prints: the facts that `show` gives, as headings, facts and tables. Imports rich: import it to render."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from bco_graph.distill import CAUSES
from bco_graph.report.layout import Block, Lines, columns, stacked
from bco_graph.report.lines import Line, Part, fact, heading, prose
from bco_graph.report.phrases import VERDICT_STYLES, belief_change, decision_line, direction, reason_lines
from bco_graph.report.wording import (
    BASELINE,
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
from bco_graph.state import candidate_id
from bco_graph.world_model import Belief

Facts = Mapping[str, Any]


# -- an iteration --------------------------------------------------------------------------------------------------


def candidate_view(facts: Facts) -> RenderableType:
    proposal, outcome = facts["proposal"], facts["outcome"]
    lines = [_title(facts), *_proposal(proposal, facts)]
    lines += _outcome(facts, outcome) if outcome and outcome["candidate"] else []
    lines += [] if outcome or facts["failures"] else [fact("outcome", ("not evaluated yet", "yellow"))]
    lines += [line for failure in facts["failures"] for line in _failure(failure)]
    types = _types(outcome["by_type"], against=outcome["parent"]) if outcome and outcome["by_type"] else None
    rest = [*_predicted(facts["prediction"]), *_graded(facts["grade"], facts["prediction"])]
    return stacked(Lines(lines), Lines([heading(("by type", "bold"))]) if types else None, types, Lines(rest))


def _title(facts: Facts) -> Line:
    proposal = facts["proposal"] or {}
    name = "baseline" if facts["id"] == BASELINE else one_line(proposal.get("name", ""))
    parent = f"(on {proposal['parent']})" if proposal else ""
    best = ("best so far", "green") if facts["best"] else ("", "")
    return heading((facts["id"], "bold"), (proposal.get("mode") or "", "cyan"), (name, "bold"), (parent, "dim"), best)


def _proposal(proposal: Facts | None, facts: Facts) -> list[Line]:
    if proposal is None:
        return []
    labelled = [("mechanism", "mechanism"), ("attacks", "failure_mode"), ("signature", "live_signature")]
    lines = [fact(label, (one_line(proposal[key]), "")) for label, key in labelled if proposal[key]]
    lines += [fact("at stake", (", ".join(proposal["beliefs"]), ""))] if proposal["beliefs"] else []
    lines += [prose("refused", "; ".join(reasons), "yellow") for reasons in facts["refusals"]]
    lines.append(fact("diff", *(_changed_file(item) for item in facts["diff"])))
    return [*lines, *(decision_line(item) for item in facts["decisions"])]


def _changed_file(item: Facts) -> Part:
    how = "" if item["how"] == "changed" else f" {item['how']}"
    size = "binary" if item["added"] is None else f"+{item['added']} -{item['removed']}"
    return f"{one_line(item['path'])}{how} {size}", ""


def _outcome(facts: Facts, outcome: Facts) -> list[Line]:
    parts: list[Part] = [(f"mean {score(outcome['mean'])}", "bold")]
    parts.append((f"{outcome['passed']}/{outcome['tasks']} passed", ""))
    parent = outcome["parent"]
    rivals = [(facts["parent_mean"], parent)] if parent and parent != BASELINE else []
    for rival, name in [*rivals, (facts["baseline"], "baseline")] if parent else []:
        gain = difference(outcome["mean"], rival)
        parts += [(f"{change(gain)} on {name}", direction(gain))] if gain is not None else []
    parts += [(f"coverage {outcome['coverage']:.2f}", "yellow")] if outcome["coverage"] < 1 else []
    return [fact("outcome", *parts), *([fact("", (rest, ""))] if (rest := kinds(outcome["kinds"])) else [])]


def _types(by_type: Facts, *, against: str | None) -> RenderableType:
    def known(value: float | None, said: Callable[[float | None], str]) -> str:
        return "" if value is None else said(value)

    heads = ("type", "tasks", "mean", against, "change") if against else ("type", "tasks", "mean")
    rows = [
        [one_line(name), str(item["tasks"]), score(item["mean"]), known(item["parent"], score),
         known(item["change"], change)][: len(heads)]
        for name, item in by_type.items()
    ]  # fmt: skip
    return columns(heads, rows, right=heads[1:], wraps=("type",))


def _failure(failure: Facts) -> list[Line]:
    named = (f"step {failure['step']}", "bold red"), (f"cause {failure['cause']}", "red")
    return [fact("failed", *named), *reason_lines(failure["reasons"])]


# -- a prediction and its grade ------------------------------------------------------------------------------------


def prediction_view(facts: Facts) -> RenderableType:
    return stacked(Lines([heading((f"sealed as {facts['digest'][:16]}", "dim"))]), Block(facts["text"]))


def _predicted(content: Facts | None) -> list[Line]:
    if content is None:
        return []
    about = content["subset"]
    return [
        heading(("prediction", "bold"), (f"sealed as {content['digest'][:16]}", "dim")),
        fact("subset", (subset(about["tasks"], about["types"]), ""),
             (interval(about["expected"], about["low"], about["high"]), "")),
        fact("confidence", (f"{content['confidence']:.2f}", ""), (f"net effect {change(content['net_effect'])}", "")),
        fact("behaviour", (one_line(content["behavioural"]), "")),
        fact("false if", (one_line(content["falsification"]), "")),
    ]  # fmt: skip


def grade_view(facts: Facts) -> RenderableType:
    prediction = facts["prediction"]
    lines = [heading((facts["id"], "bold"), ("grade", "")), *_graded(facts, prediction)[1:]]
    lines += _figures(facts["computed"], prediction)
    reading = facts["reading"] or {}
    labelled = [("behaviour", "behavioural_check"), ("learned", "learned"), ("beliefs", "belief_update")]
    read = [fact(label, (one_line(reading[key]), "")) for label, key in labelled if reading.get(key)]
    lines += [heading(("the proposer's reading", "bold")), *read] if read else []
    lines += [fact("differs", (one_line(text), "yellow")) for text in facts["differences"]]
    return Lines([*lines, *(_failure(facts["failure"]) if facts["failure"] else [])])


def _graded(grade: Facts | None, prediction: Facts | None) -> list[Line]:
    if grade is None:
        return []
    observed = change(grade["computed"].get("subset_change"))
    moved = f"{change(prediction['subset']['expected'])} -> {observed}" if prediction else observed
    cause = CAUSES.get(grade["cause"], "") if grade["cause"] else ""
    verdict = grade["verdict"], VERDICT_STYLES.get(grade["verdict"], "")
    bound = prediction["downside_bound"] if prediction else None
    lost = over_bound(len(grade["computed"].get("regressions") or ()), bound)
    return [heading(("grade", "bold")), fact("verdict", verdict, (f"subset {moved}", ""), (lost, ""), (cause, ""))]


def _figures(computed: Facts, prediction: Facts | None) -> list[Line]:
    """The computed figures, each beside what was predicted of it."""
    bound = f"at most {prediction['downside_bound']} predicted" if prediction else ""
    net = f"{change(prediction['net_effect'])} predicted" if prediction else ""
    fired = "fired" if computed["signature_fired"] else "never fired"
    also = "" if computed["signature_distinctive"] else "in the parent's traces too"
    return [
        fact("subset", (f"{computed['subset_n']} stable of {count(computed['subset_tasks'], 'task')}", "")),
        fact("overall", (change(computed["overall_change"]), ""), (net, "dim")),
        fact("regressed", (_names(computed["regressions"]), ""), (bound, "dim")),
        fact("blind spot", (_names(computed["blind_spots"]), "")),
        fact("repaired", (_names(computed["breakthroughs"]), "")),
        fact("unstable", (_names(computed["unstable"]), "")),
        fact("upside", *_rates(computed, "upside_hit_rate", "upside_base_rate", "of the named types improved")),
        fact("downside", *_rates(computed, "downside_precision", "downside_base_rate", "of the named types regressed")),
        fact("signature", (f"{fired}, in {count(computed['signature_tasks'], 'task')}", ""), (also, "yellow")),
    ]


def _rates(computed: Facts, rate: str, base: str, what: str) -> list[Part]:
    if computed[rate] is None:
        return [("none named", "dim")]
    return [(f"{computed[rate]:.0%} {what}", ""), (f"base rate {computed[base]:.0%}" if computed[base] else "", "dim")]


def _names(names: Sequence[str], limit: int = 12) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(one_line, names[:limit])) + more or "none"


# -- the world model -----------------------------------------------------------------------------------------------

_STATUS_STYLES = {"confirmed": "green", "refuted": "red"}


def world_model_view(facts: Facts) -> RenderableType:
    head = facts["head"]
    lines = [
        heading(("world model", "bold"), (f"after iteration {facts['iteration']}", ""), (facts["document"], "dim"))
    ]
    for belief in head["beliefs"]:
        lines += [heading(*_belief_title(belief)), fact("claim", (one_line(belief["claim"]), ""))]
        lines += [fact("when", (one_line(belief["conditions"]), ""))] if belief["conditions"] else []
        for_, against = (len(belief[f"evidence_{side}"]) + belief[f"older_{side}"] for side in ("for", "against"))
        lines += [fact("evidence", (f"{for_} for, {against} against", ""), (f"mass {belief['mass']:g}", ""))]
    lines += [] if head["beliefs"] else [fact("beliefs", ("none so far", "dim"))]
    return Lines([*lines, *_experiments(head["experiments"])])


def _belief_title(belief: Facts) -> list[Part]:
    status = belief["status"], _STATUS_STYLES.get(belief["status"], "cyan")
    marks = ", ".join(Belief.from_json(dict(belief)).marks)
    return [
        (belief["id"], "bold"), status, (f"confidence {belief['confidence']:.2f}", ""), (belief["kind"], "dim"),
        (marks, "magenta"),
    ]  # fmt: skip


def belief_view(facts: Facts) -> RenderableType:
    belief = facts["belief"]
    lines = [heading(*_belief_title(belief)), fact("claim", (one_line(belief["claim"]), ""))]
    lines += [fact("retired", ("it is in the world model no more", "yellow"))] if facts["retired"] else []
    lines += [fact("when", (one_line(belief["conditions"]), ""))] if belief["conditions"] else []
    lines += [fact("mass", (f"about {belief['mass']:g} failures explained", ""))]
    for label, side in (("for", "for"), ("against", "against")):
        entries = [_evidence(entry) for entry in belief[f"evidence_{side}"]]
        older = belief[f"older_{side}"]
        entries += [f"- {older} older, in the history of the document"] if older else []
        lines += [fact(label if i == 0 else "", (text, "")) for i, text in enumerate(entries)]
    lines += _experiments(facts["experiments"])
    lines += [heading(("history", "bold"))] if facts["history"] else []
    lines += [line for item in facts["history"] for line in _history(item)]
    return Lines(lines)


def _evidence(entry: Facts) -> str:
    return f"- {one_line(entry['path'])}" + (f" ({one_line(entry['locator'])})" if entry["locator"] else "")


def _experiments(experiments: Sequence[Facts]) -> list[Line]:
    lines = [heading(("experiments", "bold"))] if experiments else []
    for tried in experiments:
        verdict = tried["verdict"], VERDICT_STYLES.get(tried["verdict"], "")
        lines.append(
            fact(tried["candidate"], verdict, (", ".join(tried["beliefs"]), "dim"), (one_line(tried["edit"]), ""))
        )
        lines += [fact("", (one_line(tried["note"]), "dim"))] if tried["note"] else []
    return lines


def _history(item: Facts) -> list[Line]:
    reason = one_line(item["reason"])
    return [fact(candidate_id(item["iteration"]), belief_change(item), (reason, "dim"))]
