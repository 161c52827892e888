"""What leaves a run folder: a scaffold to the byte, and a recording that a replay takes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bco_graph.config import check_config
from bco_graph.driver import drive
from bco_graph.errors import ConfigError
from bco_graph.export import export_recording, export_scaffold
from bco_graph.gateway.cache import ResponseCache
from bco_graph.proposers.replay import ReplayProposer
from bco_graph.protocols import Step
from bco_graph.run_folder import RunFolder
from bco_graph.submissions import ProposeWithBeliefs
from bco_graph.testing import ScriptedModelServer
from tests.test_report import PROMPT, MadeRun, bco_run
from tests.toy import SHORT, ScriptedProposer, ToySuite, answer, prompt_edit, toy_config

ODD = {
    "prompt.md": b"\xef\xbb\xbfThe word is: {word}\r\nno newline",
    "data.bin": bytes(range(256)),
    ".gitattributes": b"* text=auto eol=lf\n",
    "sub/ü.txt": b"$Id$\n",
}


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def two_candidates(root: Path) -> RunFolder:
    run = MadeRun(root, method="vanilla")
    run.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    run.propose(1, "odd-bytes", ODD)
    run.evaluate(1, [1.0, 1.0, 0.0, 1.0])
    run.propose(2, "worse", {"prompt.md": PROMPT + "worse"}, parent=1)
    run.evaluate(2, [0.0, 0.0, 0.0, 1.0], parent=1)
    return run.close()


# -- a scaffold ----------------------------------------------------------------------------------------------------


def test_the_best_scaffold_comes_out_to_the_byte_with_its_mean_beside_the_baselines(tmp_path: Path) -> None:
    folder = two_candidates(tmp_path / "run")
    facts = export_scaffold(folder, None, tmp_path / "new" / "best")
    assert files(tmp_path / "new" / "best") == ODD
    assert (facts["candidate"], facts["files"], facts["mean"], facts["baseline"]) == ("iter_001", 4, 0.75, 0.5)
    again = MadeRun(tmp_path / "other")
    assert again.store.stage(tmp_path / "new" / "best") == facts["tree"]
    again.close()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["best"]


def test_a_candidate_that_is_named_comes_out_instead(tmp_path: Path) -> None:
    export_scaffold(two_candidates(tmp_path / "run"), "iter_002", tmp_path / "out")
    assert files(tmp_path / "out") == {"prompt.md": (PROMPT + "worse").encode()}


def test_an_unknown_candidate_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'iter_001'"):
        export_scaffold(two_candidates(tmp_path / "run"), "iter_01", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_that_can_rank_nothing_has_no_best_to_export(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", method="vanilla")
    run.evaluate(0, [0.0, 1.0, "infra_error", "infra_error"])
    with pytest.raises(ConfigError, match="no best candidate"):
        export_scaffold(run.close(), None, tmp_path / "out")


def test_a_folder_with_something_in_it_is_replaced_only_when_that_is_asked(tmp_path: Path) -> None:
    folder = two_candidates(tmp_path / "run")
    (tmp_path / "out").mkdir()
    export_scaffold(folder, None, tmp_path / "out")
    (tmp_path / "out" / "mine.txt").write_text("kept", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"not empty.*--overwrite"):
        export_scaffold(folder, "iter_000", tmp_path / "out")
    assert files(tmp_path / "out") == {**ODD, "mine.txt": b"kept"}
    export_scaffold(folder, "iter_000", tmp_path / "out", overwrite=True)
    assert files(tmp_path / "out") == {"prompt.md": PROMPT.encode()}


@pytest.mark.parametrize("where", ["run/workspace/out", "run", "."])
def test_the_run_folder_is_neither_written_into_nor_replaced(tmp_path: Path, where: str) -> None:
    folder = two_candidates(tmp_path / "run")
    with pytest.raises(ConfigError, match="run folder"):
        export_scaffold(folder, None, tmp_path / where, overwrite=True)
    assert folder.exists()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="is a file"):
        export_scaffold(two_candidates(tmp_path / "run"), None, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out").read_text(encoding="utf-8") == "mine"


# -- a recording ---------------------------------------------------------------------------------------------------


def test_a_recording_holds_every_accepted_step_and_the_source_it_left(tmp_path: Path) -> None:
    run = bco_run(tmp_path / "run")
    run.propose(3, "predicted-badly", {"prompt.md": PROMPT + "later"})
    run.fail(3, "predict", "turns", "all 60 turns are used up")
    facts = export_recording(run.close(), tmp_path / "rec")
    names = sorted(path.relative_to(tmp_path / "rec").as_posix() for path in (tmp_path / "rec").glob("iter_*/*.json"))
    assert names == [
        "iter_000/update.json", "iter_001/predict.json", "iter_001/propose.json", "iter_001/update.json",
        "iter_002/update.json", "iter_003/propose.json",
    ]  # fmt: skip
    assert facts["steps"] == 6
    assert files(tmp_path / "rec" / "iter_003" / "source") == {"prompt.md": (PROMPT + "later").encode()}
    assert facts["bytes"] == sum(len(content) for content in files(tmp_path / "rec").values())


async def test_the_replay_proposer_takes_the_recording_and_lays_the_same_source(tmp_path: Path) -> None:
    export_recording(bco_run(tmp_path / "run").close(), tmp_path / "rec")
    workspace = tmp_path / "workspace"
    (workspace / "scaffold").mkdir(parents=True)

    def accept(submission: object) -> str:
        assert isinstance(submission, ProposeWithBeliefs)
        return submission.name

    step = Step("propose", 1, "bco", workspace, "", ProposeWithBeliefs, accept)
    result = await ReplayProposer(tmp_path / "rec").perform(step)
    assert result.value == "only-the-word"
    assert files(workspace / "scaffold")["notes/new.txt"] == b"a\nb\n"


async def test_a_recorded_run_is_played_again_without_a_model_and_comes_to_the_same(tmp_path: Path) -> None:
    edits = ScriptedProposer({1: prompt_edit(SHORT, "asked-alone")})
    suite = ToySuite(tmp_path / "initial")
    with ScriptedModelServer({"toy-model": answer}) as server:
        config = toy_config(tmp_path / "live", server, iterations=1)
        live = await drive(config, suite=suite, proposer=edits)
    export_recording(RunFolder(config.run_dir), tmp_path / "rec")
    proposer = {"kind": "replay", "recording": str(tmp_path / "rec")}
    again = check_config({**config.model_dump(), "runs": str(tmp_path / "again"), "proposer": proposer})
    replayed = await drive(again, suite=suite, extra_cache=tmp_path / "rec" / "cache.sqlite", offline=True)
    assert live.candidates == replayed.candidates
    assert [item["mean"] for item in replayed.candidates] == [0.0, 0.5]
    assert live.state["world_model"] == replayed.state["world_model"]


def test_responses_are_those_that_a_replay_asks_for_and_only_answers(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    run.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    run.call("target", usd=0.1, key="b", response='{"x":"first"}')
    run.call("target", usd=0.0, key="b", response='{"x":"later"}', cached=True)
    run.call("judge", usd=0.1, key="a", response='{"x":"judged"}')
    run.call("proposer", usd=0.1, key="c", response='{"x":"proposed"}')
    run.call("target", usd=0.1, key="d", response="the server is down", status="UpstreamUnavailable")
    facts = export_recording(run.close(), tmp_path / "rec")
    assert facts["responses"] == 2
    cache = ResponseCache(tmp_path / "own.sqlite", extra=tmp_path / "rec" / "cache.sqlite")
    assert [cache.get(key) for key in "abcd"] == ['{"x":"judged"}', '{"x":"first"}', None, None]
    cache.close()
    db = sqlite3.connect(tmp_path / "rec" / "cache.sqlite")
    assert [row[0] for row in db.execute("select key from cache order by rowid")] == ["a", "b"]
    assert db.execute("pragma journal_mode").fetchone() == ("delete",)
    db.close()


def test_the_same_receipts_give_the_same_recording(tmp_path: Path) -> None:
    folder = bco_run(tmp_path / "run").close()
    export_recording(folder, tmp_path / "one")
    export_recording(folder, tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert "cache.sqlite" in files(tmp_path / "one")


def test_results_of_a_reused_baseline_are_counted_as_not_replayable(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    run.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    run.call("target", usd=0.1)
    assert export_recording(run.close(), tmp_path / "rec")["without_responses"] == 3


def test_a_recording_replaces_nothing(tmp_path: Path) -> None:
    folder = bco_run(tmp_path / "run").close()
    export_recording(folder, tmp_path / "rec")
    before = files(tmp_path / "rec")
    with pytest.raises(ConfigError, match="not empty"):
        export_recording(folder, tmp_path / "rec")
    assert files(tmp_path / "rec") == before
