"""The same 1,449 calls of 50 ms, 64 at once, by other libraries' evaluators, against a bare aiohttp loop in one run.

Needs the extra `peers` (dspy, gepa, inspect-ai); one that is not installed is named and passed over. None of them runs
a candidate in a process of its own; what is timed is one call a task, its row kept. One line each: seconds, and the
ratio to the bare loop. Run it as `python -m tests.bench.peers`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from tests.bench.gateway_arms import messages, server, timed

TASKS, AT_ONCE, DELAY_S = 1449, 64, 0.05
QUESTIONS = [messages(number)[0]["content"] for number in range(TASKS)]


def by_dspy(base: str) -> None:
    import dspy

    dspy.configure(lm=dspy.LM("openai/m", api_base=base, api_key="none", cache=False, num_retries=0))
    examples = [dspy.Example(question=text, answer="ok").with_inputs("question") for text in QUESTIONS]

    class Ask(dspy.Module):  # type: ignore[misc]  # the library has no types
        def forward(self, question: str) -> Any:
            return dspy.Prediction(answer=dspy.settings.lm(question)[0])

    evaluate = dspy.Evaluate(devset=examples, metric=_same, num_threads=AT_ONCE, display_progress=False)
    assert float(evaluate(Ask()).score) == 100.0


def _same(example: Any, prediction: Any, trace: Any = None) -> bool:
    return str(example.answer) in str(prediction.answer)


def by_gepa(base: str) -> None:
    from gepa.adapters.default_adapter.default_adapter import DefaultAdapter

    os.environ |= {"OPENAI_API_KEY": "none", "OPENAI_API_BASE": base, "OPENAI_BASE_URL": base}
    batch: Any = [{"input": text, "additional_context": {}, "answer": "ok"} for text in QUESTIONS]
    done = DefaultAdapter("openai/m", max_litellm_workers=AT_ONCE).evaluate(batch, {"system_prompt": "Answer."})
    assert sum(done.scores) == TASKS


def by_inspect(base: str) -> None:
    import inspect_ai
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    config = GenerateConfig(max_connections=AT_ONCE, max_retries=0)
    model = get_model("openai/m", base_url=base, api_key="none", responses_api=False, config=config)
    samples = MemoryDataset([Sample(input=text, target="ok") for text in QUESTIONS])
    task = inspect_ai.Task(dataset=samples, solver=[generate()], scorer=includes())
    with tempfile.TemporaryDirectory() as logs:
        (log,) = inspect_ai.eval(task, model=model, display="none", log_dir=logs, max_samples=AT_ONCE)
    assert log.status == "success"
    assert log.results.scores[0].metrics["accuracy"].value == 1.0


PEERS: dict[str, tuple[str, Callable[[str], None]]] = {
    "dspy.Evaluate": ("dspy", by_dspy), "gepa adapter": ("gepa", by_gepa), "inspect_ai": ("inspect_ai", by_inspect),
}  # fmt: skip


def main() -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    chosen = sys.argv[1:] or list(PEERS)
    with server(DELAY_S) as base:
        for name in chosen:
            module, run = PEERS[name]
            if find_spec(module) is None:
                print(json.dumps({"peer": name, "missing": "pip install 'bco-graph[peers]'"}))
                continue
            bare_s = timed(base, "none", 0, TASKS, AT_ONCE)
            started = time.perf_counter()
            run(base)
            seconds = time.perf_counter() - started
            print(json.dumps({"peer": name, "bare_s": round(bare_s, 2), "seconds": round(seconds, 2),
                              "ratio": round(seconds / bare_s, 2)}))  # fmt: skip


if __name__ == "__main__":
    main()
