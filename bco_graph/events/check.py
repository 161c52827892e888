"""Whether an event is what its type says: every field there, none beside, each of its kind."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from bco_graph.events.schema import EVENT_TYPES, EVENT_VERSION


def event_faults(event: Any) -> list[str]:
    """What is wrong with an event of this version, field by field; empty where nothing is."""
    if not isinstance(event, dict) or event.get("type") not in EVENT_TYPES:
        return [f"no known event: {event!r}"]
    if event.get("v") != EVENT_VERSION:
        return [f"v: {event.get('v')!r} instead of {EVENT_VERSION}"]
    return list(_faults(event, EVENT_TYPES[event["type"]], event["type"]))


def _faults(value: Any, kind: Any, where: str) -> Iterator[str]:
    if is_typeddict(kind):
        yield from _record_faults(value, kind, where)
    elif get_origin(kind) is list and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _faults(item, get_args(kind)[0], f"{where}[{number}]")
    elif get_origin(kind) is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from _faults(item, get_args(kind)[1], f"{where}[{key!r}]")
    elif get_origin(kind) in (Union, types.UnionType):
        tried = [list(_faults(value, option, where)) for option in get_args(kind)]
        if all(tried):
            # Of a record or nothing, what is wrong with the record says more.
            yield from (tried[0] if isinstance(value, dict) else [f"{where}: {value!r} is none of {get_args(kind)}"])
    elif not _is(value, kind):
        yield f"{where}: {value!r} is no {getattr(kind, '__name__', kind)}"


def _record_faults(value: Any, kind: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: {value!r} is no object"
        return
    fields = get_type_hints(kind)
    yield from (f"{where}.{key}: missing" for key in sorted(kind.__required_keys__ - value.keys()))
    for key, item in value.items():
        if key in fields:
            yield from _faults(item, fields[key], f"{where}.{key}")
        else:
            yield f"{where}.{key}: not in the schema"


def _is(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(kind, type) and isinstance(value, kind)
