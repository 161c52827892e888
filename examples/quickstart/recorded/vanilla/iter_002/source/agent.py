"""Answers a question about a notebook.

Questions for a number (a total, days between two notes, an amount in another unit) are worked out from the matching
notes; every other question is put to the target with one prompt that holds only the notes the question leads to, and
the last word of the reply is the answer.
"""

import re
from datetime import date
from pathlib import Path
from typing import Any

PROMPT = Path(__file__).with_name("prompt.md")

MONTHS = [
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
]  # fmt: skip
IRREGULAR = {
    "run": "ran", "swim": "swam", "drive": "drove", "sleep": "slept", "ride": "rode", "fly": "flew", "go": "went",
    "read": "read", "write": "wrote", "sing": "sang", "sit": "sat", "stand": "stood", "spend": "spent",
    "speak": "spoke", "teach": "taught", "draw": "drew", "dig": "dug", "ski": "skied", "jog": "jogged",
    "buy": "bought", "pay": "paid", "leave": "left", "weigh": "weighed", "take": "took",
}  # fmt: skip
STOP = set(
    "a an the my i did do does was were is are how many much of in on at to for as what which time when total hh mm "
    "and or it that this with from by all together".split()
)
# What one of the unit is worth in the base unit of its kind: metre, gram, minute, litre.
UNITS: dict[str, tuple[str, float]] = {}
for _kind, _names in {
    "length": {"km kilometre kilometer": 1000, "m metre meter": 1, "cm centimetre centimeter": 0.01,
               "mm millimetre millimeter": 0.001},
    "mass": {"kg kilogram kilo": 1000, "g gram": 1, "mg milligram": 0.001, "t tonne": 1000000},
    "time": {"h hour hr": 60, "min minute": 1, "s sec second": 1 / 60, "d day": 1440, "week": 10080},
    "volume": {"l litre liter": 1, "ml millilitre milliliter": 0.001, "cl centilitre": 0.01, "dl decilitre": 0.1},
}.items():  # fmt: skip
    for _words, _worth in _names.items():
        for _word in _words.split():
            UNITS[_word] = (_kind, _worth)
            UNITS[_word + "s"] = (_kind, _worth) if _word + "s" not in UNITS else UNITS[_word + "s"]


def parse_notes(notebook: str) -> list[tuple[tuple[int, int] | None, str]]:
    """The notes as (day and month, text)."""
    notes: list[tuple[tuple[int, int] | None, str]] = []
    for line in notebook.splitlines():
        found = re.match(r"\s*(\d{1,2}) ([A-Za-z]+)\s*:\s*(.*)", line)
        if found and found[2].lower() in MONTHS:
            notes.append(((int(found[1]), MONTHS.index(found[2].lower()) + 1), found[3].strip()))
        elif line.strip():
            notes.append((None, line.strip()))
    return notes


def stem(word: str) -> str:
    """A word without its ending, so that `hike` and `hiked` are the same."""
    word = IRREGULAR.get(word, word)
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def content(text: str) -> set[str]:
    return {stem(word) for word in re.findall(r"[a-z]+", text.lower()) if word not in STOP}


def best_note(notes: list[Any], words: set[str], test: Any = None) -> Any:
    """The note with most of the words, where `test` holds for its text; None where no word is met."""
    best, most = None, 0
    for note in notes:
        shared = len(words & content(note[1]))
        if shared > most and (test is None or test(note[1])):
            best, most = note, shared
    return best


def plain(number: float) -> str:
    number = round(number, 6)
    return str(int(number)) if number == int(number) else str(number)


def days_between(first: tuple[int, int], second: tuple[int, int]) -> int:
    gap = (date(2023, second[1], min(second[0], 28) if second[1] == 2 else second[0])
           - date(2023, first[1], min(first[0], 28) if first[1] == 2 else first[0])).days  # fmt: skip
    return gap if gap >= 0 else gap + 365


def work_out(notebook: str, question: str) -> str | None:
    """The answer to a question for a number, or None where the question is none or a note is not found."""
    notes = parse_notes(notebook)
    asked = question.strip().rstrip("?").lower()

    found = re.match(r"how many days (after|before|from|between) (.+?) (?:was|were|is|did|to|and) (.+)", asked)
    if found:
        one, two = best_note(notes, content(found[2])), best_note(notes, content(found[3]))
        if one and two and one[0] and two[0]:
            return str(days_between(two[0], one[0]) if found[1] == "before" else days_between(one[0], two[0]))
        return None

    found = re.match(r"how (?:many|much) ?(\w*) did i (?:spend|pay) (?:on|for) (.+?)(?: in total| altogether)?$", asked)
    if found:
        thing, total, met = content(found[2]), 0.0, False
        for _, text in notes:
            amount = re.search(r"(\d+(?:\.\d+)?) ?(?:euros?|eur|dollars?|pounds?)\b", text.lower())
            if amount and thing <= content(text):
                total, met = total + float(amount[1]), True
        return plain(total) if met else None

    if re.search(r"\btime\b.*hh:mm", asked):
        clock = r"(\d{1,2}):(\d{2}) ?(am|pm)?"
        words = content(asked.split(", as")[0])
        note = best_note(notes, words, lambda text: re.search(clock, text.lower()))
        if note:
            hour, minute, half = re.search(clock, note[1].lower()).groups()
            hours = int(hour) % 12 + (12 if half == "pm" else 0) if half else int(hour)
            return f"{hours:02d}:{minute}"
        return None

    found = re.match(r"how many (\w+) (.+)", asked)
    if found and found[1] in UNITS:
        kind, worth = UNITS[found[1]]

        def amounts(text: str) -> list[float]:
            pairs = re.findall(r"(\d+(?:\.\d+)?) ?([a-z]+)", text.lower())
            return [float(n) * UNITS[u][1] for n, u in pairs if u in UNITS and UNITS[u][0] == kind]

        note = best_note(notes, content(found[2]), amounts)
        if note:
            return plain(sum(amounts(note[1])) / worth)
    return None


def relevant(notebook: str, question: str) -> str:
    """The lines that the question leads to: the note of the day it names, or the notes about who or what it calls
    `my ...`, and from those on to the other notes about the people they name. All lines where nothing is met."""
    lines = [line for line in notebook.splitlines() if line.strip()]
    day = re.search(r"\b(\d{1,2}) ([A-Za-z]+)", question)
    if day and day[2].lower() in MONTHS:
        start = f"{day[1]} {day[2]}:".lower()
        kept = [line for line in lines if line.strip().lower().startswith(start)]
    else:
        names = set(re.findall(r"\bmy (\w+)", question.lower()))
        met = [line for line in lines if names & set(re.findall(r"\w+", line.lower()))]
        for line in met:
            names |= set(re.findall(r"\bmy (\w+)", line.lower()))
        kept = [line for line in lines if names & set(re.findall(r"\w+", line.lower()))]
    return "\n".join(kept or lines)


async def solve(task: Any, target: Any) -> str:
    """The entry point: `task.inputs` has the texts `notebook` and `question`."""
    notebook, question = task.inputs["notebook"], task.inputs["question"]
    number = work_out(notebook, question)
    target.trace({"worked_out": number})
    if number is not None:
        return number
    prompt = PROMPT.read_text(encoding="utf-8").strip()
    prompt = prompt.replace("{notebook}", relevant(notebook, question)).replace("{question}", question)
    reply = await target.chat(prompt)
    return reply.split()[-1] if reply.split() else ""
