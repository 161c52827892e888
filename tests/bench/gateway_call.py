"""What the gateway costs: calls through its Unix socket, receipts on disk, against bare aiohttp, in one run.

One line of output with the medians of the turns: {"calls", "at_once", "delay_ms", "bare_s", "gateway_s", "ratio",
"cpu_ms"}; the last is the processor time that the gateway took for a call, in ms, its writing thread included.
"""

from __future__ import annotations

import json
import statistics
import time

from bco_graph.protocols import Caller
from tests.bench.gateway_arms import gateway, server, timed

CALLS, AT_ONCE, DELAY_S, TURNS = 1449, 64, 0.05, 7


def main() -> None:
    bare, through, cpu = [], [], []
    with server(DELAY_S) as base, gateway(base) as opened:
        token = opened.token(Caller("target", "iter_000", "bench"))
        for turn in range(TURNS):  # each turn asks other questions: none is answered from the cache
            bare.append(timed(base, token, turn * CALLS, CALLS, AT_ONCE))
            before = time.process_time()
            through.append(timed(str(opened.socket_path), token, turn * CALLS, CALLS, AT_ONCE))
            cpu.append((time.process_time() - before) / CALLS * 1000)
    bare_s, gateway_s = statistics.median(bare), statistics.median(through)
    figures = {"bare_s": round(bare_s, 3), "gateway_s": round(gateway_s, 3), "ratio": round(gateway_s / bare_s, 3)}
    load = {"calls": CALLS, "at_once": AT_ONCE, "delay_ms": DELAY_S * 1000}
    print(json.dumps({**load, **figures, "cpu_ms": round(statistics.median(cpu), 3)}))


if __name__ == "__main__":
    main()
