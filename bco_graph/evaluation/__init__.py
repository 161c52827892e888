"""Running a candidate's source on tasks, apart from the controller, and judging it before anything is paid."""

from __future__ import annotations

from bco_graph.evaluation.checks import check_candidate
from bco_graph.evaluation.leaks import LeakPatterns
from bco_graph.evaluation.local import LocalExecutor
from bco_graph.evaluation.sandbox import Sandbox, pick_sandbox

__all__ = ["LeakPatterns", "LocalExecutor", "Sandbox", "check_candidate", "pick_sandbox"]
