"""What one call costs with nothing else under way: bare aiohttp, through the gateway, and from its cache, in one run.

Calls one after another over the Unix socket, to a server that answers at once. One line of output with the medians of
the turns, in ms a call: {"calls", "bare_ms", "gateway_ms", "over_bare_ms", "hit_ms"}.
"""

from __future__ import annotations

import json
import statistics

from bco_graph.protocols import Caller
from tests.bench.gateway_arms import gateway, server, timed

CALLS, TURNS = 500, 7


def main() -> None:
    bare, through, hits = [], [], []
    with server(0.0) as base, gateway(base) as opened:
        for turn in range(TURNS):  # each turn asks other questions, and then the same ones as another task
            asking, again = (opened.token(Caller("target", "iter_000", f"{name} {turn}")) for name in ("a", "b"))
            bare.append(timed(base, asking, turn * CALLS, CALLS, 1))
            through.append(timed(str(opened.socket_path), asking, turn * CALLS, CALLS, 1))
            hits.append(timed(str(opened.socket_path), again, turn * CALLS, CALLS, 1))
    bare_ms, gateway_ms, hit_ms = (statistics.median(arm) / CALLS * 1000 for arm in (bare, through, hits))
    figures = {"bare_ms": bare_ms, "gateway_ms": gateway_ms, "over_bare_ms": gateway_ms - bare_ms, "hit_ms": hit_ms}
    print(json.dumps({"calls": CALLS, **{name: round(value, 3) for name, value in figures.items()}}))


if __name__ == "__main__":
    main()
