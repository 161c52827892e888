"""Exact match after a normalisation that forgives form, never content."""

from __future__ import annotations

import re
import unicodedata

from bco_graph.state import JSON

_WRAPPING = "\"'`*“”‘’ "


def normalise(answer: JSON) -> str:
    """The form in which answers are compared; the empty string where there is nothing to compare.

    Text is NFKC-normalised and case-folded, runs of white space become one blank, quotation marks, backticks and
    asterisks around it go, and so do full stops or exclamation marks at the end, a leading article and the commas
    that separate thousands. A whole number is taken as its digits. Anything else (null, true, lists, other numbers)
    is empty. Words around an answer stay, so that a sentence that holds the answer differs from the answer.

    A real item: `qs-train-001` asks `What did my landlord get rid of?`, and its notebook has the line
    `24 June: my landlord threw away the bike`. The gold answer is `bike`; `"The bike."` is right as well, and
    `the landlord threw away the bike` is wrong.
    """
    if isinstance(answer, bool):
        return ""
    if isinstance(answer, int) or (isinstance(answer, float) and answer.is_integer()):
        return str(int(answer))
    if not isinstance(answer, str):
        return ""
    text = " ".join(unicodedata.normalize("NFKC", answer).casefold().split())
    text = text.strip(_WRAPPING).rstrip(".!" + _WRAPPING)
    text = re.sub(r"^(?:the|an?) (?=\S)", "", text)
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)


def matches(answer: JSON, gold: str) -> bool:
    """Whether both are the same after `normalise`; an empty answer matches nothing."""
    normalised = normalise(answer)
    return normalised != "" and normalised == normalise(gold)
