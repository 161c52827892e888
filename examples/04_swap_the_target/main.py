"""Another target: one word to change, a run of its own, and what is refused so that two models never share a figure.

python main.py        # no key: the models are scripts on this machine
"""

import asyncio
import sys
from pathlib import Path

import yaml
from langchain_core.language_models import SimpleChatModel

from bco_graph import RunHandle, check_config, create_bco
from bco_graph.errors import RunMismatch
from bco_graph.testing import ScriptedModelServer

sys.path.insert(0, str(Path(__file__).parents[1] / "06_own_suite"))
from main import Capitals, model

CONFIG = """
name: small
method: vanilla
iterations: 0                 # the untouched baseline alone
suite: capitals
models:
  model_list:
    - model_name: small
      litellm_params: {model: openai/small, api_base: URL, api_key: none, temperature: 0}
    - model_name: large
      litellm_params: {model: openai/large, api_base: URL, api_key: none, temperature: 0}
roles:
  target: small               # a swap is this word, or `bco run --target large`, or target="large"
proposer: {kind: handoff}
"""


class InCode(SimpleChatModel):
    """Any LangChain chat model can play a role; this one has no deployment."""

    @property
    def _llm_type(self) -> str:
        return "in-code"

    def _call(self, messages, stop=None, run_manager=None, **kwargs) -> str:
        return model({"messages": [{"content": messages[-1].content + " Answer in one word."}]})


async def baseline(raw: dict, **how) -> str:
    """The baseline's score in a run of this config; how: target, baseline, models."""
    handle = RunHandle(check_config(raw), suite=Capitals(), **how)
    try:
        outcome = (await create_bco(handle.config, handle=handle).compile().ainvoke({}))["outcome"]
    finally:
        handle.close()
    return f"{outcome['passed']} of {outcome['tasks']} right"


async def main() -> None:
    laconic = {"small": model, "large": lambda body: model(body).removesuffix(".").split()[-1]}
    with ScriptedModelServer(laconic) as server:
        raw = yaml.safe_load(CONFIG.replace("URL", server.base_url))
        print("small:", await baseline(raw))
        try:
            await baseline(raw, target="large")
        except RunMismatch as error:
            print("the same run on another target is refused:", *str(error).splitlines()[1:2])
        print("large, in a run of its own:", await baseline({**raw, "name": "large"}, target="large"))
        try:
            await baseline({**raw, "name": "large-again"}, target="large", baseline=Path("runs/small"))
        except RunMismatch as error:
            print("another target's baseline is refused:", *str(error).splitlines()[1:2])
        paid = len(server.requests)
        again = await baseline({**raw, "name": "large-again"}, target="large", baseline=Path("runs/large"))
        print(f"its own is taken: {again}, {len(server.requests) - paid} model calls")
        in_code = {**raw, "name": "in-code", "roles": {"target": "code"}}
        print("a chat model in code:", await baseline(in_code, models={"target": InCode()}))


if __name__ == "__main__":
    asyncio.run(main())
