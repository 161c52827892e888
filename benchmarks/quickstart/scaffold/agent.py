"""Answers a question about a notebook with one prompt; the last word of the reply is the answer."""

from pathlib import Path
from typing import Any

PROMPT = Path(__file__).with_name("prompt.md")


async def solve(task: Any, target: Any) -> str:
    """The entry point: `task.inputs` has the texts `notebook` and `question`."""
    prompt = PROMPT.read_text(encoding="utf-8").strip()
    prompt = prompt.replace("{notebook}", task.inputs["notebook"]).replace("{question}", task.inputs["question"])
    reply = await target.chat(prompt)
    return reply.split()[-1] if reply.split() else ""
