from pathlib import Path

PROMPT = (Path(__file__).parent / "prompt.md").read_text(encoding="utf-8")


async def solve(task, target):
    return await target.chat(PROMPT.replace("{question}", task.inputs["question"]))
