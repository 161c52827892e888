"""bco.yaml -> RunConfig: strict, complete, with the nearest name for a misspelt key.

Read once; nothing looks at the environment afterwards, but for `os.environ/NAME` keys, which the gateway resolves.
"""

from __future__ import annotations

import copy
import math
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, Field, StringConstraints, ValidationError, model_validator

from bco_graph.errors import ConfigError
from bco_graph.model_sections import CODE
from bco_graph.model_sections import Deployment as Deployment
from bco_graph.model_sections import Models as Models
from bco_graph.sections import Name, Section
from bco_graph.sections import nearest as nearest
from bco_graph.sink_sections import SINKS, Sink
from bco_graph.state import Method, NodeName
from bco_graph.strict_json import MAX_DEPTH, is_too_deep

RunName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]


class Roles(Section):
    """Which deployment (`model_name`) plays which role; `code`: the model is given in code. A role that a run does not
    use may stay empty."""

    target: Name
    proposer: Name | None = None
    judge: Name | None = None
    """Asked by graders that compare answers by a model."""
    predictor: Name | None = None
    """Makes the step `predict` in the proposer's place (`proposer.kind: agent`)."""


class ProposerConfig(Section):
    """Who proposes. `agent`: a tool loop on the proposer role; `command`: a coding-agent CLI; `handoff`: a person
    or another system, through an interrupt; `replay`: the steps of a recorded run; any other name: an entry point
    of the group `bco_graph.proposers`."""

    kind: Name = "agent"
    max_refusals: Annotated[int, Field(ge=0, le=20)] = 3
    """How many refused submissions a step may have before it fails."""
    max_turns: Annotated[int, Field(gt=0)] = 60
    """`agent`: model calls in one step."""
    max_tokens: Annotated[int, Field(gt=0)] = 2_000_000
    """`agent`: prompt plus completion tokens in one step, the prompt of every turn counted."""
    protocol: Literal["auto", "tools", "json"] = "auto"
    """`agent`: native tool calling, or one JSON object a line; `auto` asks the model's description."""
    command: list[str] = Field(default_factory=list)
    """`command`: argv; `{prompt}`, `{prompt_file}`, `{workspace}`, `{gateway}` and `{token}` are filled in."""
    timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """`command`: seconds for one step."""
    environment: list[str] = Field(default_factory=list)
    """`command`: names of variables it may see beside PATH, HOME, LANG and TERM, credentials among them."""
    sandbox: Literal["auto", "required", "off"] = "auto"
    """`command`: `auto`: in bubblewrap where that works, else unconfined, with a warning; `required`: refuse then."""
    readable: list[str] = Field(default_factory=list)
    """`command`: files and folders that it may read too, inside bubblewrap; `~` is the home folder."""
    network: bool = False
    """`command`: whether it has the machine's network, inside bubblewrap; it always reaches the gateway."""
    recording: str | None = None
    """`replay`: folder of the recorded steps."""


class Evaluation(Section):
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds for one task."""
    grader_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds for grading one answer; past it the row is an infra error, as the scaffold is not at fault."""
    sandbox: Literal["auto", "required", "off"] = "auto"
    """`auto`: bubblewrap where it works, else Landlock, else none, and the run says so; `required`: refuse to run
    without bubblewrap and the isolation that is asked for."""
    isolation: Literal["task", "candidate"] = "task"
    """`task`: each task has namespaces of its own; `candidate`: one sandbox around all tasks of a candidate, which
    share its /tmp and its processes, at about half the cost of a task."""
    memory_mb: Annotated[int, Field(ge=64)] | None = None
    """Address space of each process of a task, in MiB; None: no limit."""
    coverage_floor: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Below this share of real results a candidate is undecided."""
    train: Annotated[int, Field(gt=0)] | None = None
    """Use only the first N train tasks, spread evenly over types; None: all."""
    heldout: Annotated[int, Field(gt=0)] | None = None
    max_trace_bytes: Annotated[int, Field(ge=1000)] = 1_000_000
    """Kept of each of stdout and stderr; a cut is marked with both sizes."""


class Budget(Section):
    """Limits over the whole run, all roles together. None: no limit. Refused before the call that would pass one."""

    calls: Annotated[int, Field(gt=0)] | None = None
    tokens: Annotated[int, Field(gt=0)] | None = None
    usd: Annotated[float, Field(gt=0)] | None = None
    """Needs a price for each model that is called: litellm's, or `model_info.input_cost_per_token` and output."""
    wall_s: Annotated[float, Field(gt=0)] | None = None
    reserve_heldout: bool = True
    """Keep back what the held-out evaluation of baseline and best will take, going by their train rows."""


