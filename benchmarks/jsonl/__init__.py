"""A suite from two files of JSON lines, for tasks of your own; `bco init --folder` starts with it."""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bco_graph.benchmarks.jsonl.entry import interface_of
from bco_graph.errors import ConfigError
from bco_graph.protocols import Judge, Score, Task
from bco_graph.state import JSON, Split
from bco_graph.strict_json import loads

Match = Literal["exact", "contains", "judge"]
_VERDICT = re.compile(r"VERDICT: (CORRECT|INCORRECT)")
_SAYS = {
    "exact": "equal the expected answer",
    "contains": "contain the expected answer",
    "judge": "say the same as the expected answer, as a model judges that knows it",
}


class JsonlSuite:
    """Each line is one task: `{"id": "t1", "type": "lookup", "inputs": {...}, "gold": "..."}`; `type` may be left out.

    `match` is `exact` (equal after normalisation), `contains` (the normalised gold is part of the answer, as whole
    words) or `judge` (the model of `roles.judge` compares the two; a reply without its verdict is no grade). Relative
    paths start at `base`. Normalisation: Unicode NFKC, lower case, white space squeezed, a last full stop dropped:
    ` 12  May. ` equals the gold `12 may`. A gold that is a list takes any of its members.

    `entry` is the scaffold's entry point: `agent.py:solve`, or a mapping for a LangGraph app (see `entry.Entry`):
    `{path: app.py:build, kind: graph, input: {question: "{question}"}, output: answer}`.
    """

    name = "jsonl"

    def __init__(
        self,
        *,
        train: str,
        heldout: str,
        scaffold: str,
        surface: str | None = None,
        match: Match = "exact",
        entry: str | Mapping[str, JSON] = "agent.py:solve",
        placeholders: dict[str, list[str]] | None = None,
        base: str = ".",
    ) -> None:
        if match not in _SAYS:
            raise ConfigError(f"suite_options.match is {match!r}; available: {', '.join(_SAYS)}")
        self.asks_judge = match == "judge"
        self._judge: Judge | None = None
        self._scaffold = Path(base) / scaffold
        self._surface = None if surface is None else Path(base) / surface
        self._match = match
        self._tasks: dict[Split, list[Task]] = {}
        self._gold: dict[str, JSON] = {}
        for split, path in (("train", train), ("heldout", heldout)):
            if (Path(base) / path).resolve().is_relative_to(self._scaffold.resolve()):
                raise ConfigError(
                    f"suite_options.{split} {path!r} lies inside of the scaffold {scaffold!r}, where every candidate "
                    "could read the answers: move it out"
                )
            self._tasks[split] = self._read(Path(base) / path)  # type: ignore[index]  # the two names are Splits
        every = [*self._tasks["train"], *self._tasks["heldout"]]
        self.interface = interface_of(entry, placeholders or {}, every)

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._tasks[split]

    def gold(self, task: Task) -> JSON:
        return self._gold[task.id]

    def use_judge(self, judge: Judge) -> None:
        self._judge = judge

    def grade(self, task: Task, answer: JSON) -> Score | Awaitable[Score]:
        if self._judge is not None:
            return self._judged(self._judge, task, answer)
        gold = self._gold[task.id]
        wanted = [normalise(item) for item in (gold if isinstance(gold, list) else [gold])]
        given = normalise(answer)
        if self._match == "exact":
            return Score(float(given in wanted))
        return Score(float(any(re.search(rf"(?<!\w){re.escape(item)}(?!\w)", given) for item in wanted)))

    async def _judged(self, judge: Judge, task: Task, answer: JSON) -> Score:
        given = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        gold = self._gold[task.id]
        prompt = Path(__file__).with_name("judge.md").read_text(encoding="utf-8").format(
            inputs=json.dumps(dict(task.inputs), ensure_ascii=False, indent=1), answer=given,
            gold="\n".join(f"- {item}" for item in (gold if isinstance(gold, list) else [gold])),
            # Not to be guessed by who writes the answer, and the same each time, so that the cache finds it.
            mark=hashlib.sha256(f"{task.id}\0{given}\0{gold}".encode()).hexdigest()[:16],
        )  # fmt: skip
        said = (await judge(task, [{"role": "user", "content": prompt}])).strip()
        verdict = _VERDICT.fullmatch(said.rpartition("\n")[2].strip())
        if verdict is None:
            return Score(math.nan, f"the judge's last line is no verdict: {said[-200:]!r}")
        return Score(float(verdict[1] == "CORRECT"), said.rpartition("\n")[0].strip()[-300:])

    def initial_scaffold(self) -> Path:
        return self._scaffold

    def surface(self) -> str:
        if self._surface is not None:
            return self._surface.read_text(encoding="utf-8")
        task = self._tasks["train"][0]
        types = sorted({item.type for item in self._tasks["train"]})
        graph, settings = self.interface.kind == "graph", self.interface.settings
        page = Path(__file__).with_name("surface_graph.md" if graph else "surface.md")
        return page.read_text(encoding="utf-8").format(
            entry=self.interface.entry, fields=", ".join(sorted(task.inputs)), types=", ".join(types),
            input=json.dumps(settings.get("input"), ensure_ascii=False), output=settings.get("output"),
            match=_SAYS[self._match],
        )  # fmt: skip

    def _read(self, path: Path) -> list[Task]:
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise ConfigError(f"cannot read the tasks {str(path)!r}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"the tasks {str(path)!r} are not UTF-8: {error.reason} at byte {error.start}") from error
        tasks = [self._task(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if not tasks:
            raise ConfigError(f"{path} holds no tasks")
        return tasks

    def _task(self, path: Path, number: int, line: str) -> Task:
        where = f"{path}, line {number}"
        try:
            item: Any = loads(line)
        except ValueError as error:
            raise ConfigError(f"{where} is {error}") from error
        if not isinstance(item, dict) or not {"id", "inputs", "gold"} <= set(item):
            raise ConfigError(f'{where}: expected {{"id": ..., "inputs": {{...}}, "gold": ...}}')
        if not isinstance(item["id"], str) or not isinstance(item["inputs"], dict):
            raise ConfigError(f"{where}: `id` must be text and `inputs` a mapping")
        if not normalise(item["gold"] if not isinstance(item["gold"], list) else "".join(map(str, item["gold"]))):
            raise ConfigError(f"{where}: `gold` is empty")
        self._gold[item["id"]] = item["gold"]
        return Task(item["id"], str(item.get("type", "task")), item["inputs"])


def normalise(value: JSON) -> str:
    """The form in which answers are compared; see the class."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(unicodedata.normalize("NFKC", text).lower().split())
    return text.removesuffix(".").rstrip()
