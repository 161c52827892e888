"""The leak scan: does a scaffold hold what only the task set may hold?

Looked for, word by word in any case and over line breaks and punctuation: task ids, gold answers that are specific
enough, and runs of `PHRASE_WORDS` words of task or gold text (a shorter text as a whole); each plain, reversed, in
rot13, in base64 at any offset, in hex; ids and golds as md5, sha1 or sha256 too. Not looked for: what the initial
scaffold holds, what several tasks share, common words, small or round numbers. Not seen: compressed, encrypted or
computed text.

Findings say where and of which kind, and never quote: the pattern may come from a held-out task.
"""

from __future__ import annotations

import base64
import bisect
import codecs
import hashlib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bco_graph import scaffold_tree
from bco_graph.evaluation.common_words import COMMON
from bco_graph.protocols import Task
from bco_graph.state import JSON

PHRASE_WORDS = 12
SHORT_TEXT_WORDS = 5
"""A text with fewer words than a phrase is looked for as a whole, from this many words on."""
MIN_GOLD_CHARS = 6
MIN_ID_CHARS = 4
"""For an id that mixes letters and digits; others are held to the rule for golds."""
MAX_SMALL_DIGITS = 4
"""A number with no more digits than this, not counting zeros at its ends, is not looked for."""
MAX_PHRASES = 500_000
"""Where the task set has more, every n-th is kept: a copy that is n words longer than a phrase is still found."""
MAX_FINDINGS = 20

_ID, _GOLD, _TEXT = "a task id", "a gold answer", "a piece of task text"
# A word, or one character of a script that puts no blanks between words.
_WORD = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff]|[^\W_\u2e80-\u9fff\uf900-\ufaff]+")
_ESCAPED_BLANK = re.compile(r"\\[nrt]")
_HEX = re.compile(r"[0-9A-Fa-f]{8,}")
_DIGEST = re.compile(r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{64}|[0-9A-Fa-f]{40}|[0-9A-Fa-f]{32})(?![0-9A-Za-z])")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{6,}(?:[ \t\"']*\r?\n[ \t\"']*[A-Za-z0-9+/_-]{6,})*")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]+")
_MIXED = re.compile(r"[A-Z0-9]")
_SURELY_DATA = 64
"""A longer run is no name in a program: all that it decodes to is looked at."""

Phrase = tuple[str, ...]


@dataclass(frozen=True, order=True)
class Finding:
    """`line` counts from 1; `what` is the kind of thing, with how it was encoded."""

    line: int
    what: str


