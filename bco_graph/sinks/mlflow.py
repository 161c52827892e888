"""A run as an MLflow run: a metric each for the figures of an iteration, params, and texts at the end.

Only the client is used, none of mlflow's process-wide state, so that a program's own active run stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bco_graph.events import Event, View
from bco_graph.protocols import SinkRun
from bco_graph.sink_sections import MlflowSink
from bco_graph.sinks.figures import figures

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric


class ToMlflow:
    def __init__(self, section: MlflowSink) -> None:
        self._section = section
        self._client: MlflowClient
        self._run_id = ""
        self._metrics: list[Metric] = []

    def open(self, run: SinkRun) -> Mapping[str, str]:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self._section.tracking_uri)
        if run_id := run.ids.get("run_id"):
            self._client.update_run(run_id, status="RUNNING")
        else:
            run_id = self._create(run)
        self._run_id = run_id
        return {"run_id": run_id}

    def _create(self, run: SinkRun) -> str:
        from mlflow.entities import Param

        name = self._section.experiment
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        tags = {"bco.folder": str(run.folder), "bco.method": str(run.settings["method"])}
        made: str = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        params = [Param(key, str(value)) for key, value in run.settings.items()]
        self._client.log_batch(made, params=params)
        return made

    def take(self, event: Event, view: View) -> None:
        from mlflow.entities import Metric

        at = round(event["at"] * 1000)
        self._metrics += [
            Metric(name, value, at, event["iteration"]) for name, value in figures(event, view).items()
        ]  # fmt: skip

    def flush(self) -> None:
        if self._metrics:
            self._client.log_batch(self._run_id, metrics=self._metrics)
            self._metrics = []

    def close(self, view: View, artifacts: Mapping[str, str]) -> None:
        for name, text in artifacts.items():
            self._client.log_text(self._run_id, text, name)
        failed = view.error is not None or view.stop == "failures"
        # KILLED is MLflow's word for a run that somebody stopped; it goes on when the run does.
        status = "FAILED" if failed else "FINISHED" if view.stop in ("iterations", "budget") else "KILLED"
        self._client.set_terminated(self._run_id, status)
