"""`bco init`: a commented bco.yaml, from an installed suite, a scaffold folder or a LangGraph app."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from bco_graph.apart import run_apart
from bco_graph.config import nearest
from bco_graph.errors import ConfigError
from bco_graph.run_folder import write_text
from bco_graph.state import JSON

_TEMPLATE = """\
# bco-graph: everything a run needs. A key that is not known is refused, with the nearest name.
name: {name}                  # the run folder is {runs}/{name}
method: {method}                   # bco | vanilla | notes
iterations: 10
runs: {runs}

suite: {suite}
{suite_options}
# The frozen target and the proposer, in litellm's own proxy format. A key is `os.environ/NAME`, never the key itself.
models:
  model_list:
    - model_name: target
      litellm_params:
        {target}
        temperature: 0
        max_tokens: {max_tokens}
    - model_name: proposer
      litellm_params:
        model: anthropic/claude-opus-4-5
        api_key: os.environ/ANTHROPIC_API_KEY
  retries: 2                  # of one call, after 429, 5xx or a connection fault; never after 401, 403, 404
  timeout_s: 120              # seconds for one call
  cache: true

roles:                        # a target swap is this line
  target: target
  proposer: proposer

proposer:
  kind: agent                 # agent | command | handoff | replay (or the name of an installed one)
  max_turns: 60               # agent: model calls in one step
  max_tokens: 2000000         # agent: prompt and completion tokens in one step, every turn's prompt counted
  max_refusals: 3

evaluation:
  repeats: 1
  concurrency: {concurrency}
  timeout_s: 120              # seconds for one task
  sandbox: auto               # auto | required | off
  coverage_floor: 0.9         # below this share of real results a candidate is undecided

budget:                       # refused before the call that would pass a limit; leave a line out for no limit
  tokens: 20000000
  # usd: 20                   # needs a price for every model that is called
  # wall_s: 14400

grading: computed             # computed | paper (the proposer's own numbers stand)
max_failures: 3               # failed iterations in a row that end the run
"""

_FOLDER_SUITE = """\
suite_options:
  train: {train}              # JSON lines: {{"id": ..., "type": ..., "inputs": {{...}}, "gold": ...}}
  heldout: {heldout}
  scaffold: {scaffold}
  match: exact                # exact | contains | judge (a model compares: roles.judge names its deployment)
"""

_GRAPH_ENTRY = """\
  entry:
    path: {path}
    kind: graph
    # The graph's input has the keys: {takes}. "{{name}}" is a task's input of that name.
    input: {input}
    # Where the answer lies in the final state, which has the keys: {gives}.
    output: {output}
