"""Submissions come in here: strict JSON, checked against the step's form, then against the step itself.

Whatever is wrong becomes sentences that a proposer can act on: the field, what was expected, what was given, the
nearest known name. Nothing is repaired or guessed.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from typing import Any, Generic, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from bco_graph.config import nearest
from bco_graph.errors import CandidateRefused, StepFailed, SubmissionRefused
from bco_graph.protocols import Step, StepResult
from bco_graph.state import JSON
from bco_graph.strict_json import read_object

T = TypeVar("T")

_SHOWN = 120
"""Characters of a wrong value that a reason shows."""


def take(step: Step[T], raw: str | Mapping[str, JSON]) -> tuple[T, dict[str, JSON]]:
    """The step's value with the submission as it came; `raw` is a JSON object or text that is one.

    Raises SubmissionRefused with every problem of the first stage that fails: JSON, form, the step's own checks.
    """
    try:
        submission = read_object(step.redact(raw if isinstance(raw, str) else _text(raw)))
    except ValueError as error:
        raise SubmissionRefused([f"the submission is {error}"]) from error
    try:
        model = step.schema.model_validate(submission)
    except ValidationError as error:
        raise SubmissionRefused(explain(error, step.schema)) from error
    try:
        return step.accept(model), submission
    except CandidateRefused as refused:
        raise SubmissionRefused(refused.reasons) from refused


class Intake(Generic[T]):
    """The submissions of one step: at most `max_refusals` may be refused and mended, one more fails the step."""

    def __init__(self, step: Step[T], max_refusals: int) -> None:
        self.step = step
        self.max_refusals = max_refusals
        self.refusals: list[list[str]] = []

    def offer(self, raw: str | Mapping[str, JSON]) -> tuple[T, dict[str, JSON]]:
        """What `take` gives. Raises SubmissionRefused while another try is left, StepFailed after that."""
        try:
            return take(self.step, raw)
        except SubmissionRefused as refused:
            self.refuse(refused.reasons, self.step.redact(_for_the_record(raw)))

    def refuse(self, reasons: list[str], raw: str = "") -> NoReturn:
        """Count a submission that was refused before it could be read, such as a missing file; raises as `offer`."""
        self.refusals.append(list(reasons))
        if len(self.refusals) > self.max_refusals:
            raise StepFailed(self.step.name, cause="refused", reasons=reasons, raw=raw)
        raise SubmissionRefused(reasons)

    @property
    def tries_left(self) -> int:
        return self.max_refusals + 1 - len(self.refusals)

    def result(
        self,
        accepted: tuple[T, dict[str, JSON]],
        *,
        trace_reads: int | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> StepResult[T]:
        value, submission = accepted
        return StepResult(value, submission, self.refusals, trace_reads, notes or {})


def _for_the_record(raw: str | Mapping[str, JSON]) -> str:
    try:
        text = raw if isinstance(raw, str) else _text(raw)
    except ValueError:
        text = reprlib.repr(raw)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _text(raw: Mapping[str, JSON]) -> str:
    try:
        return json.dumps(dict(raw), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not plain JSON: {error}") from error


# -- reasons -------------------------------------------------------------------------------------------------


def explain(error: ValidationError, schema: type[BaseModel]) -> list[str]:
    """One sentence per problem: field, what was expected, what was given, the nearest known name."""
    tree = schema.model_json_schema()
    return [_sentence(dict(item), tree) for item in error.errors(include_url=False)]


def _sentence(item: dict[str, Any], tree: dict[str, JSON]) -> str:
    location: tuple[int | str, ...] = item["loc"]
    where = field_path(location)
    if item["type"] == "extra_forbidden":
        known = _keys_at(tree, location[:-1])
        hint = f"{nearest(str(location[-1]), known)}; known here: {', '.join(known)}" if known else ""
        return f"{where}: unknown field{hint}"
    if item["type"] == "missing":
        return f"{where}: missing; it is required{_expected(_at(tree, location))}"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] in ("literal_error", "enum", "union_tag_invalid"):
        allowed = item.get("ctx", {}).get("expected") or item.get("ctx", {}).get("expected_tags", "")
        message += nearest(str(item.get("ctx", {}).get("tag", item["input"])), re.findall(r"'([^']*)'", allowed))
    given = item["input"]
    return f"{where}: {message}" if isinstance(given, dict) else f"{where}: {message}, not {_shown(given)}"


def field_path(location: tuple[int | str, ...]) -> str:
    """`ops[0].claim` for ('ops', 0, 'claim')."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".") or "top level"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _expected(schemas: list[dict[str, JSON]]) -> str:
    words = [
        " or ".join(map(repr, s["enum"])) if "enum" in s else str(s["type"])
        for s in schemas
        if "enum" in s or "type" in s
    ]
    return f" ({' or '.join(dict.fromkeys(words))})" if words else ""


def _keys_at(tree: dict[str, JSON], location: tuple[int | str, ...]) -> list[str]:
    return list(dict.fromkeys(key for schema in _at(tree, location) for key in schema.get("properties", {})))


def _at(tree: dict[str, JSON], location: tuple[int | str, ...]) -> list[dict[str, JSON]]:
    """The schemas that may stand at a location, unions spread out; a union's tag in the location picks its member."""
    found = _spread(tree, tree)
    for part in location:
        if isinstance(part, int):
            inner = [schema["items"] for schema in found if "items" in schema]
        else:
            inner = [schema["properties"][part] for schema in found if part in schema.get("properties", {})]
        if inner:
            found = [member for schema in inner for member in _spread(schema, tree)]
        elif tagged := [schema for schema in found if _has_tag(schema, part)]:
            found = tagged
        else:
            return []
    return found


def _spread(schema: dict[str, JSON], tree: dict[str, JSON]) -> list[dict[str, JSON]]:
    if "$ref" in schema:
        return _spread(tree["$defs"][schema["$ref"].rsplit("/", 1)[-1]], tree)
    members = schema.get("anyOf") or schema.get("oneOf")
    return [inner for member in members for inner in _spread(member, tree)] if members else [schema]


def _has_tag(schema: dict[str, JSON], tag: int | str) -> bool:
    """Whether a union member is the one that pydantic calls `tag`: by its name, or by a constant field."""
    properties = schema.get("properties", {}).values()
    return schema.get("title") == tag or any(inner.get("const") == tag for inner in properties)
