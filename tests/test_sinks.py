"""Other systems get a run's events: each once, over several processes, and what fails there never fails the run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bco_graph import Event, SinkRun, View
from bco_graph.config import RunConfig, check_config
from bco_graph.driver import drive
from bco_graph.errors import ConfigError
from bco_graph.events import Events, event_faults, reduce
from bco_graph.opening import open_run
from bco_graph.run_folder import RunFolder
from bco_graph.sink_sections import SINKS
from bco_graph.sinks import Feed, Feeds
from bco_graph.sinks.figures import figures
from bco_graph.sinks.otel import ToOtel
from bco_graph.studies.heldout import heldout
from bco_graph.testing import ScriptedModelServer
from tests.test_events import event, logged, seen
from tests.toy import ScriptedProposer, ToySuite, prompt_edit, toy_config, two_edits

MEANS = [0.0, 0.5, 1.0]


def warnings_of(config: RunConfig) -> list[str]:
    return [f"{e['about']}: {e['message']}" for e in logged(config.run_dir) if e["type"] == "warning"]


# -- the config ----------------------------------------------------------------------------------------------------

BARE = {
    "name": "toy", "suite": "toy", "roles": {"target": "toy"},
    "models": {"model_list": [{"model_name": "toy", "litellm_params": {"model": "openai/toy"}}]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("sinks", "expected"),
    [
        (
            [{"kind": "mlfow"}],
            "sinks.0: unknown kind of sink 'mlfow' (did you mean 'mlflow'?); known: mlflow, wandb, otel",
        ),
        (
            [{"kind": "wandb", "mod": "offline"}],
            "mod: unknown key (did you mean 'mode'?); known: kind, project, entity",
        ),
        ([{"kind": "otel", "project": "x"}], "project: unknown key; known: kind, endpoint, service"),
        ([{"kind": "wandb", "mode": "later"}], "sinks.0.wandb.mode: Input should be 'online' or 'offline'"),
        ([{"project": "x"}], "kind: missing"),
        ([{"kind": "otel"}, {"kind": "otel"}], "sinks: one of kind 'otel' is given twice"),
        ([{"kind": "mlflow", "tracking_uri": "https://me:secret@host"}], "a password in a URL would be written"),
    ],
)
def test_a_wrong_sink_is_named_with_what_is_known(sinks: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_config({**BARE, "sinks": sinks})
    assert expected in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(("kind", "module"), [("mlflow", "mlflow"), ("wandb", "wandb"), ("otel", "opentelemetry")])
def test_a_missing_extra_is_named_before_anything_is_made(tmp_path: Path, kind: str, module: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from bco_graph.config import check_config\nfrom bco_graph.errors import ConfigError\n"
        "from bco_graph.opening import open_run\nfrom tests.toy import ToySuite\nfrom pathlib import Path\n"
        f"config = check_config({ {**BARE, 'sinks': [{'kind': kind}]}!r})\n"
        f"try:\n    open_run(config, suite=ToySuite(Path({str(tmp_path / 'initial')!r})))\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    root = Path(__file__).parents[1]
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=True
    )
    assert f"pip install 'bco-graph[{kind}]'" in done.stdout
    assert not (tmp_path / "runs").exists()


# -- a sink of somebody else's -------------------------------------------------------------------------------------


class Recorder:
    """Writes what it is told into a file; its id is how often it was opened. `fails` names a method that raises."""

    def __init__(self, path: str, fails: str = "") -> None:
        self._path = Path(path)
        self._fails = fails

    def _note(self, method: str, fact: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([method, fact]) + "\n")
        if method == self._fails:
            raise OSError(f"{method} went wrong")

    def open(self, run: SinkRun) -> Mapping[str, str]:
        self._note("open", [run.name, dict(run.ids), run.settings["roles.target"], str(run.folder)])
        return {"number": str(int(run.ids.get("number", "0")) + 1)}

    def take(self, event: Event, view: View) -> None:
        self._note("take", [event["type"], event["iteration"], view.best])

    def flush(self) -> None:
        self._note("flush", None)

    def close(self, view: View, artifacts: Mapping[str, str]) -> None:
        self._note("close", [view.stop, sorted(artifacts)])

    @staticmethod
    def noted(path: Path, method: str) -> list[Any]:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [fact for kind, fact in map(json.loads, lines) if kind == method]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with sinks among its entry points, on the path; the file that `recorder` writes by convention."""
    info = tmp_path / "site" / "toy_sinks-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-sinks\nVersion: 1.0\n", encoding="utf-8")
    points = "[bco_graph.sinks]\nrecorder = tests.test_sinks:Recorder\nhalf = tests.test_sinks:Half\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(str(info.parent))
    return tmp_path / "noted.jsonl"


