"""The gateway: one thread with one event loop, through which every model call of a run goes. It alone holds keys.

It is usable from any thread and any event loop, one `asyncio.run` after another included.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from bco_graph.apart import run_in_own_thread
from bco_graph.config import Models, Roles
from bco_graph.errors import AuthenticationFailed, ConfigError, ModelCallError, UpstreamUnavailable
from bco_graph.gateway import local
from bco_graph.gateway.about import capabilities_of, fingerprint_of, key_hint, priced_of, prices_of, windows_of
from bco_graph.gateway.booking import Booking
from bco_graph.gateway.cache import ResponseCache
from bco_graph.gateway.calls import Calls
from bco_graph.gateway.chat_models import ChatModelLane, in_code, secrets_of
from bco_graph.gateway.deployments import Deployed, LaneName, resolve
from bco_graph.gateway.http import BROKEN_REQUESTS, SOCKET_NAME, Tokens, application, socket_folder
from bco_graph.gateway.lanes import ForwardLane, Lane, Retries
from bco_graph.gateway.notices import Notices, Tell
from bco_graph.gateway.prices import price_of
from bco_graph.gateway.replies import storable
from bco_graph.gateway.streaming import Hearing
from bco_graph.ledger import Ledger
from bco_graph.protocols import Caller, Hear, Role
from bco_graph.receipts import Receipts
from bco_graph.redaction import Redactor, credentials_of
from bco_graph.state import JSON

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

T = TypeVar("T")

_START_S = 120.0


@dataclass
class _Running:
    """What exists between start and close, all of it on the gateway's loop."""

    loop: asyncio.AbstractEventLoop
    calls: Calls
    base_url: str
    socket_path: Path
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    grace_s: float = 0.0


