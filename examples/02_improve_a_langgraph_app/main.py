"""A LangGraph app improved from outside: the proposer adds a node to it, and the app's file is what changes.

python main.py        # no key: both models are scripts on this machine
"""

import asyncio
import json
import re
from pathlib import Path

from bco_graph import create_bco, load_config, recursion_limit
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall

HERE = Path(__file__).parent


def frozen(body: dict) -> str:
    """The target: it finds the room, and cannot say it shortly."""
    rooms, _, request = body["messages"][-1]["content"].partition("\n")
    room = next(room for topic, room in re.findall(r"(\w+): (\w+)", rooms) if topic in request)
    return f"That would be room {room}, on the left."


TIDY = '''\
def tidy(state: State) -> State:
    """The model says more than the room: keep what looks like one."""
    found = re.findall(r"\\b[A-Z]\\d\\d\\b", state["answer"])
    return {"answer": found[0] if found else state["answer"]}


def build(model):
'''
CODER = [
    ToolCall("edit_file", {"path": "scaffold/app.py", "old": "from typing", "new": "import re\nfrom typing"}),
    ToolCall("edit_file", {"path": "scaffold/app.py", "old": "def build(model):\n", "new": TIDY}),
    ToolCall("edit_file", {"path": "scaffold/app.py", "old": '    graph.add_edge("look_up", "ask")\n',
                           "new": '    graph.add_edge("look_up", "ask")\n    graph.add_node("tidy", tidy)\n'
                                  '    graph.add_edge("ask", "tidy")\n'}),
    ToolCall("submit", {"parent": "iter_000", "name": "tidy", "mechanism": "A node after the model keeps the room."}),
]  # fmt: skip
"""What the proposer's model replies, in one turn: edits, and the submission."""


async def main() -> None:
    with ScriptedModelServer({"frozen": frozen, "coder": [Reply(None, tool_calls=CODER)]}) as server:
        here = [server.deployment("frozen", temperature=0), server.deployment("coder")]
        config = load_config(HERE / "bco.yaml", overrides={"models.model_list": here})
        graph = create_bco(config).compile()
        async for event in graph.astream({}, {"recursion_limit": recursion_limit(config)}, stream_mode="custom"):
            if event["type"] == "candidate":
                trace = config.run_dir / "iterations" / event["candidate"] / "traces" / "train-0.json"
                first = json.loads(trace.read_text(encoding="utf-8"))
                nodes = " -> ".join(step["node"] for step in first["events"])
                print(f"{event['candidate']}: mean {event['mean']:.2f}, {nodes}: {first['answer']!r}")
    print("the edit:", config.run_dir / "iterations/iter_001/diff.patch")


if __name__ == "__main__":
    asyncio.run(main())
