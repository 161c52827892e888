"""Keeps the HEAD below its token budget. What leaves it goes to HISTORY in full; a cut is marked where it was made.

In this order, and no further than needed: notes of the oldest experiments are cut, the oldest experiments folded,
evidence lists shortened to their newest entries, then texts cut: of refuted beliefs, of the others, last of those that
an open prediction stakes; each time the lowest mass first. No belief ever loses its id, status, confidence, mass,
marks, newest evidence path or the beginning of its claim; one that a person pinned keeps claim and conditions whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from bco_graph.errors import SubmissionRefused
from bco_graph.world_model.text import render_belief, render_experiment, render_head
from bco_graph.world_model.values import Belief, Evidence, WorldModel

CHARACTERS_PER_TOKEN = 4
"""A rule of thumb for English text; the budget is a bound on size, not on what a model is billed."""
NOTE_CHARACTERS = 80
NEWEST_EVIDENCE = (4, 2, 1)
"""Entries that stay in a list, step by step."""
TEXT_CHARACTERS = (600, 240, 80)
"""Characters that stay of a claim, condition or locator, step by step; the last is the stub."""

_CUT = re.compile(r"(.*) \[cut: kept [0-9]{1,9}/([0-9]{1,9}) characters\]", re.DOTALL)

Move = Callable[[WorldModel], tuple[WorldModel, int]]
"""Makes a HEAD shorter; gives it with the characters of Markdown that were saved."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """`removed_text` is Markdown for HISTORY: whatever was cut, as it stood before; empty when nothing was."""

    head: WorldModel
    removed_text: str


def estimate_tokens(text: str) -> int:
    """Tokens of `text`, estimated as a quarter of its characters, rounded up."""
    return _tokens(len(text))


def _tokens(characters: int) -> int:
    return math.ceil(characters / CHARACTERS_PER_TOKEN)


def compact(head: WorldModel, token_budget: int, *, keep_ids: Collection[str]) -> Compacted:
    """`head` in at most `token_budget` tokens, as rendered; the same head when it already fits. Deterministic.

    `keep_ids` are beliefs of open predictions: their texts are cut last. Raises SubmissionRefused, with what to merge
    or remove, when the beliefs' stubs alone pass the budget.
    """
    small, characters = head, len(render_head(head))
    for move in _moves(head, keep_ids):
        if _tokens(characters) <= token_budget:
            break
        small, saved = move(small)
        characters -= saved
    if _tokens(characters) > token_budget:
        raise SubmissionRefused([_too_large(head, _tokens(characters), token_budget)])
    return Compacted(small, _removed(head, small))


def _moves(head: WorldModel, keep_ids: Collection[str]) -> Iterator[Move]:
    for position in range(len(head.experiments)):
        yield partial(_cut_note, position)
    for _ in head.experiments:
        yield _fold_oldest

    def rank(belief: Belief) -> int:
        return 2 if belief.id in keep_ids else int(belief.status != "refuted")

    order = sorted(head.beliefs, key=lambda belief: (rank(belief), belief.mass))
    for count in NEWEST_EVIDENCE:
        for belief in order:
            yield partial(_change, belief.id, partial(_keep_newest, count))
    for group in range(3):
        for limit in TEXT_CHARACTERS:
            for belief in order:
                if rank(belief) == group:
                    yield partial(_change, belief.id, partial(_cut_texts, limit))


def _cut_note(position: int, head: WorldModel) -> tuple[WorldModel, int]:
    old = head.experiments[position]
    note = cut_text(old.note, NOTE_CHARACTERS)
    if note == old.note:
        return head, 0
    new = old.model_copy(update={"note": note})
    experiments = (*head.experiments[:position], new, *head.experiments[position + 1 :])
    saved = len(render_experiment(old)) - len(render_experiment(new))
    return head.model_copy(update={"experiments": experiments}), saved


def _fold_oldest(head: WorldModel) -> tuple[WorldModel, int]:
    new = head.model_copy(update={"experiments": head.experiments[1:], "folded": head.folded + 1})
    before = WorldModel(experiments=head.experiments[:1], folded=head.folded)
    return new, len(render_head(before)) - len(render_head(WorldModel(folded=new.folded)))


def _change(name: str, change: Callable[[Belief], Belief], head: WorldModel) -> tuple[WorldModel, int]:
    """`head` with one belief changed, if that makes it shorter: a mark takes room too."""
    old = next(belief for belief in head.beliefs if belief.id == name)
    new = change(old)
    saved = len(render_belief(old)) - len(render_belief(new)) if new != old else 0
    if saved <= 0:
        return head, 0
    beliefs = tuple(new if belief.id == name else belief for belief in head.beliefs)
    return head.model_copy(update={"beliefs": beliefs}), saved


def _keep_newest(count: int, belief: Belief) -> Belief:
    return belief.model_copy(
        update={
            "evidence_for": belief.evidence_for[-count:],
            "evidence_against": belief.evidence_against[-count:],
            "older_for": belief.older_for + len(belief.evidence_for[:-count]),
            "older_against": belief.older_against + len(belief.evidence_against[:-count]),
        }
    )


def _cut_texts(limit: int, belief: Belief) -> Belief:
    def cut(entries: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        return tuple(entry.model_copy(update={"locator": cut_text(entry.locator, limit)}) for entry in entries)

    said = {name: getattr(belief, name) for name in ("claim", "conditions")}
    return belief.model_copy(
        update={
            **(said if belief.pinned else {name: cut_text(text, limit) for name, text in said.items()}),
            "evidence_for": cut(belief.evidence_for),
            "evidence_against": cut(belief.evidence_against),
        }
    )


def cut_text(text: str, limit: int) -> str:
    """The first `limit` characters with a mark that says kept and total; of a text cut before, its first total.

    The text itself where that, with the mark, would be no shorter.
    """
    before = _CUT.fullmatch(text)
    kept, total = (before[1], int(before[2])) if before else (text, len(text))
    kept = kept[:limit].rstrip()
    short = f"{kept} [cut: kept {len(kept)}/{total} characters]"
    return short if len(short) < len(text) else text


def _removed(old: WorldModel, new: WorldModel) -> str:
    """As list items, whole, whatever of `old` is shorter in `new` or absent from it."""
    gone = new.folded - old.folded
    cut = [a for a, b in zip(old.experiments[gone:], new.experiments, strict=True) if a != b]
    lines = [render_experiment(experiment) for experiment in (*old.experiments[:gone], *cut)]
    lines += [f"- {render_belief(a)}" for a, b in zip(old.beliefs, new.beliefs, strict=True) if a != b]
    return "\n".join(lines)


def _too_large(head: WorldModel, tokens: int, token_budget: int) -> str:
    largest = sorted(head.beliefs, key=lambda belief: -len(render_belief(belief)))[:3]
    refuted = [belief.id for belief in head.beliefs if belief.status == "refuted"]
    ways = [f"merge those of the {len(head.beliefs)} beliefs that overlap"]
    ways += [f"remove refuted ones ({', '.join(refuted)})"] if refuted else []
    ways.append(f"give shorter paths to the largest ({', '.join(belief.id for belief in largest)})")
    need = f"the world model takes {tokens} tokens with every text cut to a stub, and {token_budget} are allowed"
    return f"{need}: add less, {', '.join(ways)}"
