"""Every numbered example runs offline, warns of nothing, and says what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "03_inside_an_app": [
        "candidate iter_000 0.0", "candidate iter_001 1.0", "grade iter_001 held",
        "best is iter_001 with 1.00 (iterations) - model calls of the second turn: 0",
    ],
    "06_own_suite": ["baseline: 0 of 5 right, by type {'europe': 0.0, 'south america': 0.0}"],
    "07_own_node": ["iter_000: 0.00, best iter_000", "iter_001: 0.00, best iter_000", "iter_002: 1.00, best iter_002"],
}  # fmt: skip
"""Lines of each example's output."""


@pytest.mark.parametrize("folder", sorted(EXAMPLES.glob("[0-9]*")), ids=lambda folder: folder.name)
def test_an_example_runs_and_says_what_it_says(folder: Path, tmp_path: Path) -> None:
    assert "python main.py" in (folder / "README.md").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", folder / "main.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in SAYS[folder.name] if line not in lines] == [], done.stdout
