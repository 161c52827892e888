"""One node of BCO replaced by your own: `propose` tries a list of prompts, and no proposer model is needed.

python main.py        # no key: the model is a script on this machine
"""

import asyncio
import sys
from pathlib import Path

from bco_graph import BCOState, create_bco, recursion_limit
from bco_graph.testing import ScriptedModelServer

sys.path.insert(0, str(Path(__file__).parents[1] / "06_own_suite"))
from main import Capitals, config_for, model

PROMPTS = ["Say the capital of {country}, please.", "Name the capital of {country} in one word."]


async def propose(state: BCOState, *, run):
    """A staged edit of a parent, as our own `propose` returns it: recorded, checked and evaluated like any other."""
    iteration, parent = state["iteration"] + 1, state["best"]["id"]
    with run.source(run.candidates.tree(parent)) as scaffold:
        (scaffold / "prompt.md").write_text(PROMPTS[iteration - 1] + "\n", encoding="utf-8")
        tree = run.candidates.stage(scaffold)
    return {
        "proposal": {
            "iteration": iteration, "parent": parent, "name": f"prompt-{iteration}", "tree": tree, "failure": None,
            "mechanism": "another prompt", "mode": None, "beliefs": [], "failure_mode": "", "live_signature": "",
        }
    }  # fmt: skip


async def main() -> None:
    with ScriptedModelServer({"frozen": model}) as server:
        config = config_for(server, name="own-node", iterations=len(PROMPTS))
        graph = create_bco(config, suite=Capitals(), nodes={"propose": propose}).compile()
        async for update in graph.astream({}, {"recursion_limit": recursion_limit(config)}, stream_mode="updates"):
            if "evaluate" in update:
                outcome, best = update["evaluate"]["outcome"], update["evaluate"]["best"]
                print(f"{outcome['candidate']}: {outcome['mean']:.2f}, best {best['id']}")


if __name__ == "__main__":
    asyncio.run(main())