@dataclass(frozen=True)
class LeakPatterns:
    """Made by `build`: words, phrases by their first two words, and hex digests, each with its kind."""

    words: dict[str, str] = field(default_factory=dict)
    phrases: dict[tuple[str, str], dict[Phrase, str]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    @classmethod
    def build(cls, tasks: Iterable[Task], golds: Mapping[str, JSON], *, allow: Path | str = "") -> LeakPatterns:
        """Patterns of all tasks, with the gold answers by task id. `allow` is the initial scaffold, or its text."""
        return _build(list(tasks), golds, allow if isinstance(allow, str) else _text_of(allow))

    def scan(self, root: Path) -> list[str]:
        """Findings over the admitted files of a scaffold and their names, as sentences; each ends the candidate."""
        found = []
        for path in scaffold_tree.files(root):
            text = scaffold_tree.read_file(root, path).decode("utf-8", errors="replace")
            found += [f"{path}: its name holds {finding.what}" for finding in self.find(path)]
            found += [f"{path}, line {finding.line}: holds {finding.what}" for finding in self.find(text)]
        if len(found) > MAX_FINDINGS:
            found[MAX_FINDINGS:] = [f"and {len(found) - MAX_FINDINGS} more leaks"]
        return [f"{reason}; a scaffold may hold nothing of the task set" for reason in found]

    def find(self, text: str) -> list[Finding]:
        """Findings in a text, one for each line and kind, sorted."""
        folded = fold(text)
        lines, folded_lines = _Lines(text), _Lines(folded)
        found = {Finding(folded_lines.at(start), what) for start, _, what in self.match(folded)}
        for start, _, what in self.match(folded[::-1]):
            found.add(Finding(folded_lines.at(len(folded) - 1 - start), f"{what} reversed"))
        for start, _, what in self.match(codecs.encode(folded, "rot13")):
            found.add(Finding(folded_lines.at(start), f"{what} in rot13"))
        for digest in _DIGEST.finditer(text):
            if digested := self.digests.get(digest.group().lower()):
                found.add(Finding(lines.at(digest.start()), f"{digested} as a digest"))
        for how, pieces in (("base64", list(_from_base64(text))), ("hex", list(_from_hex(text)))):
            decoded = fold("\n".join(piece for _, piece in pieces))
            decoded_lines = _Lines(decoded)
            for start, _, what in self.match(decoded):
                found.add(Finding(lines.at(pieces[decoded_lines.at(start) - 1][0]), f"{what} in {how}"))
        return sorted(found)

    def match(self, text: str) -> Iterator[tuple[int, Phrase, str]]:
        """Position, words and kind of each pattern that stands in folded text, whatever is between its words."""
        words = _WORD.findall(text)
        starts: list[int] = []
        known, phrases = self.words, self.phrases
        single = [index for index, word in enumerate(words) if word in known]
        begun = [index for index, pair in enumerate(itertools.pairwise(words)) if pair in phrases]
        if single or begun:
            starts = [match.start() for match in _WORD.finditer(text)]
        for index in single:
            yield starts[index], (words[index],), known[words[index]]
        for index in begun:
            for phrase, what in phrases[words[index], words[index + 1]].items():
                if phrase == tuple(words[index : index + len(phrase)]):
                    yield starts[index], phrase, what


class _Lines:
    """Line numbers, from 1, of positions in a text."""

    def __init__(self, text: str) -> None:
        self._ends = [match.start() for match in re.finditer("\n", text)]

    def at(self, position: int) -> int:
        return 1 + bisect.bisect_left(self._ends, position)


def fold(text: str) -> str:
    """One form for what reads the same: case, width, composed accents, escaped line breaks."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _ESCAPED_BLANK.sub("  ", text).casefold()


def is_specific(words: Phrase) -> bool:
    """Whether a gold says something by standing in a scaffold; common words, small and round numbers do not."""
    text = "".join(words)
    if len(text) < MIN_GOLD_CHARS:
        return False
    if text.isdecimal():
        return len(text.strip("0")) > MAX_SMALL_DIGITS
    return not all(word in COMMON for word in words)


def _build(tasks: list[Task], golds: Mapping[str, JSON], allow: str) -> LeakPatterns:
    shared = max(2, len(tasks) // 20)
    answers = {task.id: list(_strings(golds.get(task.id))) for task in tasks}
    texts = {task.id: list(_strings(dict(task.inputs))) for task in tasks}
    kinds = _phrases_of(texts, answers, shared) | _golds_of(texts, answers, shared)
    kinds |= {_split(task.id): _ID for task in tasks if _id_is_specific(_split(task.id))}
    public = {phrase for _, phrase, _ in _indexed(kinds).match(fold(allow))}
    patterns = _indexed({phrase: what for phrase, what in kinds.items() if phrase not in public})
    patterns.digests.update(_digests(tasks, answers))
    return patterns


def _indexed(kinds: Mapping[Phrase, str]) -> LeakPatterns:
    patterns = LeakPatterns()
    for phrase, what in kinds.items():
        if len(phrase) == 1:
            patterns.words[phrase[0]] = what
        else:
            patterns.phrases.setdefault((phrase[0], phrase[1]), {})[phrase] = what
    return patterns


def _phrases_of(texts: Mapping[str, list[str]], answers: Mapping[str, list[str]], shared: int) -> dict[Phrase, str]:
    """Phrases of task and gold text that at most `shared` tasks have."""
    owners: Counter[Phrase] = Counter()
    for task, found in texts.items():
        owners.update({phrase for text in [*found, *answers[task]] for phrase in _phrases_in(_split(text))})
    kept = [phrase for phrase, count in owners.items() if count <= shared]
    return dict.fromkeys(kept[:: 1 + len(kept) // MAX_PHRASES], _TEXT)


def _phrases_in(words: Phrase) -> Iterator[Phrase]:
    if SHORT_TEXT_WORDS <= len(words) < PHRASE_WORDS and any(word not in COMMON for word in words):
        yield words
    for start in range(len(words) - PHRASE_WORDS + 1):
        yield words[start : start + PHRASE_WORDS]


def _golds_of(texts: Mapping[str, list[str]], answers: Mapping[str, list[str]], shared: int) -> dict[Phrase, str]:
    """Specific answers that are neither the answer to, nor named in, more than `shared` tasks."""
    owners = Counter(gold for found in answers.values() for gold in set(map(_split, found)))
    golds = {gold: _GOLD for gold, count in owners.items() if count <= shared and is_specific(gold)}
    patterns = _indexed(golds)
    named: Counter[Phrase] = Counter()
    for found in texts.values():
        named.update({gold for text in found for _, gold, _ in patterns.match(fold(text))})
    return {gold: what for gold, what in golds.items() if named[gold] <= shared}


def _id_is_specific(words: Phrase) -> bool:
    name = "".join(words)
    mixed = any(char.isdigit() for char in name) and any(char.isalpha() for char in name)
    return len(name) >= MIN_ID_CHARS if mixed else is_specific(words)


def _digests(tasks: Iterable[Task], answers: Mapping[str, list[str]]) -> dict[str, str]:
    """Also of what is too common to be looked for in plain: a digest does not stand anywhere by chance."""
    digests = {}
    for task in tasks:
        for what, texts in ((_GOLD, answers[task.id]), (_ID, [task.id])):
            for form in {form for text in texts for form in (text, text.strip(), text.lower(), text.upper())}:
                content = form.encode("utf-8", errors="replace")
                for algorithm in ("md5", "sha1", "sha256"):
                    digests[hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()] = what
    return digests


def _split(text: str) -> Phrase:
    return tuple(_WORD.findall(fold(text)))


def _strings(value: JSON) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _text_of(root: Path) -> str:
    return "\n".join(
        scaffold_tree.read_file(root, path).decode("utf-8", errors="replace") for path in scaffold_tree.files(root)
    )


def _from_base64(text: str) -> Iterator[tuple[int, str]]:
    """Position of each run of base64 characters, with what it decodes to from each place where one may begin."""
    for match in _BASE64.finditer(text):
        run = match.group()
        if not _MIXED.search(run):
            continue  # A name in a program; base64 of text has capitals or digits.
        run = _NOT_BASE64.sub("", run.replace("-", "+").replace("_", "/"))
        for offset in range(4):
            piece = run[offset:]
            piece = piece[: len(piece) - (len(piece) % 4 == 1)]
            decoded = base64.b64decode(piece + "=" * (-len(piece) % 4)).decode("utf-8", errors="replace")
            if len(decoded) > _SURELY_DATA or decoded.count("\ufffd") * 3 <= len(decoded):
                yield match.start(), decoded.replace("\n", " ")


def _from_hex(text: str) -> Iterator[tuple[int, str]]:
    for match in _HEX.finditer(text):
        for piece in (match.group(), match.group()[1:]):
            decoded = bytes.fromhex(piece[: len(piece) // 2 * 2])
            yield match.start(), decoded.decode("utf-8", errors="replace").replace("\n", " ")
