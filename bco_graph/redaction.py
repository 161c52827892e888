"""Keys of a run, kept out of all that it writes down or tells: one redactor, made when the run is opened.

It knows values, and takes out those alone: what strangers wrote stays as it came otherwise. The text of errors, which
nobody reads back, loses whatever looks like a key. A scaffold that holds either is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bco_graph import scaffold_tree
from bco_graph.state import JSON

MARK = "[redacted]"
_SHORTEST = 12
"""Characters of a key; shorter values, such as `none` or `EMPTY`, stand in for one and are words of any text."""
_SHORTEST_IN_ERRORS = 8
_SECRET_NAMES = ("key", "secret", "token", "password", "credential", "authorization", "cookie")
_VARIABLES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
"""How the names of environment variables end that hold credentials."""
_LIKE_A_KEY = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|key)-[A-Za-z0-9_*-]{8,}|\bAIza[0-9A-Za-z_-]{20,}|(?<=Bearer )[^\s\"',}]{8,}"
    r"|(?<=[?&]key=)[^\s&\"']+|(?<=[?&]api_key=)[^\s&\"']+"
)
_SURELY_A_KEY = re.compile(
    r"\b(?:sk|rk|pk)-(?:[A-Za-z]+[0-9]*-)*(?=[A-Za-z_]*[0-9])[A-Za-z0-9_]{24,}|\bgsk_[A-Za-z0-9]{24,}"
    r"|\bxai-[A-Za-z0-9]{24,}|\bAIza[0-9A-Za-z_-]{30,}|\bAKIA[0-9A-Z]{16}\b|\bgh[oprsu]_[A-Za-z0-9]{30,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


def credentials_of(environ: Mapping[str, str]) -> list[str]:
    """Values of the environment variables that a name calls a key, a token, a secret or a password."""
    return [value for name, value in environ.items() if name.upper().endswith(_VARIABLES)]


def secrets_in(params: Mapping[str, object], where: str = "") -> Iterator[tuple[str, str]]:
    """Dotted name and value of whatever a name calls a key, a secret or the like; a bearer's token also by itself."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from secrets_in(value, f"{where}{name}.")
        elif isinstance(value, str) and any(word in name.lower() for word in _SECRET_NAMES):
            yield f"{where}{name}", value
            yield f"{where}{name}", value.removeprefix("Bearer ")


def inline_keys(params: Mapping[str, object]) -> list[str]:
    """Names under which a key itself stands, instead of `os.environ/NAME`. Placeholders are short; credentials may be
    a path."""
    return [
        name
        for name, value in secrets_in(params)
        if len(value) >= _SHORTEST and not value.startswith("os.environ/")
        if "credential" not in name or surely_keys(value)
    ]


class Redactor:
    """`known` are the values of the keys in use."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        values = {value for value in known if len(value) >= _SHORTEST_IN_ERRORS}
        # As they stand in JSON text too.
        values |= {json.dumps(value, ensure_ascii=ascii)[1:-1] for value in values for ascii in (True, False)}
        self._known = sorted(values, key=len, reverse=True)

    def known(self, text: str) -> str:
        """The text, plain or JSON, without the keys in use; all else stays as it is."""
        for value in self._known:
            if len(value) >= _SHORTEST and value in text:
                text = text.replace(value, MARK)
        return text

    def rolling(self) -> Rolling:
        """For a text that comes in pieces: keys are found across them."""
        return Rolling(self, [value for value in self._known if len(value) >= _SHORTEST])

    def plain(self, value: JSON) -> JSON:
        """A JSON value without the keys in use."""
        text = json.dumps(value)
        clean = self.known(text)
        return value if clean == text else json.loads(clean)

    def error(self, text: str) -> str:
        """The text of an error, without the keys in use and what looks like a key."""
        for value in self._known:
            text = text.replace(value, MARK)
        return _LIKE_A_KEY.sub(MARK, text)

    def scrub(self, error: BaseException | None) -> None:
        """Take the keys in use out of an error's message and facts, and of those that led to it."""
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            error.args = tuple(self._fact(argument) for argument in error.args)
            for name, fact in vars(error).items():
                setattr(error, name, self._fact(fact))
            error = error.__cause__ or error.__context__

    def _fact(self, fact: object) -> object:
        if isinstance(fact, list) and all(isinstance(item, str) for item in fact):
            return [self.known(item) for item in fact]
        return self.known(fact) if isinstance(fact, str) else fact

    def holds_credential(self, text: str, *, allow: frozenset[str] = frozenset()) -> Iterator[int]:
        """Lines, from 1, with a key in use, or with what is surely a key and not among `allow`."""
        for number, line in enumerate(text.split("\n"), 1):
            if self.known(line) != line or not allow.issuperset(surely_keys(line)):
                yield number

    def problems(self, folder: Path, *, allow: frozenset[str] = frozenset()) -> list[str]:
        """Where a scaffold holds a credential, as sentences; never quoted."""
        return [
            f"{path}, line {line}: holds a credential; take it out, for the gateway holds the keys"
            for path in scaffold_tree.files(folder)
            for line in self.holds_credential(_text(folder, path), allow=allow)
        ]


class Rolling:
    """A text without the keys in use, piece by piece: what may be the beginning of one is held back until it is told
    apart. All pieces together, the end included, are what `Redactor.known` makes of the whole text."""

    def __init__(self, redactor: Redactor, known: Sequence[str]) -> None:
        self._redactor, self._values, self._held = redactor, known, ""

    def take(self, piece: str) -> str:
        """What can be said now; '' where all of it is held back."""
        text = self._held + piece
        cut = self._cut(text)
        self._held = text[cut:]
        return self._redactor.known(text[:cut])

    def end(self) -> str:
        """What is still held back; nothing comes after it."""
        text, self._held = self._held, ""
        return self._redactor.known(text)

    def _cut(self, text: str) -> int:
        """Where the part begins that is held back: what may be a key's beginning, or half of a surrogate pair."""
        begun = max((_begun(text, value) for value in self._values), default=0)
        return self._before_keys(text, len(text) - (begun or ("\ud800" <= text[-1:] <= "\udbff")))

    def _before_keys(self, text: str, cut: int) -> int:
        """`cut`, or the start of the first whole key that lies across it."""
        found = [text.find(value, max(0, cut - len(value) + 1)) for value in self._values]
        across = [at for at in found if -1 < at < cut]
        return self._before_keys(text, min(across)) if across else cut


def _begun(text: str, value: str) -> int:
    """How many characters at the end of a text are the beginning of a value, and not all of it."""
    longest = min(len(text), len(value) - 1)
    return next((count for count in range(longest, 0, -1) if text.endswith(value[:count])), 0)


def surely_keys(text: str) -> frozenset[str]:
    return frozenset(match[0] for match in _SURELY_A_KEY.finditer(text))


def surely_keys_in(folder: Path) -> frozenset[str]:
    """What is surely a key in a scaffold's files."""
    return frozenset(key for path in scaffold_tree.files(folder) for key in surely_keys(_text(folder, path)))


def _text(folder: Path, path: str) -> str:
    return scaffold_tree.read_file(folder, path).decode("utf-8", errors="replace")
