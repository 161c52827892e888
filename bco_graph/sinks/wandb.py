"""A run as a Weights & Biases run: the figures over the iteration, the config, and files at the end."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bco_graph.events import Event, View
from bco_graph.protocols import SinkRun
from bco_graph.sink_sections import WandbSink
from bco_graph.sinks.figures import figures

if TYPE_CHECKING:
    from wandb import Run


class ToWandb:
    def __init__(self, section: WandbSink) -> None:
        self._section = section
        self._run: Run
        self._rows: dict[int, dict[str, float]] = {}

    def open(self, run: SinkRun) -> Mapping[str, str]:
        import wandb

        run_id = run.ids.get("run_id") or secrets.token_hex(4)
        folder = run.folder / "sinks"
        folder.mkdir(exist_ok=True)
        self._run = wandb.init(
            project=self._section.project, entity=self._section.entity, mode=self._section.mode, id=run_id,
            name=run.name, config=dict(run.settings), dir=str(folder), reinit="create_new", settings=_quiet(),
            resume="allow" if self._section.mode == "online" else None,
        )  # fmt: skip
        self._run.define_metric("*", step_metric="iteration")
        return {"run_id": run_id}

    def take(self, event: Event, view: View) -> None:
        self._rows.setdefault(event["iteration"], {}).update(figures(event, view))

    def flush(self) -> None:
        for iteration, row in self._rows.items():
            if row:
                self._run.log({"iteration": iteration, **row})
        self._rows = {}

    def close(self, view: View, artifacts: Mapping[str, str]) -> None:
        for name, text in artifacts.items():
            (Path(self._run.dir) / name).write_text(text, encoding="utf-8")
        self._run.finish(exit_code=int(view.error is not None or view.stop == "failures"))


def _quiet() -> Any:
    """Nothing of this process, machine or checkout is looked at, and nothing printed."""
    import wandb

    return wandb.Settings(
        console="off", silent=True, disable_git=True, disable_code=True, disable_job_creation=True, save_code=False,
        x_disable_meta=True, x_disable_stats=True,
    )  # fmt: skip
