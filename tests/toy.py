"""A toy world for tests of the whole loop: eight words to say, a scripted target, a proposer that plays a script.

The target says the word alone only when it is asked to ("only the word"), else it wraps it in a sentence; words of
type `long` it says in full only when the prompt also asks for "all letters". So the naive scaffold scores 0, one edit
solves `short`, another solves the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bco_graph.config import RunConfig, check_config
from bco_graph.errors import StepFailed, SubmissionRefused
from bco_graph.protocols import Interface, Score, Step, StepResult, T, Task
from bco_graph.state import JSON, Split
from bco_graph.testing import Reply, ScriptedModelServer

WORDS = {
    "train": ["fig", "oak", "elm", "ash", "chestnut", "sycamore", "hornbeam", "tamarind"],
    "heldout": ["yew", "fir", "mulberry", "hawthorn"],
}

AGENT = """\
from pathlib import Path

PROMPT = (Path(__file__).parent / "prompt.md").read_text(encoding="utf-8")


async def solve(task, target):
    reply = await target.chat(PROMPT.replace("{word}", task.inputs["word"]))
    return reply
"""
NAIVE = "The word is: {word}\n"
SHORT = "The word is: {word}\nReply with only the word.\n"
BOTH = "The word is: {word}\nReply with only the word, all letters of it.\n"


class ToySuite:
    name = "toy"
    interface = Interface(placeholders={"prompt.md": ["{word}"]})

    def __init__(self, scaffold: Path | str) -> None:
        scaffold = self._scaffold = Path(scaffold)
        scaffold.mkdir(parents=True, exist_ok=True)
        (scaffold / "agent.py").write_text(AGENT, encoding="utf-8")
        (scaffold / "prompt.md").write_text(NAIVE, encoding="utf-8")

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"toy-{split}-{i}", kind(word), {"word": word}) for i, word in enumerate(WORDS[split])]

    def gold(self, task: Task) -> JSON:
        return task.inputs["word"]

    def grade(self, task: Task, answer: JSON) -> Score:
        return Score(float(answer == task.inputs["word"]))

    def initial_scaffold(self) -> Path:
        return self._scaffold

    def surface(self) -> str:
        return "Say the word. Editable: everything below `scaffold/`.\n"


def kind(word: str) -> str:
    return "short" if len(word) == 3 else "long"


def answer(body: dict[str, Any]) -> Reply:
    """The scripted target."""
    prompt = body["messages"][-1]["content"]
    found = re.search(r"The word is: (\w+)", prompt)
    word = found[1] if found else ""
    if "only the word" not in prompt:
        return Reply(f"I believe that it is {word}.")
    return Reply(word if kind(word) == "short" or "all letters" in prompt else word[:4])


def toy_config(tmp_path: Path, server: ScriptedModelServer, **changes: Any) -> RunConfig:
    params = {"model": "openai/toy-model", "api_base": server.base_url, "api_key": "none", "temperature": 0}
    return check_config(
        {
            "name": "toy",
            "suite": "toy",
            "runs": str(tmp_path / "runs"),
            "iterations": 2,
            "models": {"model_list": [{"model_name": "toy", "litellm_params": params}], "retries": 0},
            "roles": {"target": "toy"},
            "proposer": {"kind": "handoff"},
            "evaluation": {"concurrency": 4, "timeout_s": 20.0},
            **changes,
        }
    )


Edit = Callable[[Path], None]


def prompt_edit(text: str, mark: str = "") -> Edit:
    """Replace the prompt; with a mark, trace it in each task."""

    def edit(scaffold: Path) -> None:
        (scaffold / "prompt.md").write_text(text, encoding="utf-8")
        if mark:
            agent = AGENT.replace("    reply =", f"    target.trace({mark!r})\n    reply =")
            (scaffold / "agent.py").write_text(agent, encoding="utf-8")

    return edit


class ScriptedProposer:
    """Plays what it is given: `edits[iteration]` for propose; submissions by (iteration, step), or a default each.

    A submission may be a callable of the step. One that is refused ends the step, as a proposer without patience would.
    """

    def __init__(self, edits: dict[int, Edit], submissions: dict[tuple[int, str], Any] | None = None) -> None:
        self.edits = edits
        self.submissions = submissions or {}
        self.performed: list[tuple[int, str]] = []
        self.instructions: dict[tuple[int, str], str] = {}

    async def perform(self, step: Step[T]) -> StepResult[T]:
        key = (step.iteration, step.name)
        self.performed.append(key)
        self.instructions[key] = step.instructions
        if step.name == "propose" and step.iteration in self.edits:
            self.edits[step.iteration](step.workspace / "scaffold")
        given = self.submissions.get(key, DEFAULTS[step.name])
        submission = given(step) if callable(given) else given
        if step.name == "propose" and step.method != "bco":
            submission = {key: submission[key] for key in ("parent", "name", "mechanism")}
        try:
            value = step.accept(step.schema.model_validate(submission))
        except SubmissionRefused as error:
            raise StepFailed(step.name, cause="refused", reasons=error.reasons) from error
        return StepResult(value, submission)


PROPOSE = {
    "parent": "iter_000", "name": "ask-for-the-word", "mechanism": "The prompt asks for the word alone.",
    "mode": "probe", "failure_mode": "a sentence around the word", "beliefs": ["E1"], "live_signature": "asked-alone",
}  # fmt: skip
PREDICT = {
    "base_why": "It is the only one.", "behavioural": "Replies hold nothing but the word.",
    "subset": {"types": ["short"], "expected": 0.9, "low": 0.5, "high": 1.0}, "confidence": 0.8, "downside_bound": 0,
    "upside_types": ["short"], "net_effect": 0.4, "falsification": "Replies are still sentences.",
}  # fmt: skip
GRADE = {
    "behavioural_check": "The replies are single words.", "behaviour_changed": "yes", "verdict": "held",
    "cause": "belief_wrong", "learned": "The model obeys a plain request.",
}  # fmt: skip


def update_for(step: Step[Any]) -> dict[str, Any]:
    trace = f"iterations/iter_{step.iteration:03d}/traces/toy-train-0.json"
    if step.iteration == 0:
        claim = "The model says more than it is asked for unless the prompt forbids it."
        op = {"op": "add", "kind": "execution", "claim": claim, "confidence": 0.6, "status": "hypothesis",
              "evidence_for": [{"path": trace, "locator": "the answer"}], "mass": 8,
              "reason": "all eight end so"}  # fmt: skip
        return {"ops": [op]}
    if "none: this outcome says nothing" in step.instructions:
        return {"ops": []}
    op = {"op": "revise", "id": "E1", "confidence": min(0.99, 0.7 + 0.1 * step.iteration), "reason": "it held",
          "add_evidence_for": [{"path": trace, "locator": "the answer"}]}  # fmt: skip
    return {"ops": [op], "experiment_note": "as predicted"}


DEFAULTS: dict[str, Any] = {"propose": PROPOSE, "predict": PREDICT, "grade": GRADE, "update": update_for}


def two_edits() -> ScriptedProposer:
    """The first edit solves the short words, the second the long ones too."""
    second = {**PROPOSE, "parent": "iter_001", "name": "all-letters", "live_signature": "asked-all"}
    subset = {"types": ["long"], "expected": 1.0, "low": 0.5, "high": 1.0}
    return ScriptedProposer(
        {1: prompt_edit(SHORT, "asked-alone"), 2: prompt_edit(BOTH, "asked-all")},
        {(2, "propose"): second, (2, "predict"): {**PREDICT, "subset": subset, "upside_types": ["long"]}},
    )