class WorldModelConfig(Section):
    token_budget: Annotated[int, Field(ge=500)] = 6000
    """Tokens that the HEAD may take (estimated as characters / 4); compaction keeps it below."""
    calibration_block: bool = True


class Ask(Section):
    """Where the run stops and asks a person (docs/ASK.md). All off: the graph has no such node."""

    edit: bool = False
    """Before an edit is predicted and evaluated."""
    evaluation_usd: Annotated[float, Field(ge=0)] | None = None
    """Before an evaluation that is expected to cost more, by what the baseline's tasks took; also where no price is
    known. None: no limit."""
    evaluation_calls: Annotated[int, Field(ge=0)] | None = None
    """Before an evaluation that is expected to take more model calls. None: no limit."""
    grade: bool = False
    """After a grade, before the beliefs are updated by it (method `bco`)."""


class RunConfig(Section):
    """The whole of bco.yaml."""

    name: RunName
    method: Method = "bco"
    iterations: Annotated[int, Field(ge=0, le=100_000)] = 10
    suite: Name
    suite_options: dict[str, Any] = Field(default_factory=dict)
    scaffold: str | None = None
    """Folder of the initial scaffold; None: the suite's own."""
    runs: str = "runs"
    """Folder in which run folders are made, from where the command is given."""
    base: str = "."
    """Folder that relative paths of scaffold, suite and recording start from: the config file's own."""
    models: Models
    roles: Roles
    proposer: ProposerConfig = Field(default_factory=ProposerConfig)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    budget: Budget = Field(default_factory=Budget)
    world_model: WorldModelConfig = Field(default_factory=WorldModelConfig)
    ask: Ask = Field(default_factory=Ask)
    nodes: dict[NodeName, Name] = Field(default_factory=dict)
    """Own nodes in the place of ours: an entry point of the group `bco_graph.nodes`, `package.module:function`, or
    `path/to/file.py:function`."""
    sinks: list[Sink] = Field(default_factory=list)
    """Other systems that get the run's events."""
    grading: Literal["computed", "paper"] = "computed"
    max_failures: Annotated[int, Field(ge=1)] = 3
    """This many failed iterations in a row stop the run. An edit that a person rejected ends the row: it was one."""

    @model_validator(mode="after")
    def _roles_exist(self) -> RunConfig:
        names = [d.model_name for d in self.models.model_list]
        for role, name in self.roles.model_dump().items():
            if name not in (None, CODE, *names):
                raise ValueError(
                    f"roles.{role} names the deployment {name!r}, which models.model_list does not have"
                    f"{nearest(name, names)}; available: {', '.join(names) or 'none'}"
                )
        return self

    @model_validator(mode="after")
    def _grades_are_made(self) -> RunConfig:
        if self.ask.grade and self.method != "bco":
            raise ValueError(f"ask.grade: the method {self.method!r} makes no grade; only 'bco' does")
        return self

    @model_validator(mode="after")
    def _sinks_differ(self) -> RunConfig:
        if twice := next((sink for sink in self.sinks if self.sinks.count(sink) > 1), None):
            raise ValueError(f"sinks: one of kind {twice.kind!r} is given twice")
        return self

    @property
    def run_dir(self) -> Path:
        return Path(self.runs) / self.name