class Half:
    def open(self, run: SinkRun) -> Mapping[str, str]:
        return {}


def recorder(path: Path, **options: Any) -> dict[str, Any]:
    return {"kind": "recorder", "options": {"path": str(path), **options}}


async def test_an_installed_sink_gets_every_event_in_order_with_the_view_and_the_artifacts(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, installed: Path
) -> None:
    config = toy_config(tmp_path, server, sinks=[recorder(installed)])
    await drive(config, suite=suite, proposer=two_edits())
    events = logged(config.run_dir)
    taken = Recorder.noted(installed, "take")
    assert [tuple(fact[:2]) for fact in taken] == [(e["type"], e["iteration"]) for e in events]
    assert [fact[2] for fact in taken if fact[0] == "candidate"] == ["iter_000", "iter_001", "iter_002"]
    assert Recorder.noted(installed, "open") == [["toy", {}, "toy", str(config.run_dir.resolve())]]
    assert Recorder.noted(installed, "close") == [["iterations", ["best.diff", "world_model_calibration.md"]]]
    assert len(Recorder.noted(installed, "flush")) < len(events)


async def test_a_run_that_goes_on_goes_on_in_the_sink_and_tells_nothing_twice(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, installed: Path
) -> None:
    for iterations in (1, 2):
        config = toy_config(tmp_path, server, iterations=iterations, sinks=[recorder(installed)])
        await drive(config, suite=suite, proposer=two_edits())
    taken = [tuple(fact[:2]) for fact in Recorder.noted(installed, "take")]
    assert taken == [(e["type"], e["iteration"]) for e in logged(config.run_dir)]
    assert [fact[1] for fact in Recorder.noted(installed, "open")] == [{}, {"number": "1"}]


async def test_a_sink_that_is_given_later_gets_the_whole_run(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, installed: Path
) -> None:
    await drive(toy_config(tmp_path, server, iterations=1), suite=suite, proposer=two_edits())
    config = toy_config(tmp_path, server, iterations=1, sinks=[recorder(installed)])
    await drive(config, suite=suite, proposer=two_edits())
    assert Recorder.noted(installed, "take")[0][0] == "run_started"
    assert [fact[1] for fact in Recorder.noted(installed, "take") if fact[0] == "candidate"] == [0, 1]


