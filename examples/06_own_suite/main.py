"""A suite of your own, as an object, and the first thing to do with one: measure its untouched baseline.

python main.py        # no key: the model is a script on this machine
"""

import asyncio
import re
from pathlib import Path

from bco_graph import Interface, RunConfig, Score, Task, check_config, create_bco
from bco_graph.testing import ScriptedModelServer

CAPITALS = {
    "train": {"France": "Paris", "Spain": "Madrid", "Austria": "Vienna", "Peru": "Lima", "Chile": "Santiago"},
    "heldout": {"Italy": "Rome", "Greece": "Athens", "Ecuador": "Quito"},
}
SOUTH = {"Peru", "Chile", "Ecuador"}


class Capitals:
    """What a suite has to have; `bco_graph.Suite` is the protocol."""

    name = "capitals"
    interface = Interface(entry="agent.py:solve", placeholders={"prompt.md": ["{country}"]})

    def tasks(self, split):
        return [
            Task(f"{split}-{i}", "south america" if country in SOUTH else "europe", {"country": country})
            for i, country in enumerate(CAPITALS[split])
        ]

    def gold(self, task):
        return (CAPITALS["train"] | CAPITALS["heldout"])[task.inputs["country"]]

    def grade(self, task, answer):
        right = self.gold(task)
        return Score(1.0) if answer == right else Score(0.0, f"{answer!r} is not exactly {right!r}")

    def initial_scaffold(self):
        return Path(__file__).parent / "scaffold"

    def surface(self):
        return "Name the capital. Everything below `scaffold/` may be edited; an answer is compared to the letter.\n"


def model(body):
    """The frozen target: it knows the capitals, and talks until it is told not to."""
    prompt = body["messages"][-1]["content"]
    country = re.search(r"capital of (\w+)", prompt)[1]
    capital = (CAPITALS["train"] | CAPITALS["heldout"])[country]
    return capital if "one word" in prompt else f"The capital of {country} is {capital}."


def config_for(server: ScriptedModelServer, **more) -> RunConfig:
    return check_config(
        {
            "name": "capitals", "suite": f"{__file__}:Capitals", "method": "vanilla", "iterations": 0,
            "models": {"model_list": [server.deployment("frozen", temperature=0)]},
            "roles": {"target": "frozen"}, "proposer": {"kind": "handoff"}, **more,
        }
    )  # fmt: skip


async def main() -> None:
    with ScriptedModelServer({"frozen": model}) as server:
        # A config names a suite as `path/to/file.py:Class` or by an entry point of the group `bco_graph.suites`.
        state = await create_bco(config_for(server), suite=Capitals()).compile().ainvoke({})
    outcome = state["outcome"]
    print(f"baseline: {outcome['passed']} of {outcome['tasks']} right, by type {outcome['by_type']}")
    print("a trace of each task: runs/capitals/iterations/iter_000/traces/")


if __name__ == "__main__":
    asyncio.run(main())
