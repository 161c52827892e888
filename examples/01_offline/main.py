"""The whole loop, offline: one edit whose prediction holds, one that is refuted, and what is believed in the end.

python main.py        # no key: both models are scripts on this machine
"""

import asyncio
import re
from pathlib import Path

from bco_graph import RunConfig, RunHandle, create_bco, load_config, read_world_model, recursion_limit
from bco_graph.studies.heldout import heldout
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall

HERE = Path(__file__).parent


def frozen(body: dict) -> str:
    """The target: it wraps a number in a sentence unless told not to, and gets products wrong, whatever it is told."""
    prompt = body["messages"][-1]["content"]
    a, word, b = re.search(r"What is (\d+) (plus|times) (\d+)", prompt).groups()
    number = int(a) + int(b) if word == "plus" else int(a) * int(b) + 10
    return str(number) if "only the number" in prompt else f"I think that it is {number}."


def believe(claim: str, confidence: float, task: str) -> dict:
    evidence = [{"path": f"iterations/iter_000/traces/{task}.json", "locator": "the answer"}]
    return {"op": "add", "kind": "execution", "claim": claim, "confidence": confidence, "status": "hypothesis",
            "evidence_for": evidence, "mass": 4, "reason": "all four end so"}  # fmt: skip


def revise(belief: str, confidence: float, status: str, evidence: str) -> dict:
    return {"op": "revise", "id": belief, "confidence": confidence, "status": status, "reason": "the outcome says so",
            evidence: [{"path": "task_score_matrix.csv", "locator": "the last column"}]}  # fmt: skip


def edit(prompt: str, mark: str, before: str) -> list[ToolCall]:
    """Another prompt, and a mark that the traces show where it is live."""
    traced = f"async def solve(task, target):\n    target.trace({mark!r})\n"
    return [
        ToolCall("write_file", {"path": "scaffold/prompt.md", "content": prompt + "\n"}),
        ToolCall("edit_file", {"path": "scaffold/agent.py", "old": before, "new": traced}),
    ]


def propose(parent: str, name: str, belief: str, mechanism: str) -> ToolCall:
    return ToolCall("submit", {"parent": parent, "name": name, "mechanism": mechanism, "mode": "probe",
                               "beliefs": [belief], "failure_mode": "wrong", "live_signature": name})  # fmt: skip


def predict(kind: str, confidence: float, behavioural: str) -> ToolCall:
    return ToolCall("submit", {"base_why": "the best so far", "behavioural": behavioural, "confidence": confidence,
                               "subset": {"types": [kind], "expected": 0.9, "low": 0.5, "high": 1.0},
                               "upside_types": [kind], "downside_bound": 0, "net_effect": 0.45,
                               "falsification": f"Answers of type {kind} stay wrong."})  # fmt: skip


def grade(verdict: str, changed: str, learned: str) -> ToolCall:
    return ToolCall("submit", {"behavioural_check": "Read the raw answers.", "behaviour_changed": changed,
                               "verdict": verdict, "cause": "belief_wrong", "learned": learned})  # fmt: skip


SOLVE = "async def solve(task, target):\n"
CODER = [
    [ToolCall("submit", {"ops": [
        believe("The target wraps its answer in a sentence unless the prompt forbids it.", 0.6, "train-sum-0"),
        believe("Asked to check its work, the target multiplies right.", 0.5, "train-product-4"),
    ]})],
    [*edit("{question} Reply with only the number.", "bare-number", SOLVE),
     propose("iter_000", "bare-number", "E1", "The prompt asks for only the number.")],
    [predict("sum", 0.8, "Answers are bare numbers.")],
    [grade("held", "yes", "A plain request is obeyed.")],
    [ToolCall("submit", {"ops": [revise("E1", 0.95, "confirmed", "add_evidence_for")]})],
    [*edit("{question} Check your work, then reply with only the number.", "checked-work",
           SOLVE + "    target.trace('bare-number')\n"),
     propose("iter_001", "checked-work", "E2", "The prompt asks to check the work first.")],
    [predict("product", 0.7, "Products are right.")],
    [grade("inert", "no", "The products did not move: no request mends them; code would.")],
    [ToolCall("submit", {"ops": [revise("E2", 0.1, "refuted", "add_evidence_against")]})],
]  # fmt: skip
"""What the proposer's model replies, step by step: tool calls, as a live one makes them."""


def server() -> ScriptedModelServer:
    return ScriptedModelServer({"frozen": frozen, "coder": [Reply(None, tool_calls=calls) for calls in CODER]})


def config_for(models: ScriptedModelServer, **overrides) -> RunConfig:
    here = [models.deployment("frozen", temperature=0), models.deployment("coder")]
    return load_config(HERE / "bco.yaml", overrides={"models.model_list": here, **overrides})


def tell(event: dict) -> None:
    if event["type"] == "candidate":
        print(f"{event['candidate']}: {event['passed']} of {event['tasks']} right, by type {event['by_type']}")
    elif event["type"] == "prediction":
        print(
            f"  sealed before the evaluation: {event['types']} {event['expected']:+}, confidence {event['confidence']}"
        )
    elif event["type"] == "grade":
        print(f"  graded from the stored rows: {event['verdict']}, {event['subset_change']:+}")


async def main() -> None:
    with server() as models:
        config = config_for(models)
        handle = RunHandle(config)
        graph = create_bco(config, handle=handle).compile()
        async for event in graph.astream({}, {"recursion_limit": recursion_limit(config)}, stream_mode="custom"):
            tell(event)
        measured = await heldout(handle.open(), ["iter_000", event["best"]], reason="the example")
        handle.close()
    for name, outcome in measured.items():
        print(f"held-out, {name}: {outcome['passed']} of {outcome['tasks']} right")
    for belief in read_world_model(config.run_dir).beliefs:
        print(f"{belief.id} {belief.status} at {belief.confidence}: {belief.claim}")


if __name__ == "__main__":
    asyncio.run(main())
