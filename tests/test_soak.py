"""What a run takes does not grow with the number of rounds: a small soak of the whole loop in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parent / "bench" / "soak.py"


def test_checkpoints_stay_small_the_folder_grows_by_rounds_and_memory_does_not() -> None:
    """A round's traces are 160 KB: were they held, or the state a list of rounds, the figures would show it."""
    done = subprocess.run([sys.executable, SOAK, "30", "8"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["checkpoint_ratio"] < 1.2
    assert 0.8 < figures["folder_ratio"] < 1.2
    assert figures["heap_kb_per_round"] < 60
