"""`bco init`: a commented bco.yaml, from an installed suite or from a scaffold folder."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from bco_graph.config import nearest
from bco_graph.errors import ConfigError
from bco_graph.run_folder import write_text

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
  kind: agent                 # agent | command | handoff | replay
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
  match: exact                # exact | contains
"""


def write_config(path: Path, *, suite: str | None, folder: Path | None, method: str) -> Path:
    """Write the config and return its path. Refuses to replace a file; `suite` and `folder` exclude each other."""
    if path.exists():
        raise ConfigError(f"{path} is there already: give another path, as in `bco init other.yaml`")
    if suite and folder:
        raise ConfigError("--suite and --folder exclude each other: a folder brings tasks of its own")
    write_text(path, _from_folder(path, folder, method) if folder else _from_suite(suite or "quickstart", method))
    return path


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
    base = path.parent.resolve()
    scaffold = folder.resolve()
    shown = scaffold.relative_to(base) if scaffold.is_relative_to(base) else scaffold
    options = _FOLDER_SUITE.format(train="tasks/train.jsonl", heldout="tasks/heldout.jsonl", scaffold=shown)
    return _TEMPLATE.format(
        name=f"{scaffold.name}-{method}", method=method, runs="runs", suite="jsonl", suite_options=options,
        target="model: openai/gpt-5-mini\n        api_key: os.environ/OPENAI_API_KEY", max_tokens=1024, concurrency=16,
    )  # fmt: skip
