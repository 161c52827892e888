"""What one call costs with nothing else under way: bare aiohttp, through the gateway, and from its cache, in one run.

Calls one after another over the Unix socket, to a server that answers at once. One line of output with the medians of
the turns, in ms a call: {"calls", "bare_ms", "gateway_ms", "over_bare_ms", "hit_ms", "cpu_ms", "hit_cpu_ms"}; the last
two are the processor time that the gateway took.
"""

from __future__ import annotations

import json
import statistics
import time

from bco_graph.protocols import Caller
from tests.bench.gateway_arms import gateway, server, timed

CALLS, TURNS = 200, 5


def main() -> None:
    arms: dict[str, list[float]] = {"bare": [], "gateway": [], "hit": []}
    cpu: dict[str, list[float]] = {"bare": [], "gateway": [], "hit": []}
    with server(0.0) as base, gateway(base) as opened:
        for turn in range(TURNS):  # each turn asks other questions, and then the same ones as another task
            asking, again = (opened.token(Caller("target", "iter_000", f"{name} {turn}")) for name in ("a", "b"))
            through = str(opened.socket_path)
            for arm, where, token in (("bare", base, asking), ("gateway", through, asking), ("hit", through, again)):
                before = time.process_time()
                arms[arm].append(timed(where, token, turn * CALLS, CALLS, 1) / CALLS * 1000)
                cpu[arm].append((time.process_time() - before) / CALLS * 1000)
    wall = {arm: statistics.median(values) for arm, values in arms.items()}
    figures = {
        "bare_ms": wall["bare"], "gateway_ms": wall["gateway"], "over_bare_ms": wall["gateway"] - wall["bare"],
        "hit_ms": wall["hit"], "cpu_ms": statistics.median(cpu["gateway"]), "hit_cpu_ms": statistics.median(cpu["hit"]),
    }  # fmt: skip
    print(json.dumps({"calls": CALLS, **{name: round(value, 3) for name, value in figures.items()}}))


if __name__ == "__main__":
    main()
