"""One step of the `agent` proposer: ask, carry out, tell, until a submission is accepted or a bound is met."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from bco_graph.config import ProposerConfig
from bco_graph.errors import (
    AuthenticationFailed,
    ContextOverflow,
    ModelCallError,
    StepFailed,
    SubmissionRefused,
    ToolRefused,
)
from bco_graph.proposers.chat_face import complete
from bco_graph.proposers.conversation import Conversation
from bco_graph.proposers.intake import Intake
from bco_graph.proposers.replies import Call, Dialect, Reply
from bco_graph.proposers.tools import SUBMIT, WRITING, Toolbox
from bco_graph.proposers.workspace import Workspace
from bco_graph.protocols import Caller, ModelCalls, Step, StepResult
from bco_graph.state import JSON

T = TypeVar("T")

EMPTY_IN_A_ROW = 3
"""So many empty replies in a row fail the step."""
PROSE_IN_A_ROW = 5
"""So many replies in a row that call no tool, or break the JSON protocol, fail the step."""
_WARNED_TURNS = 5
"""The model is told once when so many turns are left, or a third of all turns where that is less."""


class ToolLoop(Generic[T]):
    """Runs once. `run` raises StepFailed, and lets BudgetExceeded and AuthenticationFailed through."""

    def __init__(
        self,
        step: Step[T],
        config: ProposerConfig,
        calls: ModelCalls,
        caller: Caller,
        dialect: Dialect,
        conversation: Conversation,
        tools: frozenset[str],
    ) -> None:
        self._step = step
        self._config = config
        self._calls = calls
        self._caller = caller
        self._dialect = dialect
        self._conversation = conversation
        self._tools = tools
        self._toolbox = Toolbox(Workspace(step), tools)
        self._intake = Intake(step, config.max_refusals)
        self._accepted: tuple[T, dict[str, JSON]] | None = None
        self._turns = self._tokens = self._last_tokens = self._empty = self._prose = 0
        self._warned = self._made_room = False
        self._raw = ""

    async def run(self) -> StepResult[T]:
        while self._accepted is None:
            self._check_bounds()
            answer = await self._ask()
            if answer is not None:
                await self._take_in(self._dialect.read(answer), answer)
        counts = self._toolbox.counts
        notes = {
            "turns": self._turns,
            "tokens": self._tokens,
            "edits_applied": counts.edits_applied,
            "edits_refused": counts.edits_refused,
        }
        return self._intake.result(self._accepted, trace_reads=counts.trace_reads, notes=notes)

    # -- bounds ------------------------------------------------------------------------------------------------

    def _check_bounds(self) -> None:
        turns, tokens = self._config.max_turns, self._config.max_tokens
        if self._turns >= turns:
            raise self._failed("turns", f"no submission was accepted in {turns} turns (proposer.max_turns)")
        if self._tokens >= tokens:
            used = f"{self._tokens:,} tokens were used of {tokens:,} (proposer.max_tokens)"
            raise self._failed("tokens", f"no submission was accepted: {used}")
        left = turns - self._turns
        few = left <= min(_WARNED_TURNS, turns // 3) or self._tokens + 3 * self._last_tokens >= tokens
        if few and self._turns and not self._warned:
            self._warned = True
            self._conversation.say(
                f"Little is left for this step: {left} turn(s) and {tokens - self._tokens:,} tokens. Hand in with "
                f"`{SUBMIT}` now."
            )

    def _failed(self, cause: str, reason: str) -> StepFailed:
        reasons = [reason]
        if self._intake.refusals:
            reasons += [f"the last refusal: {'; '.join(self._intake.refusals[-1])}"]
        return StepFailed(self._step.name, cause=cause, reasons=reasons, raw=self._raw)

    # -- one turn ----------------------------------------------------------------------------------------------

    async def _ask(self) -> dict[str, JSON] | None:
        """The endpoint's answer, or None where the prompt was too long and room was made for another turn."""
        request = self._dialect.request(self._conversation, self._tools, self._step.schema)
        self._turns += 1
        try:
            answer = await complete(self._calls, self._caller, request)
        except AuthenticationFailed:
            raise
        except ContextOverflow as error:
            if self._made_room or not self._conversation.make_room():
                raise self._failed("overflow", str(error)) from error
            self._made_room = True
            return None
        except ModelCallError as error:
            raise self._failed("upstream", str(error)) from error
        self._made_room = False
        self._raw = json.dumps(answer, ensure_ascii=False)
        self._last_tokens = tokens_of(answer, request)
        self._tokens += self._last_tokens
        return answer

    async def _take_in(self, reply: Reply, answer: Mapping[str, JSON]) -> None:
        self._empty = self._empty + 1 if reply.kind == "empty" else 0
        self._prose = self._prose + 1 if reply.kind == "prose" else 0
        if reply.kind == "empty":
            self._re_ask(reply, answer)
        elif reply.kind == "prose":
            self._dialect.record(self._conversation, reply, ())
            if self._prose >= PROSE_IN_A_ROW:
                raise self._failed("format", f"{PROSE_IN_A_ROW} replies in a row called no tool; {reply.problem}")
            self._conversation.say(reply.problem)
        else:
            self._dialect.record(self._conversation, reply, await self._carry_out(reply.calls))

    def _re_ask(self, reply: Reply, answer: Mapping[str, JSON]) -> None:
        """An empty reply is not put into the conversation: endpoints refuse a message without content."""
        if self._empty >= EMPTY_IN_A_ROW:
            usage = json.dumps(answer.get("usage"))
            what = f"{self._empty} empty replies in a row; finish reason {reply.finish!r}, usage {usage}"
            raise self._failed("empty", f"{what}; a higher limit on completion tokens may help")
        cut = " It was cut at the token limit: think less, write less at once." if reply.finish == "length" else ""
        self._conversation.say(f"Your last reply was empty (finish reason {reply.finish!r}).{cut} Call a tool.")

    # -- calls -------------------------------------------------------------------------------------------------

    async def _carry_out(self, calls: Sequence[Call]) -> list[str]:
        """One result per call, in their order. Calls run in order, `submit` last and only where all others worked."""
        work = [call for call in calls if call.name != SUBMIT]
        submits = [call for call in calls if call.name == SUBMIT]
        done, refused = await self._work(work)
        handed_in = ["not taken: this reply hands in twice, and the last one counts"] * (len(submits) - 1)
        if submits and refused:
            handed_in.append(f"not taken: {refused} of the same reply was refused; mend that, then hand in")
        elif submits:
            handed_in.append(self._submit(submits[-1]))
        results = {SUBMIT: iter(handed_in), "": iter(done)}
        return [next(results[SUBMIT if call.name == SUBMIT else ""]) for call in calls]

    async def _work(self, calls: Sequence[Call]) -> tuple[list[str], str]:
        """Results, and the name of the first refused call or ''. Writing calls of one reply are applied all or none."""
        results, refused = [], []
        writing = [at for at, call in enumerate(calls) if call.name in WRITING]
        held = self._toolbox.held() if len(writing) > 1 else None
        for at, call in enumerate(calls):
            try:
                results.append(await self._toolbox.call(call.name, call.parsed()))
            except ToolRefused as error:
                results.append(f"refused: {error}")
                refused.append(at)
        broken = [at for at in writing if at in refused]
        if broken and held is not None:
            self._toolbox.put_back(held)
            for at in set(writing) - set(broken):
                results[at] = f"not applied: {calls[broken[0]].name} of the same reply was refused, and edits of one "
                results[at] += "reply are applied all or none; send all of them again, the refused one mended"
        self._toolbox.counts.edits_applied += 0 if broken else len(writing)
        self._toolbox.counts.edits_refused += len(writing) if broken else 0
        return results, calls[refused[0]].name or "a call without a name" if refused else ""

    def _submit(self, call: Call) -> str:
        try:
            self._accepted = self._intake.offer(call.arguments)
        except SubmissionRefused as refused:
            reasons = "\n".join(f"- {reason}" for reason in refused.reasons)
            return f"refused, {self._intake.tries_left} more tries; mend this and hand in again:\n{reasons}"
        return "accepted"


def tokens_of(answer: Mapping[str, JSON], request: Mapping[str, JSON]) -> int:
    """Prompt plus completion tokens as the endpoint counts them; where it does not, characters / 4 of both texts."""
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    counts = [count for key in ("prompt_tokens", "completion_tokens") if isinstance(count := usage.get(key), int)]
    if len(counts) == 2 and sum(counts) > 0:
        return sum(counts)
    return (len(json.dumps(request)) + len(json.dumps(answer))) // 4
