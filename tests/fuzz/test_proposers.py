"""What a proposer's model and its files say: a result, a refusal or a failed step, and nothing outside is touched."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bco_graph.config import ProposerConfig
from bco_graph.errors import StepFailed, SubmissionRefused, ToolRefused
from bco_graph.proposers.agent import AgentProposer
from bco_graph.proposers.editing import edit
from bco_graph.proposers.handoff import _read
from bco_graph.proposers.replay import ReplayProposer
from bco_graph.proposers.step_files import SUBMISSION, read_submission
from bco_graph.proposers.tools import TOOLS, Toolbox
from bco_graph.proposers.tree import snapshot
from bco_graph.proposers.workspace import Workspace
from bco_graph.protocols import Caller, Step
from bco_graph.receipts import dumps
from bco_graph.state import JSON
from bco_graph.submissions import ProposeSubmission
from tests.fuzz.strategies import (
    FUZZ,
    SLOW,
    TRAPS,
    anything,
    as_text,
    broken,
    broken_bytes,
    broken_text,
    refused_or,
    texts,
)

FILES = {
    "scaffold/agent.py": b"x = 1\r\ny = 2\r\ny = 2",
    "iterations/iter_000/source/agent.py": b"x = 0\n",
    "iterations/iter_000/traces/t1.json": b'{"answer": "\xff"}\n',
    "SKILL.md": "# Skill é\n".encode(),
}
SUBMITTED = {"parent": "iter_000", "name": "ask", "mechanism": "asks"}


@contextmanager
def workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bco-fuzz-") as folder:
        root = Path(folder) / "workspace"
        for path, content in FILES.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        (root / "loop").symlink_to("loop")
        (root / "out").symlink_to("/etc")
        yield root


def step(root: Path) -> Step[Any]:
    return Step("propose", 1, "vanilla", root, "Do it.", ProposeSubmission, lambda model: model)


def call(tool: str, **arguments: JSON) -> JSON:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"id": "call_7", "type": "function", "function": function}


def completion(message: JSON) -> JSON:
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 5}}  # fmt: skip


NATIVE = completion({
    "role": "assistant", "content": [{"type": "text", "text": "so"}], "reasoning": {"signature": "s"},
    "tool_calls": [
        call("read_file", path="SKILL.md", lines=1),
        call("edit_file", path="scaffold/agent.py", old="x = 1", new="x = 2"),
        call("write_file", path="scaffold/new.py", content="y"),
        call("submit", **SUBMITTED),
    ],
})  # fmt: skip
LINE = completion({"role": "assistant", "content": json.dumps({"tool": "submit", "args": SUBMITTED})})
FENCED = completion({"role": "assistant", "content": '```json\n{"tool": "delete_file", "args": {"path": "x"}}\n```'})


class Answers:
    """A model that gives the same answer each time; the conversation must stay sendable."""

    def __init__(self, answer: JSON) -> None:
        self.answer = answer

    async def complete(self, caller: Caller, request: Mapping[str, JSON]) -> dict[str, JSON]:
        dumps(dict(request)).encode("utf-8")
        return dict(self.answer)


def sendable(answer: JSON) -> bool:
    """Whether a gateway could have given it: an object of plain JSON."""
    try:
        dumps(answer).encode("utf-8")
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict)


replies = st.one_of(*(broken(example) for example in (NATIVE, LINE, FENCED)), st.sampled_from([NATIVE, LINE]).flatmap(
    lambda answer: st.builds(lambda text: _with_text(answer, text), broken_text(_text(answer)))
))  # fmt: skip


def _text(answer: JSON) -> str:
    message = answer["choices"][0]["message"]
    calls = message.get("tool_calls")
    return str(calls[-1]["function"]["arguments"] if calls else message["content"])


def _with_text(answer: JSON, text: str) -> JSON:
    changed = json.loads(json.dumps(answer))
    message = changed["choices"][0]["message"]
    if calls := message.get("tool_calls"):
        calls[-1]["function"]["arguments"] = text
    else:
        message["content"] = text
    return changed


@SLOW
@given(replies.filter(sendable), st.sampled_from(["tools", "json"]))
@example(_with_text(NATIVE, "[" * 5000), "tools")
@example(completion({"role": "assistant", "tool_calls": 5}), "tools")
@example(completion({"role": "assistant", "tool_calls": {"a": 1}}), "tools")
def test_any_reply_of_the_model_ends_in_a_result_or_a_failed_step_and_changes_the_scaffold_alone(
    answer: JSON, protocol: Any
) -> None:
    with workspace() as root:
        config = ProposerConfig(max_turns=6, max_refusals=1, protocol=protocol)
        proposer = AgentProposer(config, Answers(answer), capabilities=lambda _: {})
        failed = None
        try:
            result = asyncio.run(proposer.perform(step(root)))
            dumps(result.submission)
        except StepFailed as error:
            failed = error
        if failed:
            dumps({"reasons": failed.reasons, "raw": failed.raw}).encode("utf-8")
        for path, content in FILES.items():
            assert path.startswith("scaffold/") or (root / path).read_bytes() == content
        assert {path.name for path in root.iterdir()} == {"scaffold", "iterations", "SKILL.md", "loop", "out"}


ARGUMENTS: Mapping[str, JSON] = {
    "list_files": {"path": "iterations", "depth": 2, "start_line": 1},
    "read_file": {"path": "SKILL.md", "start_line": 1, "lines": 1, "start_column": 1},
    "search": {"pattern": "x =", "path": ".", "start_line": 1},
    "edit_file": {"path": "scaffold/agent.py", "old": "y = 2\ny", "new": "z"},
    "write_file": {"path": "scaffold/new.py", "content": "text"},
    "delete_file": {"path": "scaffold/agent.py"},
    "start_from": {"candidate": "iter_000"},
}
tools = st.sampled_from(sorted(ARGUMENTS)).flatmap(lambda name: st.tuples(st.just(name), broken(ARGUMENTS[name])))
pointed = st.tuples(
    st.sampled_from(["list_files", "read_file", "write_file", "delete_file"]),
    st.sampled_from([*TRAPS, "loop", "loop/x", "out/passwd", "scaffold/" + "é" * 120, "scaffold/\ud800"]).map(
        lambda path: {"path": path}
    ),
).map(lambda case: (case[0], {**case[1], **({"content": "x"} if case[0] == "write_file" else {})}))


@FUZZ
@given(st.one_of(tools.filter(lambda case: case[0] != "search"), pointed))
@example(("read_file", {"path": "loop"}))
@example(("write_file", {"path": "scaffold/agent.py/x", "content": ""}))
@example(("read_file", {"path": "out/passwd"}))
def test_any_call_of_a_tool_is_carried_out_or_refused_and_refused_ones_change_nothing(case: tuple[str, JSON]) -> None:
    name, arguments = case
    with workspace() as root:
        before = snapshot(root)
        toolbox = Toolbox(Workspace(step(root)), frozenset(TOOLS))
        told = refused_or(ToolRefused, lambda: asyncio.run(toolbox.call(name, arguments)))
        if told is None:
            assert snapshot(root) == before
        outside = {path: entry for path, entry in snapshot(root).items() if not path.startswith("scaffold/")}
        assert outside == {path: entry for path, entry in before.items() if not path.startswith("scaffold/")}


@SLOW
@given(st.one_of(broken(ARGUMENTS["search"], most=2), st.from_regex(r"[\[\]()*+?{}\\|a-z0-9,^$-]{1,20}").map(
    lambda pattern: {"pattern": pattern}
)))  # fmt: skip
@example({"pattern": "a{99999999999}"})
@example({"pattern": "(" * 3000 + ")" * 3000})
def test_any_search_answers_or_is_refused(arguments: JSON) -> None:
    with workspace() as root:
        toolbox = Toolbox(Workspace(step(root)), frozenset(TOOLS), search_limit_s=2)
        refused_or(ToolRefused, lambda: asyncio.run(toolbox.call("search", arguments)))


@FUZZ
@given(broken_text("a\r\nb = 1  \r\n\r\nc\n").map(lambda t: t.encode("utf-8", "surrogateescape")
                                                  if all(not "\ud800" <= c <= "\udfff" for c in t) else b"\xff\r\nb"),
       st.one_of(st.sampled_from(["b = 1", "a\nb = 1\n", "c", "\r\n"]), texts), texts)  # fmt: skip
@example(b"b = 1", "b = 1", "\ud800")
def test_an_edit_replaces_the_one_place_or_is_refused(content: bytes, old: str, new: str) -> None:
    made = refused_or(ToolRefused, lambda: edit(content, old, new))
    if made is not None:
        assert made.content != content
        if made.match == "exact" and b"\r" not in content and "\r" not in old + new:
            text = content.decode("utf-8", "surrogateescape")
            assert text.count(old) == 1
            assert made.content.decode("utf-8", "surrogateescape").rstrip("\n") == text.replace(old, new).rstrip("\n")


@FUZZ
@given(broken_bytes(as_text(SUBMITTED).encode()))
def test_a_submission_file_of_any_bytes_is_read_or_refused(content: bytes) -> None:
    with workspace() as root:
        (root / SUBMISSION).write_bytes(content)
        refused_or(SubmissionRefused, lambda: read_submission(root / SUBMISSION).encode("utf-8"))


@FUZZ
@given(st.one_of(anything, broken({"file": "submission.json"}), texts.map(lambda name: {"file": name})))
@example({"file": "loop"})
@example({"file": "a" * 300})
@example({"file": "\0"})
def test_any_answer_to_a_handoff_is_read_or_refused(answer: JSON) -> None:
    with workspace() as root:
        refused_or(SubmissionRefused, lambda: _read(step(root), answer, 0))


@FUZZ
@given(st.one_of(broken_bytes(as_text({"submission": SUBMITTED}).encode()), broken({"submission": SUBMITTED}).map(
    lambda value: as_text(value).encode()
)))  # fmt: skip
def test_a_recorded_step_of_any_bytes_is_replayed_or_fails_the_step(content: bytes) -> None:
    with workspace() as root:
        recorded = root.parent / "recorded" / "iter_001"
        shutil.copytree(root / "iterations/iter_000/source", recorded / "source")
        (recorded / "propose.json").write_bytes(content)
        replay = ReplayProposer(recorded.parent)
        failed = refused_or(StepFailed, lambda: asyncio.run(replay.perform(step(root))))
        assert failed is None or failed.submission


@pytest.mark.parametrize("name", ["propose.json", "source"])
def test_a_recording_with_a_folder_for_a_file_or_a_file_for_a_folder_fails_the_step(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "iter_001"
    for other in ("propose.json", "source"):
        (folder / other).mkdir(parents=True) if other == name == "propose.json" else None
    folder.mkdir(exist_ok=True)
    if name == "source":
        (folder / "propose.json").write_text(as_text({"submission": SUBMITTED}), encoding="utf-8")
        (folder / "source").write_text("", encoding="utf-8")
    with workspace() as root, pytest.raises(StepFailed, match="recording"):
        asyncio.run(ReplayProposer(tmp_path).perform(step(root)))
