"""What every section of bco.yaml is made of."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing where no known name is near."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _without_password(url: str) -> str:
    if urlsplit(url).password:
        raise ValueError(
            "a password in a URL would be written into the run folder: give it in the system's own variables"
        )
    return url


PlainUrl = Annotated[Name, AfterValidator(_without_password)]