"""
_QUESTIONS = ("question", "query", "input", "user_input", "prompt", "text", "topic", "task", "request")
_ANSWERS = ("answer", "final_answer", "output", "result", "response", "generation", "report", "summary")
"""What apps often call these keys, the likelier first."""


def write_config(path: Path, *, suite: str | None, folder: Path | None, method: str) -> Path:
    """Write the config and return its path. Refuses to replace a file; `suite` and `folder` exclude each other."""
    if path.exists():
        raise ConfigError(f"{path} is there already: give another path, as in `bco init other.yaml`")
    if suite and folder:
        raise ConfigError("--suite and --folder exclude each other: a folder brings tasks of its own")
    write_text(path, _from_folder(path, folder, method) if folder else _from_suite(suite or "quickstart", method))
    return path


@dataclass(frozen=True, slots=True)
class Started:
    """What `bco init --langgraph` wrote, with the mapping that it proposes, and what to do next."""

    wrote: Sequence[Path]
    entry: Mapping[str, JSON]
    next: Sequence[str]

    def facts(self) -> dict[str, JSON]:
        return {"wrote": [str(path) for path in self.wrote], "entry": dict(self.entry), "next": list(self.next)}

    def render(self) -> str:
        mapping = f"{json.dumps(self.entry['input'], ensure_ascii=False)} -> {self.entry['output']}"
        lines = [
            *(f"wrote {path}" for path in self.wrote),
            f"the graph was built; proposed mapping: {mapping}",
            "next:",
        ]
        return "\n".join([*lines, *(f"  {number}. {step}" for number, step in enumerate(self.next, 1))])


def write_app_config(path: Path, app: str, *, folder: Path | None, method: str) -> Started:
    """A config for the LangGraph app `FILE.py:ATTR`, after its graph was built once, in a sandbox and without a call.

    `folder` is the scaffold, which the file lies in (None: the file's own folder). Example tasks are written beside the
    config where there are none. Raises ConfigError, with nothing written, for what cannot be run as it is.
    """
    if path.exists():
        raise ConfigError(f"{path} is there already: give another path, as in `bco init other.yaml`")
    scaffold, entry = _locate(app, folder, path)
    found = _describe_graph(scaffold, entry)
    tasks = {split: path.parent / "tasks" / f"{split}.jsonl" for split in ("train", "heldout")}
    mapping = {"path": entry, "kind": "graph", **propose_mapping(found, _inputs_of(tasks["train"]))}
    wrote = [path, *(file for file in tasks.values() if not file.exists())]
    for file in wrote[1:]:
        write_text(file, _example_tasks(file.stem, mapping["input"]))
    write_text(path, _graph_config(path, scaffold, method, mapping, found))
    steps = [
        f"look at entry.input and entry.output in {path}",
        f"put your tasks in {tasks['train']} and {tasks['heldout']}, one JSON object a line",
        f"choose the models in {path}, then: bco doctor {path}",
        f"bco run {path}",
    ]
    return Started(wrote, mapping, steps)


def _locate(app: str, folder: Path | None, path: Path) -> tuple[Path, str]:
    """The scaffold's folder and the entry point below it."""
    file, _, attribute = app.rpartition(":")
    if not file.endswith(".py") or not attribute.isidentifier():
        raise ConfigError(f"--langgraph is {app!r}; expected FILE.py:ATTR, such as my_app/app.py:build")
    place = (folder / file if folder and not Path(file).is_absolute() else Path(file)).resolve()
    if not place.is_file():
        raise ConfigError(f"--langgraph names {str(place)!r}, which is no file; expected FILE.py:ATTR")
    scaffold = folder.resolve() if folder else place.parent
    if not place.is_relative_to(scaffold):
        raise ConfigError(
            f"{str(place)!r} lies outside of --folder {str(scaffold)!r}; give the folder that holds the app"
        )
    _refuse_inside(scaffold, path)
    return scaffold, f"{place.relative_to(scaffold).as_posix()}:{attribute}"


def _refuse_inside(scaffold: Path, path: Path) -> None:
    if path.parent.resolve().is_relative_to(scaffold):
        raise ConfigError(
            f"the folder {str(scaffold)!r} is the scaffold that is copied and edited, and {path} would lie in it with "
            "the tasks and their answers: give the scaffold a folder of its own, or write the config above it"
        )


def _describe_graph(scaffold: Path, entry: str) -> dict[str, Any]:
    """Its nodes and the schemas of its input and output, as a candidate's process sees them."""
    from bco_graph.config import Evaluation
    from bco_graph.evaluation import LeakPatterns, LocalExecutor, check_candidate
    from bco_graph.protocols import Interface, Job, RunResult, Task

    executor = LocalExecutor(Evaluation(), socket_path=Path("/nonexistent"))
    interface = Interface(entry=entry, kind="graph", settings={"describe": True})
    if problems := check_candidate(scaffold, interface, LeakPatterns.build([], {}), executor):
        reasons = "\n  ".join(problems)
        raise ConfigError(
            f"the app in {scaffold} cannot be run as it is:\n  {reasons}\n"
            "It needs `def build(model): ... return graph`, which uses the model it is given; none is made at import"
        )
    results: list[RunResult] = []

    async def keep(result: RunResult) -> None:
        results.append(result)

    run_apart(executor.run(scaffold, interface, [Job(Task("init", "init", {}), 0, "")], keep))
    if results[0].status != "answered":
        raise ConfigError(f"the graph of {entry} cannot be described: {results[0].error}")
    return cast(dict[str, Any], results[0].answer)


def propose_mapping(found: Mapping[str, Any], inputs: Sequence[str]) -> dict[str, JSON]:
    """Input and output by the names of keys; a guess, which the config shows with all keys that there are."""
    takes, gives = found["input"].get("properties", {}), found["output"].get("properties", {})
    same = {name: f"{{{name}}}" for name in takes if name in inputs}
    asked = f"{{{inputs[0] if inputs else 'question'}}}"
    given: JSON = same or {next((name for name in _QUESTIONS if name in takes), next(iter(takes), "question")): asked}
    if not same and "messages" in takes:
        given = {"messages": [{"role": "user", "content": asked}]}
    answer = next((name for name in _ANSWERS if name in gives), None)
    last = "messages.-1.content" if "messages" in gives else next(reversed(gives), "answer")
    return {"input": given, "output": answer or last}


def _inputs_of(tasks: Path) -> list[str]:
    """Names of the inputs of the first task that is there already."""
    try:
        first = json.loads(next(line for line in tasks.read_text(encoding="utf-8").splitlines() if line.strip()))
        return list(first["inputs"])
    except FileNotFoundError:
        return []
    except (StopIteration, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f'{tasks}: the first line is no task such as {{"id": ..., "inputs": {{...}}, "gold": ...}}'
        ) from error


def _example_tasks(split: str, template: JSON) -> str:
    """Two tasks, as an example of the form; their inputs are those that the mapping takes."""
    names = dict.fromkeys(re.findall(r"\{(\w+)\}", json.dumps(template)))
    tasks = []
    for number, (a, b) in enumerate([(6, 7), (8, 9)] if split == "train" else [(4, 5), (3, 9)], 1):
        inputs = dict.fromkeys(names, f"What is {a} times {b}?")
        tasks.append({"id": f"{split}-{number}", "type": "example", "inputs": inputs, "gold": str(a * b)})
    return "".join(json.dumps(task) + "\n" for task in tasks)


def _graph_config(path: Path, scaffold: Path, method: str, mapping: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    takes, gives = (", ".join(found[face].get("properties", {})) or "not known" for face in ("input", "output"))
    entry = _GRAPH_ENTRY.format(
        path=mapping["path"], takes=takes, gives=gives, input=json.dumps(mapping["input"]), output=mapping["output"]
    )
    return _folder_config(path, scaffold, method, entry)


def _from_suite(suite: str, method: str) -> str:
    installed = sorted(entry.name for entry in entry_points(group="bco_graph.suites"))
    if suite not in installed:
        raise ConfigError(f"unknown suite {suite!r}{nearest(suite, installed)}; installed: {', '.join(installed)}")
    return _TEMPLATE.format(
        name=f"{suite}-{method}", method=method, runs="runs", suite=suite, suite_options="",
        target="model: local/smollm2-135m     # in this process; needs the extra [local]", max_tokens=48, concurrency=4,
    )  # fmt: skip


def _from_folder(path: Path, folder: Path, method: str) -> str:
    if not (folder / "agent.py").is_file():
        raise ConfigError(
            f"{folder} has no agent.py: a scaffold needs `async def solve(task, target)` in agent.py at its top"
        )
    _refuse_inside(folder.resolve(), path)
    return _folder_config(path, folder.resolve(), method, "")


def _folder_config(path: Path, scaffold: Path, method: str, entry: str) -> str:
    base = path.parent.resolve()
    shown = scaffold.relative_to(base) if scaffold.is_relative_to(base) else scaffold
    options = _FOLDER_SUITE.format(train="tasks/train.jsonl", heldout="tasks/heldout.jsonl", scaffold=shown)
    return _TEMPLATE.format(
        name=f"{scaffold.name}-{method}", method=method, runs="runs", suite="jsonl", suite_options=options + entry,
        target="model: openai/gpt-5-mini\n        api_key: os.environ/OPENAI_API_KEY", max_tokens=1024, concurrency=16,
    )  # fmt: skip