@pytest.mark.parametrize("method", ["open", "take", "flush", "close"])
async def test_a_sink_that_fails_is_switched_off_with_one_warning_and_the_run_ends_as_ever(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, installed: Path, method: str
) -> None:
    other = tmp_path / "other.jsonl"
    config = toy_config(
        tmp_path, server, iterations=1, sinks=[recorder(installed, fails=method), recorder(other)]
    )  # fmt: skip
    ended = await drive(config, suite=suite, proposer=two_edits())
    assert (ended.stop, ended.state["best"]) == ("iterations", {"id": "iter_001", "mean": 0.5})
    assert warnings_of(config) == [f"sink recorder: switched off after OSError: {method} went wrong"]
    assert [fault for item in logged(config.run_dir) for fault in event_faults(item)] == []
    assert len(Recorder.noted(installed, method)) == 1
    assert "run_ended" in [fact[0] for fact in Recorder.noted(other, "take")]


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ({"kind": "recorder", "options": {"color": "red"}}, "'recorder' does not take the options {'color': 'red'}"),
        ({"kind": "half"}, "'half' lacks a method of bco_graph.Sink"),
    ],
)
async def test_an_installed_sink_that_cannot_be_made_is_a_config_error(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, installed: Path, sink: Any, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        await drive(toy_config(tmp_path, server, sinks=[sink]), suite=suite, proposer=two_edits())
    assert not (tmp_path / "runs").exists()


# -- the feed ------------------------------------------------------------------------------------------------------


class Log:
    """The log of a run folder, and a feed of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = RunFolder(tmp_path / "runs" / "toy")
        self.folder.root.mkdir(parents=True)
        self.events = Events(self.folder.events)
        self.noted = tmp_path / "noted.jsonl"

    def feed(self, sink: Any = None) -> Feeds:
        sink = sink or Recorder(str(self.noted))
        return Feeds.started({"toy-1": sink}, self.folder, check_config(BARE), self.events)

    def taken(self) -> list[Any]:
        return [fact[0] for fact in Recorder.noted(self.noted, "take")]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_what_a_killed_process_left_untold_is_told_by_the_next(log: Log) -> None:
    log.events.emit("node_started", 0, node="evaluate")
    log.feed().close()
    log.events.emit("node_ended", 0, node="evaluate", seconds=1.0)  # nobody feeds a sink now
    log.feed().close()
    assert log.taken() == ["node_started", "node_ended"]


def test_what_a_node_says_again_is_told_once_and_a_sink_that_failed_hears_it_again(log: Log) -> None:
    log.events.emit("spend", 1, totals={})
    log.feed(Recorder(str(log.noted), fails="flush")).close()
    assert log.taken() == ["spend"]
    log.noted.unlink()
    log.feed().close()
    assert log.taken() == ["spend", "warning"]
    log.events.emit("spend", 1, totals={})
    log.events.emit("spend", 2, totals={})
    log.feed().close()
    assert log.taken() == ["spend", "warning", "spend"]
    assert [fact[1] for fact in Recorder.noted(log.noted, "take")][-1] == 2


def test_a_log_that_was_replaced_is_told_from_its_beginning(log: Log) -> None:
    for _ in range(5):
        log.events.emit("node_started", 0, node="evaluate")
    log.feed().close()
    log.folder.events.unlink()
    log.events.emit("node_started", 1, node="propose")
    log.feed().close()
    assert len(log.taken()) == 6


class Stuck(Recorder):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.free = threading.Event()
        self.stuck = threading.Event()

    def take(self, event: Event, view: View) -> None:
        self.stuck.set()
        self.free.wait(30)
        super().take(event, view)


def test_a_sink_that_hangs_holds_up_neither_the_run_nor_its_end(log: Log) -> None:
    sink = Stuck(str(log.noted))
    feeds = log.feed(sink)
    log.events.emit("node_started", 0, node="evaluate")
    assert sink.stuck.wait(10)
    for _ in range(100):
        log.events.emit("node_started", 0, node="evaluate")
    feeds.close(within_s=0.2)
    assert log.events.view.warnings[0].startswith("sink toy: did not finish in time")
    assert not sink.free.is_set()
    sink.free.set()
    for thread in [t for t in threading.enumerate() if t.name == "bco-sink-toy-1"]:
        thread.join(10)
    kept = json.loads((log.folder.root / "sinks" / "toy-1.json").read_text(encoding="utf-8"))
    assert kept["position"] == 0, "what was not flushed counts as told"


EXIT = """
import atexit, sys, time
from pathlib import Path
from tests.test_sinks import Log, Recorder

class Hooked(Recorder):
    def open(self, run):
        atexit.register(self._note, "hook", None)
        return super().open(run)

log = Log(Path(sys.argv[1]))
log.feed(Hooked(str(log.noted)))
log.events.emit("node_started", 0, node="evaluate")
while not Recorder.noted(log.noted, "take"):
    time.sleep(0.01)
log.events.emit("node_ended", 0, node="evaluate", seconds=1.0)
"""


def test_a_process_that_ends_without_closing_its_run_closes_the_sinks_before_their_libraries_go(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", EXIT, str(tmp_path)], cwd=root, check=True, timeout=60)
    lines = [json.loads(line)[0] for line in (tmp_path / "noted.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if line != "flush"] == ["open", "take", "take", "close", "hook"]


def test_a_feed_has_nothing_to_wait_for_where_nothing_happens(log: Log) -> None:
    feed = Feed("toy-1", Recorder(str(log.noted)), log.folder, check_config(BARE), log.events)
    feed.start()
    feed.stop()
    feed.join(10)
    assert Recorder.noted(log.noted, "close") == [[None, []]]


# -- figures -------------------------------------------------------------------------------------------------------


def test_the_brier_score_is_over_all_predictions_that_held_or_did_not() -> None:
    verdicts = {"held": 0.8, "refuted": 0.7, "inert": 0.4, "void": 0.9, "undecided": 0.1}
    told = []
    for number, (verdict, stated) in enumerate(verdicts.items(), 1):
        graded = event("grade", number, verdict=verdict, subset_change=0.5)
        told += [event("prediction", number, confidence=stated), graded]
    assert figures(told[1], seen(told[:2])) == {"held": 1.0, "subset_change": 0.5, "brier": pytest.approx(0.04)}
    whole = figures(told[-1], seen([*told, event("prediction", 9, confidence=0.5)]))
    assert whole == {"subset_change": 0.5, "brier": pytest.approx((0.2**2 + 0.7**2 + 0.4**2) / 3)}
    assert figures(told[5], View())["held"] == 0.0


def test_a_held_out_mean_is_a_figure_of_its_candidates_iteration() -> None:
    held = event("heldout", 2, candidate="iter_002", mean=0.75, coverage=0.5, tasks=4, passed=3, looks=2)
    assert figures(held, View()) == {"heldout/mean": 0.75, "heldout/coverage": 0.5, "heldout/looks": 2.0}
    assert figures({**held, "mean": None, "coverage": 0.0}, View()) == {"heldout/coverage": 0.0, "heldout/looks": 2.0}


def test_what_is_not_known_is_no_figure() -> None:
    role = {"calls": 2, "cache_hits": 1, "prompt_tokens": 30, "completion_tokens": 4, "usd": None, "seconds": 1.0}
    spend = event("spend", totals={"target": role, "proposer": {**role, "usd": 1.0}})
    assert figures(spend, View()) == {"spend/calls": 4.0, "spend/tokens": 68.0}
    failed = event("candidate", candidate=None, mean=None, coverage=0.0, passed=0, best="iter_000")
    view = reduce(reduce(View(), event("candidate", 0, candidate="iter_000", mean=0.25, best="iter_000")), failed)
    assert figures(failed, view) == {"best": 0.25}
    undecided = event("grade", verdict="undecided", subset_change=None)
    assert figures(undecided, View()) == {}
    assert figures(event("node_started", node="grade"), View()) == {}


async def look(config: RunConfig, suite: ToySuite) -> None:
    """What `bco heldout` does: baseline and best on the held-out tasks, in a process of its own."""
    run = open_run(config, suite=suite, proposer=two_edits())
    await heldout(run, ["iter_000", "iter_002"], reason="test")
    run.close()


# -- MLflow --------------------------------------------------------------------------------------------------------


async def test_mlflow_has_the_figures_of_each_iteration_once_the_params_and_the_texts(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Settings of mlflow: a folder as its store, and no report of its use.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    store = (tmp_path / "mlruns").as_uri()
    sink = {"kind": "mlflow", "tracking_uri": store, "experiment": "words"}
    for iterations in (1, 2):
        config = toy_config(tmp_path, server, iterations=iterations, sinks=[sink])
        await drive(config, suite=suite, proposer=two_edits())
    for _ in range(2):
        await look(config, suite)
    assert warnings_of(config) == []
    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("words")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history: dict[str, Any] = {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        for name in ("mean", "best", "coverage", "brier", "spend/calls", "beliefs", "heldout/mean", "heldout/looks")
    }
    assert history["heldout/mean"] == [(0, 0.0), (2, 1.0)]
    assert history["heldout/looks"] == [(0, 1.0), (2, 2.0)]
    assert history["mean"] == history["best"] == list(enumerate(MEANS))
    assert history["coverage"] == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert history["brier"] == [(1, pytest.approx(0.04)), (2, pytest.approx(0.04))]
    assert history["spend/calls"] == [(0, 8.0), (1, 16.0), (2, 24.0)]
    assert history["beliefs"] == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert (run.info.status, run.info.run_name) == ("FINISHED", "toy")
    assert {"method": "bco", "roles.target": "toy", "suite": "toy"}.items() <= run.data.params.items()
    assert not [key for key in run.data.params if key.startswith(("models", "proposer.command", "runs"))]
    kept = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert kept == {"world_model_calibration.md", "best.diff"}
    client.download_artifacts(run.info.run_id, "best.diff", str(tmp_path))
    assert "+Reply with only the word, all letters of it." in (tmp_path / "best.diff").read_text(encoding="utf-8")


# -- Weights & Biases ----------------------------------------------------------------------------------------------


def records_of(path: Path) -> Iterator[Any]:
    """The records of an offline run's file: blocks of 32 KiB with pieces of records, as in LevelDB's log."""
    import struct

    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # made when it is imported

    raw, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(raw):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, piece = struct.unpack("<IHB", raw[at : at + 7])
        whole += raw[at + 7 : at + 7 + size]
        at += 7 + size
        if piece in (1, 4):
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


async def test_wandb_has_the_same_offline_under_one_id(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    sink = {"kind": "wandb", "mode": "offline", "project": "words"}
    for iterations in (1, 2):
        config = toy_config(tmp_path, server, iterations=iterations, sinks=[sink])
        await drive(config, suite=suite, proposer=two_edits())
    await look(config, suite)
    assert warnings_of(config) == []
    files = sorted((config.run_dir / "sinks" / "wandb").glob("offline-run-*/*.wandb"))
    records = [record for file in files for record in records_of(file)]
    runs = [record.run for record in records if record.HasField("run")]
    assert len(files) == 3
    assert {(run.run_id, run.project, run.display_name) for run in runs} == {(runs[0].run_id, "words", "toy")}
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    points = [((row["iteration"], name), row[name]) for row in rows for name in row if not name.startswith("_")]
    points = [point for point in points if point[0][1] != "iteration"]
    told = dict(points)
    assert len(told) == len(points), "a figure was sent twice"
    assert [told[number, "mean"] for number in range(3)] == MEANS
    assert [told[number, "heldout/mean"] for number in (0, 2)] == [0.0, 1.0]
    assert [told[number, "spend/calls"] for number in range(3)] == [8.0, 16.0, 24.0]
    assert told[2, "brier"] == pytest.approx(0.04)
    config_keys = {item.key for run in runs for item in run.config.update}
    assert "roles.target" in config_keys
    assert {path.name for path in files[-1].parent.glob("files/*")} >= {"best.diff", "world_model_calibration.md"}


# -- OpenTelemetry -------------------------------------------------------------------------------------------------


class Collector:
    """An OTLP collector on the loopback: takes spans over HTTP, or refuses them."""

    def __init__(self, status: int = 200) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.requests = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests += 1
                if status == 200:
                    request = ExportTraceServiceRequest.FromString(body)
                    for resource in request.resource_spans:
                        collector.services |= {
                            a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
                        }
                        collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def paths(self) -> list[tuple[str, ...]]:
        """Each span as its names from the outermost in, sorted by start; a parent that never came is named so."""
        by_id = {span.span_id: span for span in self.spans}

        def path(span: Any) -> tuple[str, ...]:
            if not span.parent_span_id:
                return (span.name,)
            parent = by_id.get(span.parent_span_id)
            return (*(path(parent) if parent else ("missing",)), span.name)

        return [path(span) for span in sorted(self.spans, key=lambda span: span.start_time_unix_nano)]

    def told(self, name: str) -> dict[str, Any]:
        """The attributes of the one span of a name, less their prefix."""
        (span,) = [span for span in self.spans if span.name == name]
        return {
            a.key.removeprefix("bco."): getattr(a.value, str(a.value.WhichOneof("value"))) for a in span.attributes
        }  # fmt: skip


NODES = ["propose", "predict", "evaluate", "grade", "update"]


async def test_spans_of_run_iteration_node_and_task_reach_a_collector(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    with Collector() as collector:
        sink = {"kind": "otel", "endpoint": collector.endpoint, "service": "words"}
        config = toy_config(tmp_path, server, sinks=[sink])
        await drive(config, suite=suite, proposer=two_edits())
    assert warnings_of(config) == []
    assert collector.services == {"words"}
    run = "bco run toy"
    nodes = [(run, f"iteration {i}", node) for i in (1, 2) for node in NODES]
    found = collector.paths()
    assert [path for path in found if len(path) == 3] == [
        (run, "iteration 0", "evaluate"), (run, "iteration 0", "update"), *nodes
    ]  # fmt: skip
    assert [path for path in found if len(path) < 3] == [(run,), *((run, f"iteration {i}") for i in range(3))]
    tasks = [path for path in found if len(path) == 4]
    assert sorted(tasks) == sorted(
        (run, f"iteration {i}", "evaluate", f"task toy-train-{n}") for i in range(3) for n in range(8)
    )
    assert len({span.trace_id for span in collector.spans}) == 1
    assert {key: collector.told(run)[key] for key in ("method", "stop", "best", "mean", "baseline")} == {
        "method": "bco", "stop": "iterations", "best": "iter_002", "mean": 1.0, "baseline": 0.0,
    }  # fmt: skip
    second = collector.told("iteration 2")
    assert (second["mean"], second["verdict"], second["confidence"], second["name"]) == (
        1.0,
        "held",
        0.8,
        "all-letters",
    )
    assert second["brier"] == pytest.approx(0.04)
    for span in collector.spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    task = next(span for span in collector.spans if span.name == "task toy-train-0")
    row = next(e for e in logged(config.run_dir) if e["type"] == "task_done" and e["task"] == "toy-train-0")
    assert task.end_time_unix_nano - task.start_time_unix_nano == pytest.approx(row["seconds"] * 1e9, rel=1e-6)


async def test_a_run_that_goes_on_is_the_same_trace_and_a_failed_iteration_is_an_error(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    with Collector() as collector:
        sink = {"kind": "otel", "endpoint": collector.endpoint}
        for iterations in (0, 1):
            config = toy_config(tmp_path, server, iterations=iterations, sinks=[sink])
            await drive(config, suite=suite, proposer=ScriptedProposer({1: prompt_edit("no placeholder\n")}))
    assert len({span.trace_id for span in collector.spans}) == 1
    assert [path for path in collector.paths() if len(path) == 2] == [
        ("bco run toy", "iteration 0"), ("bco run toy", "iteration 1")
    ]  # fmt: skip
    assert [path for path in collector.paths() if len(path) == 1] == [("bco run toy",)] * 2
    (failed,) = [span for span in collector.spans if span.name == "iteration 1"]
    assert (failed.status.code, failed.status.message) == (2, "step propose: refused")
    (step,) = [span for span in collector.spans if span.name == "propose"]
    assert [said.name for said in step.events] == ["step_failed"]


async def test_a_collector_that_takes_nothing_is_asked_once_and_the_run_ends_as_ever(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    with Collector(status=400) as collector:
        sink = {"kind": "otel", "endpoint": collector.endpoint}
        config = toy_config(tmp_path, server, iterations=0, sinks=[sink])
        ended = await drive(config, suite=suite, proposer=two_edits())
    assert ended.stop == "iterations"
    assert collector.requests == 1
    assert warnings_of(config) == ["sink otel: switched off after ConnectionError: the collector took no spans"]


def spans_of(log: Log, exporter: InMemorySpanExporter) -> list[tuple[str, float, float]]:
    """Name, start and end in seconds of what a sink that is opened now sends, in the order of ends."""
    log.feed(ToOtel(SINKS["otel"].model_validate({"kind": "otel"}), exporter=exporter)).close()  # type: ignore[arg-type]
    return [(s.name, (s.start_time or 0) / 1e9, (s.end_time or 0) / 1e9) for s in exporter.get_finished_spans()]


def write(log: Log, *told: Event) -> None:
    with log.folder.events.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(item) + "\n" for item in told)


def began(iteration: int, at: float) -> Event:
    return event("run_started", iteration, at, name="toy", candidates=[])


def test_what_was_under_way_at_a_kill_ends_with_the_last_that_is_known_of_it(log: Log) -> None:
    write(log, began(0, 10.0), event("node_started", 0, 11.0, node="evaluate"))
    write(log, event("evaluation", 0, 12.0, candidate="iter_000", split="train", tasks=1, done=0))
    write(log, began(0, 50.0), event("node_started", 0, 51.0, node="evaluate"))
    write(log, event("node_ended", 0, 52.0, node="evaluate", seconds=1.0))
    assert spans_of(log, InMemorySpanExporter()) == [
        ("evaluate", 11.0, 12.0), ("iteration 0", 11.0, 12.0), ("bco run toy", 10.0, 12.0),
        ("evaluate", 51.0, 52.0), ("iteration 0", 51.0, 52.0), ("bco run toy", 50.0, 52.0),
    ]  # fmt: skip


def test_a_node_that_waited_for_somebody_ends_where_it_begins_again(log: Log) -> None:
    write(log, began(1, 10.0), event("node_started", 1, 11.0, node="propose"))
    write(
        log, event("node_started", 1, 20.0, node="propose"), event("node_ended", 1, 21.0, node="propose", seconds=1.0)
    )
    assert spans_of(log, InMemorySpanExporter())[:2] == [("propose", 11.0, 20.0), ("propose", 20.0, 21.0)]


def test_held_out_tasks_stand_beside_the_iterations(log: Log) -> None:
    held = {"candidate": "iter_001", "split": "heldout"}
    write(log, event("evaluation", 1, 10.0, **held, tasks=1, done=0))
    write(log, event("task_done", 1, 12.0, **held, task="h1", repeat=0, kind="scored", score=1.0, seconds=1.5,
                     tokens=3, usd=None, done=1, tasks=1))  # fmt: skip
    write(log, {"v": 1, "type": "run_failed", "at": 13.0, "iteration": 1, "error": "OSError", "message": "x"})
    facts = {"candidate": "iter_001", "mean": 1.0, "coverage": 1.0, "tasks": 1, "passed": 1, "looks": 2}
    write(log, event("heldout", 1, 14.0, **facts))
    exporter = InMemorySpanExporter()
    assert spans_of(log, exporter) == [
        ("task h1", 10.5, 12.0), ("held-out iter_001", 10.0, 14.0), ("bco run toy", 10.0, 14.0)
    ]  # fmt: skip
    said = exporter.get_finished_spans()[1].attributes or {}
    assert (said["bco.candidate"], said["bco.tasks"], said["bco.passed"]) == ("iter_001", 1, 1)
    assert (said["bco.heldout/mean"], said["bco.heldout/coverage"], said["bco.heldout/looks"]) == (1.0, 1.0, 2.0)
    run = exporter.get_finished_spans()[-1]
    assert (run.status.status_code.name, run.status.description) == ("ERROR", "OSError: x")


# -- the page ------------------------------------------------------------------------------------------------------


def test_the_page_shows_every_setting_of_our_sinks_and_one_that_is_taken() -> None:
    page = (Path(__file__).parents[1] / "docs" / "SINKS.md").read_text(encoding="utf-8")
    shown, theirs = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)]
    config = check_config({**BARE, **shown})
    assert {entry["kind"]: set(entry) for entry in shown["sinks"]} == {
        kind: set(section.model_fields) for kind, section in SINKS.items()
    }
    assert config.sinks[2].model_dump()["endpoint"] == "http://localhost:4318/v1/traces"
    with pytest.raises(ConfigError, match="unknown kind of sink 'pager'"):
        check_config({**BARE, **theirs})