class Gateway:
    """Implements `protocols.ModelCalls`. Use it as a context manager, or `start` and `close`; both may be repeated.

    `chat_models` are LangChain chat models that play a role in place of what the config names for it. `extra_cache` is
    a file of recorded responses that is only read; with `offline`, a request that neither cache holds is refused
    instead of sent. `backoff_s` is about the first wait before a retry. Raises ConfigError for a wrong deployment; a
    missing key is reported by `start`, and by `check` for the role that it asks.
    """

    def __init__(
        self,
        models: Models,
        roles: Roles,
        ledger: Ledger,
        receipts: Receipts,
        *,
        run_dir: Path,
        chat_models: Mapping[Role, BaseChatModel] | None = None,
        extra_cache: Path | None = None,
        offline: bool = False,
        backoff_s: float = 0.5,
    ) -> None:
        self._models, self._ledger, self._receipts = models, ledger, receipts
        self._run_dir, self._extra_cache, self._offline = run_dir, extra_cache, offline
        self._retries = Retries(models.retries, backoff_s)
        self._chat_models = dict(chat_models or {})
        self._fleet = resolve(models, roles, os.environ, in_code(models, roles, self._chat_models))
        secrets = {*self._fleet.secrets, *secrets_of(self._chat_models.values())}
        self.redactor = Redactor([*secrets, *credentials_of(os.environ)])
        self._notices = Notices()
        for line in models.ignored:
            self._notices.say("models", f"not used: {line}")
        self._tokens = Tokens()
        self._life = threading.Lock()
        self._thread: threading.Thread | None = None
        self._running: _Running | None = None

    # -- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Gateway:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Raises ConfigError for a missing key, a missing price under `budget.usd`, or an extra that is missing."""
        for problem in self._fleet.problems.values():
            raise problem
        self._start()

    def _start(self) -> None:
        with self._life:
            if self._running is not None:
                return
            for role, deployed in self._fleet.roles.items():
                if not self._offline:
                    local.require(deployed)
                    self._ledger.require_price(role, price_of(deployed.source) is not None, model=deployed.model)
            started: Future[_Running] = Future()
            self._thread = threading.Thread(
                target=lambda: run_in_own_thread(self._serve(started)), name="bco-gateway", daemon=True
            )
            self._thread.start()
            self._running = started.result(_START_S)

    def close(self, grace_s: float = 2.0) -> None:
        """Wait up to `grace_s` for the calls under way, then cut them off; they are recorded either way."""
        with self._life:
            running, self._running = self._running, None
            if running is not None and self._thread is not None:
                running.grace_s = grace_s
                running.loop.call_soon_threadsafe(running.stopping.set)
                self._thread.join()

    async def _serve(self, started: Future[_Running]) -> None:
        async with AsyncExitStack() as stack:
            try:
                running = await self._open(stack)
            except BaseException as error:
                started.set_exception(error)
                return
            stack.push_async_callback(lambda: running.calls.drain(running.grace_s))
            started.set_result(running)
            await running.stopping.wait()

    async def _open(self, stack: AsyncExitStack) -> _Running:
        file = ResponseCache(self._run_dir / "cache.sqlite", extra=self._extra_cache)
        stack.callback(file.close)
        cache = file if self._models.cache or self._offline else None
        priced = priced_of(self._models, self._fleet)
        booking = Booking(
            prices={d.model_name: price for d, price in priced},
            fallback_prices={str(d.litellm_params["model"]): price for d, price in priced},
            ledger=self._ledger,
            receipts=self._receipts,
            redactor=self.redactor,
            notices=self._notices,
            cache=cache,
        )
        stack.callback(booking.close)
        calls = Calls(
            roles=self._fleet.roles,
            problems=self._fleet.problems,
            lanes=await self._lanes(stack),
            windows=windows_of(self._models, self._fleet),
            booking=booking,
            retries=self._retries,
            cache=cache,
            offline=self._offline,
        )
        scratch = socket_folder()
        stack.callback(scratch.remove)
        folder = scratch.path
        app = application(calls.complete, self._tokens, lambda caller: self._deployed(caller.role).name)
        runner = web.AppRunner(app, access_log=None, logger=BROKEN_REQUESTS, shutdown_timeout=0.5)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.UnixSite(runner, str(folder / SOCKET_NAME), backlog=1024).start()
        (folder / SOCKET_NAME).chmod(0o600)
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        port = next(address[1] for address in runner.addresses if isinstance(address, tuple))
        return _Running(asyncio.get_running_loop(), calls, f"http://127.0.0.1:{port}/v1", folder / SOCKET_NAME)

    async def _lanes(self, stack: AsyncExitStack) -> dict[LaneName, Lane]:
        """Only the lanes that a role uses: a run without litellm's providers never imports it."""
        used = set() if self._offline else {deployed.lane for deployed in self._fleet.roles.values()}
        lanes: dict[LaneName, Lane] = {}
        if "forward" in used:
            lanes["forward"] = ForwardLane(self._models.timeout_s)
        if "local" in used:
            lanes["local"] = local.LocalLane(self._models.timeout_s)
        if "chat_model" in used:
            lanes["chat_model"] = ChatModelLane(self._chat_models, self._models.timeout_s)
        if "litellm" in used:
            from bco_graph.gateway.routed import LitellmLane

            lanes["litellm"] = LitellmLane(self._models, self._fleet)
        for lane in lanes.values():
            stack.push_async_callback(lane.close)
        return lanes

    def _require(self) -> _Running:
        if self._running is None:
            raise ConfigError("the gateway is not running: use `with gateway:`, or call start() first")
        return self._running

    # -- calls -----------------------------------------------------------------------------------------------

    async def complete(self, caller: Caller, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """One chat completion in OpenAI's form; written to the receipts before it returns or raises.

        `choices[0].message` is always there; its `content` is None where the model gave no text. Raises a
        ModelCallError, BudgetExceeded, or ConfigError for a role without a deployment.
        """
        reply = await self._on_loop(self._require().calls.complete(caller, storable(request)))
        return dict(json.loads(reply))

    async def stream(self, caller: Caller, request: Mapping[str, JSON], hear: Hear) -> dict[str, JSON]:
        """As `complete`, and `hear` is told what the model says as it says it, without the keys in use: implements
        `protocols.StreamedCalls`. Nothing is told of a stored reply, nor of one that another call is waiting for."""
        hearing = Hearing(hear, self.redactor)
        reply = await self._on_loop(self._require().calls.complete(caller, storable(request), hearing=hearing))
        return dict(json.loads(reply))

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        running = self._require()
        if asyncio.get_running_loop() is running.loop:
            return await work
        future = asyncio.run_coroutine_threadsafe(work, running.loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if future.cancelled() and not (task and task.cancelling()):
                raise UpstreamUnavailable("the gateway was closed while this call was under way") from None
            raise

    def token(self, caller: Caller) -> str:
        """The bearer token with which the caller reaches `base_url` or `socket_path`; opaque, and good until close.

        Asking for it marks the start of the caller's job: what the job asks is found in the cache from its first
        request on, should it run a second time.
        """
        if running := self._running:
            running.loop.call_soon_threadsafe(running.calls.begin, caller)
        return self._tokens.issue(caller)

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`, what OpenAI's clients take as their base."""
        return self._require().base_url

    @property
    def socket_path(self) -> Path:
        """Unix socket (mode 0600) with the same face."""
        return self._require().socket_path

    # -- about the models ------------------------------------------------------------------------------------

    def _deployed(self, role: Role) -> Deployed:
        if role in self._fleet.problems:
            raise self._fleet.problems[role]
        if role not in self._fleet.roles:
            raise ConfigError(f"role {role!r} has no deployment in this run; name one under roles.{role}")
        return self._fleet.roles[role]

    def fingerprint(self, role: Role) -> dict[str, JSON]:
        """What makes a role's model the same one: for run.json. No key, no credentials in the endpoint."""
        return fingerprint_of(self._deployed(role))

    def prices(self) -> dict[str, JSON]:
        """By deployment, those that have a price: its model, and the rates in USD per token by which its calls are
        booked, as litellm names them. For run.json, so that money can be worked out again."""
        return prices_of(self._models, self._fleet)

    def capabilities(self, role: Role) -> dict[str, JSON]:
        """`tools`: whether the model calls tools, taken for granted of a model that nobody describes (`model_info`
        settles it); `window`: its tokens, None where nobody says."""
        return capabilities_of(self._deployed(role))

    async def check(self, role: Role) -> str:
        """Make one cheap call, never retried or cached, and say in a line how it went.

        Raises what the call raised, with role, deployment and key variable named: ConfigError for a missing key,
        AuthenticationFailed for a refused one, RequestRejected for an unknown model.
        """
        deployed = self._deployed(role)
        self._start()
        request = {"messages": [{"role": "user", "content": "Answer with the word ok."}], "max_tokens": 8}
        started = time.monotonic()
        try:
            call = self._require().calls.complete(Caller(role, step="check"), request, probe=True)
            reply = json.loads(await self._on_loop(call))
        except ModelCallError as error:
            where = f"role {role!r}, deployment {deployed.name!r} ({deployed.model} at {deployed.host})"
            hint = f"; {key_hint(deployed)}" if isinstance(error, AuthenticationFailed) else ""
            raise type(error)(f"{where}: {error}{hint}", status=error.status, attempts=error.attempts) from None
        tokens = reply["usage"].get("total_tokens", "unknown")
        return f"{deployed.model} at {deployed.host} answered in {time.monotonic() - started:.1f} s ({tokens} tokens)"

    def warn(self, tell: Tell) -> None:
        """Have `tell` called, from any thread, with what it is about and a sentence, for what a person should hear of
        once: settings that are not used, parameters changed or left out, another model that answered, drift."""
        self._notices.listen(tell)
