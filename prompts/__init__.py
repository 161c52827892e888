"""What models are told: the Markdown fragments in this folder, and their only reader.

A fragment is a file `NAME.md`. In it, `$field` stands for a value and `$$` for a dollar; a line
`<!-- include: other.md -->` stands for the text of that file and one blank line. Values go in last and are not
looked at again, so they may hold dollars, braces and include lines.

template                               fields
skill_bco, skill_notes, skill_vanilla  surface, task
step_construct                         candidate, document_path, iteration, schema
step_propose                           candidate, candidates, iteration, parent, schema, suggested_parent
step_predict                           beliefs, candidate, diff, iteration, parent, schema, task_types
step_grade                             candidate, computed, iteration, parent, prediction, schema
step_update                            candidate, document_path, grade, iteration, schema, touched
agent_json_protocol                    tools
agent_system                           -
base_contract                          -
calibration_module                     -
notes_module                           -
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Template

from bco_graph.state import Method

_INCLUDE = re.compile(r"<!-- include: ([A-Za-z0-9_]+)\.md -->")
_INCLUDE_LIKE = re.compile(r"\s*<!--\s*include\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fragments:
    """The fragments of one folder. Every mistake is a ValueError that names the template and what is wrong with it."""

    folder: Path

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.md"))

    def text(self, name: str) -> str:
        """The fragment as it stands in its file, line ends as `\\n`."""
        if name not in self.names():
            raise ValueError(f"unknown template {name!r}; available: {', '.join(self.names()) or 'none'}")
        return (self.folder / f"{name}.md").read_text(encoding="utf-8")

    def fields(self, name: str) -> frozenset[str]:
        """Fields that `render` wants for this template, those of its includes among them."""
        return frozenset(_template(name, self._expand(name, ())).get_identifiers())

    def render(self, name: str, /, **fields: str | int) -> str:
        """The fragment with its includes and values; wants exactly the template's fields."""
        template = _template(name, self._expand(name, ()))
        wanted = set(template.get_identifiers())
        problems = [f"missing field(s) {_list(wanted - fields.keys())}"] if wanted - fields.keys() else []
        if unused := fields.keys() - wanted:
            problems.append(f"unused field(s) {_list(unused)}")
        if problems:
            raise ValueError(f"template {name!r}: {' and '.join(problems)}; it wants {_list(wanted) or 'no field'}")
        return template.substitute(fields)

    def digests(self) -> dict[str, str]:
        """sha256 (hex) of each fragment's text, by template name."""
        return {name: hashlib.sha256(self.text(name).encode("utf-8")).hexdigest() for name in self.names()}

    def _expand(self, name: str, chain: tuple[str, ...]) -> str:
        """`chain` holds the templates that are being expanded around this one, outermost first."""
        if name in chain:
            raise ValueError(f"templates include each other in a cycle: {' -> '.join((*chain, name))}")
        lines: list[str] = []
        for number, line in enumerate(self.text(name).split("\n"), start=1):
            if include := _INCLUDE.fullmatch(line):
                if include[1] not in self.names():
                    raise ValueError(
                        f"template {name!r}, line {number}: includes the unknown file '{include[1]}.md'; "
                        f"available: {_list(self.names())}"
                    )
                lines += [self._expand(include[1], (*chain, name)).strip("\n"), ""]
            elif _INCLUDE_LIKE.match(line):
                raise ValueError(
                    f"template {name!r}, line {number}: {line!r} is no include line; "
                    "write it alone on its line as <!-- include: file.md -->"
                )
            else:
                lines.append(line)
        return "\n".join(lines)


def _template(name: str, text: str) -> Template:
    template = Template(text)
    if not template.is_valid():
        lone = next(found for found in template.pattern.finditer(text) if found["invalid"] is not None)
        number = text.count("\n", 0, lone.start()) + 1
        raise ValueError(f"template {name!r}: a '$' that starts no field, line {number} after includes; write '$$'")
    return template


def _list(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


_OURS = Fragments(Path(__file__).parent)


def render(name: str, /, **fields: str | int) -> str:
    """The template `name` (no suffix) of this package with exactly its fields filled in; else ValueError."""
    return _OURS.render(name, **fields)


def skill(method: Method, *, surface: str, task: str) -> str:
    """SKILL.md of a method. `surface` is the suite's Markdown, `task` a paragraph that says what to improve."""
    return _OURS.render(f"skill_{method}", surface=surface.strip(), task=task.strip())


def digests() -> dict[str, str]:
    """sha256 (hex) of each fragment's text, by template name, for run.json."""
    return _OURS.digests()
