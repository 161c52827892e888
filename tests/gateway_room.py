"""What the gateway's tests share: a started gateway over a run folder, one job that asks it, and its two doors."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bco_graph.config import Budget, Models, Roles
from bco_graph.gateway import Gateway
from bco_graph.ledger import Ledger
from bco_graph.protocols import Caller
from bco_graph.receipts import CallRecord, Receipts

JOB = Caller("target", candidate="iter_001", task="t1")


def says(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


@dataclass
class Room:
    """A gateway with its run folder; `ask` and `calls` are for the one job of most tests."""

    gateway: Gateway
    receipts: Receipts
    ledger: Ledger

    def ask(self, request: Mapping[str, Any], caller: Caller = JOB) -> dict[str, Any]:
        return asyncio.run(self.gateway.complete(caller, request))

    def warnings(self) -> list[tuple[str, str]]:
        """What was to be said so far."""
        told: list[tuple[str, str]] = []
        self.gateway.warn(lambda about, message: told.append((about, message)))
        return told

    @property
    def calls(self) -> list[CallRecord]:
        return self.receipts.calls_of(JOB.candidate, JOB.task, JOB.repeat)


@contextmanager
def opened(folder: Path, *deployments: Mapping[str, Any], **options: Any) -> Iterator[Room]:
    """A started gateway; the first deployment is the target's. Options beside those of the gateway: `budget`,
    `roles`, and settings of `models`."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {name: options.pop(name) for name in ("extra_cache", "offline", "chat_models") if name in options}
    budget, roles = options.pop("budget", {}), options.pop("roles", {})
    models = Models.model_validate({"model_list": [dict(d) for d in deployments], "retries": 0, **options})
    receipts = Receipts(folder / "receipts.sqlite")
    try:
        ledger = Ledger(Budget.model_validate(budget), receipts)
        first = deployments[0]["model_name"] if deployments else "code"
        chosen = Roles.model_validate({"target": first, **roles})
        with Gateway(models, chosen, ledger, receipts, run_dir=folder, backoff_s=0.01, **own) as gateway:
            yield Room(gateway, receipts, ledger)
    finally:
        receipts.close()


def text(answer: Mapping[str, Any]) -> Any:
    return answer["choices"][0]["message"]["content"]


class UnixConnection(http.client.HTTPConnection):
    """The small client that needs no TLS context."""

    def __init__(self, path: Path) -> None:
        super().__init__("gateway", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(str(self._path))


def connect(room: Room, door: str) -> http.client.HTTPConnection:
    """A connection to one of the gateway's doors: `unix`, its socket, or `tcp`, on loopback."""
    if door == "unix":
        return UnixConnection(room.gateway.socket_path)
    return http.client.HTTPConnection(room.gateway.base_url.removeprefix("http://").removesuffix("/v1"), timeout=30)


def knock(
    room: Room, body: Any, token: str | None, *, door: str = "unix", path: str = "/v1/chat/completions"
) -> tuple[int, Any, dict[str, str]]:
    """Status, parsed body (text where it is no JSON) and headers."""
    connection = connect(room, door)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
        response = connection.getresponse()
        raw = response.read().decode()
    finally:
        connection.close()
    return response.status, json.loads(raw) if raw.startswith("{") else raw, dict(response.headers)
