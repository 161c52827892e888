"""The option `entry` of the suite: which function of a scaffold is called, and how tasks go into a LangGraph app."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from bco_graph.config import nearest
from bco_graph.errors import ConfigError
from bco_graph.protocols import Interface, Task
from bco_graph.state import JSON

OPTION = "suite_options.entry"
_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
_OF_GRAPHS = ("input", "output", "recursion_limit")


class Entry(BaseModel):
    """`path` is `FILE:ATTR` in the scaffold. The rest is for kind `graph`, whose ATTR is `build(model) -> graph`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    path: Annotated[str, StringConstraints(pattern=r"^[\w./-]+\.py:\w+$")] = "agent.py:solve"
    kind: Literal["solve", "graph"] = "solve"
    input: Any = None
    """What the graph gets, with `{name}` for a task's input of that name; None: one message of the user, which is the
    one text that every task has."""
    output: Annotated[str, StringConstraints(pattern=r"^[^.]+(\.[^.]+)*$")] = "messages.-1.content"
    """Where the answer lies in the graph's final state: keys, attributes and positions."""
    recursion_limit: Annotated[int, Field(ge=1)] | None = None
    """Supersteps of one task; None: the graph's own."""

    @model_validator(mode="after")
    def _graph_keys_are_of_graphs(self) -> Entry:
        if self.kind == "solve" and (surplus := [key for key in _OF_GRAPHS if key in self.model_fields_set]):
            raise ValueError(f"only `kind: graph` has {', '.join(surplus)}; this is `kind: solve`")
        return self


def interface_of(
    option: str | Mapping[str, JSON], placeholders: Mapping[str, Sequence[str]], tasks: Sequence[Task]
) -> Interface:
    """The interface that the option declares; a text is the `path` of a `solve`. Raises ConfigError that names what
    is wrong with it, and the first task that lacks an input."""
    try:
        entry = Entry.model_validate({"path": option} if isinstance(option, str) else option)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from error
    if entry.kind == "solve":
        return Interface(entry=entry.path, placeholders=placeholders)
    template = _template_for(tasks) if entry.input is None else entry.input
    _check_fields(template, tasks)
    limit = {} if entry.recursion_limit is None else {"recursion_limit": entry.recursion_limit}
    settings: dict[str, JSON] = {"input": template, "output": entry.output, **limit}
    return Interface(entry=entry.path, kind="graph", settings=settings, placeholders=placeholders)


def _template_for(tasks: Sequence[Task]) -> JSON:
    names = {tuple(name for name, value in task.inputs.items() if isinstance(value, str)) for task in tasks}
    if len(names) == 1 and len(found := names.pop()) == 1:
        return {"messages": [{"role": "user", "content": f"{{{found[0]}}}"}]}
    some = ", ".join(sorted(tasks[0].inputs)) or "none"
    raise ConfigError(
        f"{OPTION}.input is missing, and tasks have not just one text as their input (the first task has: {some}): "
        'write what the graph gets, such as {messages: [{role: user, content: "{question}"}]}'
    )


def _check_fields(template: JSON, tasks: Sequence[Task]) -> None:
    wanted = list(dict.fromkeys(_fields(template)))
    for task in tasks:
        for name in wanted:
            if name not in task.inputs:
                has = ", ".join(sorted(task.inputs)) or "none"
                raise ConfigError(
                    f"{OPTION}.input uses {{{name}}}{nearest(name, task.inputs)}, which the inputs of task {task.id!r} "
                    f"do not have; they are: {has}. A brace that is no field is written {{{{ or }}}}"
                )


def _fields(template: JSON) -> Iterator[str]:
    """Names in the braces of all texts; `graph_entry.filled` reads them in the same way."""
    if isinstance(template, str):
        yield from (match[1] for match in _FIELD.finditer(template) if match[1] is not None)
    elif isinstance(template, Mapping | list):
        for value in template.values() if isinstance(template, Mapping) else template:
            yield from _fields(value)


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        where = ".".join([OPTION, *map(str, item["loc"])])
        if item["type"] == "extra_forbidden":
            known = list(Entry.model_fields)
            lines.append(f"{where}: unknown key{nearest(str(item['loc'][-1]), known)}; known: {', '.join(known)}")
        else:
            given = "" if not item["loc"] else f", not {json.dumps(item['input'], default=str)}"
            lines.append(f"{where}: {item['msg'].removeprefix('Value error, ')}{given}")
    return "\n".join(lines)
