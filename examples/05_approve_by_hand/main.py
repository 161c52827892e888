"""A person in the loop: one edit is rejected, the next is changed by hand, and a belief is added after the grade.

python main.py        # no key: both models are scripts on this machine, and the person is the function below
"""

import asyncio
import re
import sys
from pathlib import Path

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from bco_graph import create_bco, read_world_model, recursion_limit
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall

sys.path.insert(0, str(Path(__file__).parents[1] / "06_own_suite"))
from main import Capitals, config_for, model


def person(question: dict) -> dict:
    """What somebody would do at a terminal (`bco step`, `bco approve`, `bco submit`) or behind a web page."""
    if question["step"] == "review":
        hunch = {"claim": "A name in two words is cut to one.", "confidence": 0.6, "pinned": True}
        return {"beliefs": [{"add": hunch}, {"pin": "E1"}], "by": "you"}
    if question["iteration"] == 1:
        return {"decision": "reject", "reason": "Say it as a request, not as a shout.", "by": "you"}
    prompt = Path(question["workspace"]) / "scaffold" / "prompt.md"
    prompt.write_text("What is the capital of {country}? Please answer with one word.\n", encoding="utf-8")
    return {"decision": "edit", "by": "you"}


BELIEF = {
    "op": "add", "kind": "execution", "claim": "The model wraps its answer in a sentence unless told not to.",
    "confidence": 0.6, "status": "hypothesis", "mass": 5, "reason": "all traces end so",
    "evidence_for": [{"path": "iterations/iter_000/traces/train-0.json"}],
}  # fmt: skip
STEPS = {
    "the first beliefs": [ToolCall("submit", {"ops": [BELIEF]})],
    "propose": [
        ToolCall("edit_file", {"path": "scaffold/prompt.md", "old": "?", "new": "? ONE WORD!"}),
        ToolCall("edit_file", {"path": "scaffold/agent.py", "old": "    return",
                               "new": "    target.trace('short-reply')\n    return"}),
        ToolCall("submit", {"parent": "iter_000", "name": "short-reply", "mechanism": "The prompt asks for one word.",
                            "mode": "probe", "failure_mode": "a sentence", "beliefs": ["E1"],
                            "live_signature": "short-reply"}),
    ],
    "predict": [ToolCall("submit", {"base_why": "the only one", "behavioural": "single words", "confidence": 0.8,
                                    "subset": {"types": ["europe"], "expected": 1.0, "low": 0.5, "high": 1.0},
                                    "downside_bound": 0, "upside_types": ["europe"], "net_effect": 0.9,
                                    "falsification": "still sentences"})],
    "grade": [ToolCall("submit", {"behavioural_check": "single words", "behaviour_changed": "yes", "verdict": "held",
                                  "cause": "belief_wrong", "learned": "it obeys"})],
    "update the world model": [ToolCall("submit", {"ops": []})],
}  # fmt: skip


def proposer(body: dict) -> Reply:
    """One tool call a reply, of the step that was asked for last."""
    step, done = "", 0
    for message in body["messages"]:
        if found := re.search(r"^# Iteration \d+: (.+)$", str(message.get("content") or ""), flags=re.MULTILINE):
            step, done = found[1], 0
        done += message["role"] == "assistant"
    return Reply(None, tool_calls=[STEPS[step][done]])


def tell(question: dict, reply: dict) -> None:
    if question["step"] == "approve":
        added = [line for line in question["diff"].splitlines() if line.startswith("+") and "capital" in line]
        print(f"iteration {question['iteration']}, {question['proposal']['name']}: {added[0]}")
    else:
        print(f"{question['candidate']}: {question['verdict']}")
    print(f"  the person: {reply.get('decision', 'two changes of beliefs')} {reply.get('reason', '')}".rstrip())


async def main() -> None:
    with ScriptedModelServer({"frozen": model, "coder": proposer}) as server:
        config = config_for(
            server, name="by-hand", method="bco", iterations=2, proposer={"kind": "agent"},
            models={"model_list": [server.deployment("frozen", temperature=0), server.deployment("coder")]},
            roles={"target": "frozen", "proposer": "coder"}, ask={"edit": True, "grade": True},
        )  # fmt: skip
        graph = create_bco(config, suite=Capitals()).compile(checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1"}, "recursion_limit": recursion_limit(config)}
        state = await graph.ainvoke({}, thread)
        while asked := state.get("__interrupt__"):
            reply = person(asked[0].value)
            tell(asked[0].value, reply)
            state = await graph.ainvoke(Command(resume=reply), thread)
    print(f"best: {state['best']['id']} with {state['best']['mean']:.2f}")
    for belief in read_world_model(config.run_dir).beliefs:
        print(f"{belief.id} {', '.join(belief.marks)}: {belief.claim}")


if __name__ == "__main__":
    asyncio.run(main())
