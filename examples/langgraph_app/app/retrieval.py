"""Finds the pages of the handbook that a question is about."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent / "docs"
PAGES = [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))]


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def search(question: str, *, skip: int = 0, count: int = 1) -> list[str]:
    """The pages that share the most words with the question, after the first `skip` of them."""
    asked = words(question)
    ranked = sorted(PAGES, key=lambda page: -len(asked & words(page)))
    return ranked[skip : skip + count]