def load_config(path: Path | str, *, overrides: dict[str, Any] | None = None) -> RunConfig:
    """Read and check a bco.yaml. Relative paths in it start at the file's own folder, but for `runs`.

    `overrides` maps dotted keys to values and wins over the file. Raises ConfigError that names the file, each
    wrong key, what was expected and the nearest known name.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the config {str(path)!r}: {error.strerror}; `bco init` writes one") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    raw = _yaml(text, f"{path} is")
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds no mapping at its top; `bco init` writes a config to start from")
    return check_config(with_overrides(raw, overrides or {}), source=str(path), base=path.parent)


def _yaml(text: str, what: str) -> Any:
    """The value of a YAML text where it is plain JSON, so that run.json can hold it; `what` begins the complaint."""
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what} not YAML: {error}") from error
    odd = "it is nested too deeply" if is_too_deep(value) else next(_foreign(value, ""), None)
    if odd:
        raise ConfigError(f"{what} no plain data: {odd}")
    return value


def _foreign(value: Any, where: str) -> typing.Iterator[str]:
    """What JSON has no form for, with where it stands."""
    if isinstance(value, dict):
        for key, inner in value.items():
            at = f"{where}.{key}".lstrip(".")
            if not isinstance(key, str):
                yield f"the key {at} is a {type(key).__name__}; put it in quotes to make it text"
            yield from _foreign(key, at)
            yield from _foreign(inner, at)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _foreign(inner, f"{where}[{position}]")
    elif isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            yield f"{where!a} holds half of a surrogate pair, which is no character"
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where} is {value}; give a finite number, or null for no limit"
    elif not isinstance(value, int | float | None):
        yield f"{where} is a {type(value).__name__}, {str(value)!r}; put it in quotes to make it text"


def check_config(raw: dict[str, Any], *, source: str = "config", base: Path | None = None) -> RunConfig:
    """RunConfig of a plain mapping; `base` is where relative folders start (None: left as they are)."""
    raw, source = _with_models_file(raw, source, base or Path())
    if is_too_deep({"config": raw}):  # as run.json holds it
        raise ConfigError(f"{source}: {MAX_DEPTH} lists and mappings, or more, lie within one another")
    try:
        config = RunConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(_explain(error, source)) from error
    if base is None:
        return config
    changes: dict[str, Any] = {"base": str(base.resolve())}
    if config.scaffold is not None:
        changes["scaffold"] = str(base.resolve() / config.scaffold)
    if config.proposer.recording is not None:
        recording = str(base.resolve() / config.proposer.recording)
        changes["proposer"] = config.proposer.model_copy(update={"recording": recording})
    return config.model_copy(update=changes)


def _with_models_file(raw: dict[str, Any], source: str, base: Path) -> tuple[dict[str, Any], str]:
    """The config with the sections of `models.file` in `models`, where they are not given there."""
    models = raw.get("models")
    if not isinstance(models, dict) or "file" not in models:
        return raw, source
    path = base / str(models["file"])
    try:
        given = _yaml(path.read_text(encoding="utf-8"), f"models.file {str(path)!r} is")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: models.file {str(path)!r} cannot be read: {error}") from error
    if not isinstance(given, dict) or "model_list" not in given:
        raise ConfigError(f"{source}: models.file {str(path)!r} is no config of litellm's proxy: it has no model_list")
    own = {name: value for name, value in models.items() if name != "file"}
    return {**raw, "models": {**given, **own}}, f"{source} with {path}"


def with_overrides(raw: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """A copy of a plain config with dotted keys, such as `budget.tokens`, set to other values."""
    changed = copy.deepcopy(raw)
    for dotted, value in overrides.items():
        *parents, last = dotted.split(".")
        section = changed
        for key in parents:
            section = section.setdefault(key, {})
            if not isinstance(section, dict):
                raise ConfigError(f"{dotted!r} cannot be set: {key!r} is no section")
        section[last] = value
    return changed


def parse_settings(settings: typing.Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as overrides; the value is read as YAML, so that 3 is a number and null is no limit."""
    parsed = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{setting!r} is no setting: write KEY=VALUE, such as budget.tokens=1000000")
        parsed[key.strip()] = _yaml(value, f"{setting!r}: the value is")
    return parsed


def _explain(error: ValidationError, source: str) -> str:
    lines = [f"{source}: {error.error_count()} problem(s)"]
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "top level"
        if item["type"] == "extra_forbidden":
            known = _keys_at(item["loc"][:-1])
            lines.append(f"  {where}: unknown key{nearest(str(item['loc'][-1]), known)}; known: {', '.join(known)}")
        elif item["type"] == "missing":
            lines.append(f"  {where}: missing; it is required")
        else:
            given = (
                ""
                if isinstance(item.get("input"), dict) or "password" in item["msg"]
                else f", not {item.get('input')!r}"
            )
            lines.append(f"  {where}: {item['msg'].removeprefix('Value error, ')}{given}")
    return "\n".join(lines)


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = RunConfig
    for part in location:
        if isinstance(part, str) and part in SINKS and location[0] == "sinks":
            model = SINKS[part]
        elif isinstance(part, str) and part in model.model_fields:
            model = _section_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for arg in typing.get_args(annotation) if (found := _section_in(arg))), None)
