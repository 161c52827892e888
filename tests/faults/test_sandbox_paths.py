"""Files of the person's machine: the grader's, those a link leads to, and text in whatever locale there is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bco_graph.run_folder import write_text
from tests.faults.play import BARE, FIRST, MARKED, Act, When, bco, models, submit, write, write_config
from tests.faults.tasks import ASKS, task, write_tasks, write_tasks_config
from tests.toy import PROPOSE, SHORT, ToySuite

LOCALES = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
STRICT = """
import sys, warnings
warnings.filterwarnings("error", category=EncodingWarning, module="bco_graph")
from bco_graph.cli import main
main(sys.argv[1:])
"""


def test_a_candidate_that_rewrites_the_gold_stops_the_run_and_gets_no_score(tmp_path: Path) -> None:
    """Where no sandbox keeps it from the files, their digests before and after an evaluation do."""
    gold = tmp_path / "train.jsonl"
    write_tasks(tmp_path, [task(word, word) for word in ("fig", "oak")])
    untouched = gold.read_bytes()
    tampers = ASKS.replace("    return", f"    open({str(gold)!r}, 'a').write(' ')\n    return")
    acts: dict[When, list[Act]] = {(1, "propose"): [[write("agent.py", tampers), *submit(BARE)]]}
    with models(acts, lambda body: "fig") as server:
        write_tasks_config(tmp_path, server, iterations=1, evaluation={"sandbox": "off"})
        said = bco(tmp_path, "run", "bco.yaml", "--no-preflight", code=1)
        assert "Tampered" in said.text
        assert "train.jsonl" in said.text.replace(" ", "")
        status = bco(tmp_path, "status", "runs/toy", "--json").json
        assert (status["state"], status["best"]["id"]) == ("failed", "iter_000")
        assert status["proposals"]["evaluated"] == 0
        assert "suite" in bco(tmp_path, "resume", "runs/toy", code=1).text
        gold.write_bytes(untouched)
        assert "Tampered" in bco(tmp_path, "resume", "runs/toy", code=1).text


def test_a_scaffold_with_links_pipes_and_repositories_is_refused_in_one_message(tmp_path: Path) -> None:
    """No crash on a dangling link or a loop, and nothing that a link leads to is copied anywhere."""
    outside = tmp_path / "outside.txt"
    outside.write_text("not of the scaffold", encoding="utf-8")
    scaffold = ToySuite(tmp_path / "initial").initial_scaffold()
    (scaffold / "dangling").symlink_to("nowhere")
    (scaffold / "loop").symlink_to("loop")
    (scaffold / "away").symlink_to(outside)
    os.mkfifo(scaffold / "pipe")
    (scaffold / ".git").mkdir()
    (scaffold / ".git/config").write_text("[core]\n", encoding="utf-8")
    with models() as server:
        write_config(tmp_path, server, iterations=0)
        said = bco(tmp_path, "run", "bco.yaml", "--no-preflight", code=1)
        assert server.requests == []
        for name in ("dangling", "loop", "away", "pipe", ".git"):
            assert name in said.text
        copies = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
        assert not any(b"not of the scaffold" in path.read_bytes() for path in copies)


def test_caches_beside_a_scaffold_are_left_out_of_every_candidate(tmp_path: Path) -> None:
    scaffold = ToySuite(tmp_path / "initial").initial_scaffold()
    for name in ("__pycache__/agent.pyc", ".pytest_cache/x", ".DS_Store"):
        (scaffold / name).parent.mkdir(exist_ok=True)
        (scaffold / name).write_text("stale", encoding="utf-8")
    with models() as server:
        write_config(tmp_path, server, iterations=0)
        bco(tmp_path, "run", "bco.yaml", "--no-preflight")
    source = tmp_path / "runs/toy/iterations/iter_000/source"
    assert sorted(path.name for path in source.rglob("*")) == ["agent.py", "prompt.md"]


def test_the_locale_has_no_effect_on_what_is_read_and_written(tmp_path: Path) -> None:
    """The same bytes under C as under UTF-8, and no text file is opened without naming its encoding."""
    claim = "Das Modell sagt zu viel \u2014 \u00e9\u00e8 \u4f60\u597d \U0001d11e."
    edit = [write("prompt.md", SHORT), write("agent.py", MARKED + "# \u00fc\n"), *submit(PROPOSE)]
    acts: dict[When, list[Act]] = {(0, "first"): [submit({"ops": [{**FIRST, "claim": claim}]})], (1, "propose"): [edit]}
    ToySuite(tmp_path / "initial")
    documents = []
    for name, extra in (("plain", {}), ("utf8", LOCALES)):
        with models(acts) as server:
            write_config(tmp_path, server, method="bco", name=name)
            done = subprocess.run(
                [sys.executable, "-X", "warn_default_encoding", "-c", STRICT, "run", "bco.yaml", "--no-preflight"],
                cwd=tmp_path, env={**os.environ, **extra}, capture_output=True, check=False,
            )  # fmt: skip
        assert done.returncode == 0, done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
        documents.append((tmp_path / "runs" / name / "world_model_calibration.md").read_bytes())
    assert claim.encode() in documents[0]
    assert documents[0] == documents[1]


def test_a_file_is_replaced_while_a_reader_holds_it_and_stays_whole_when_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "folder/world_model.md"
    write_text(path, "old\n")
    with path.open(encoding="utf-8") as reader:
        write_text(path, "new\n")
        assert reader.read() == "old\n"
    assert path.read_text(encoding="utf-8") == "new\n"
    taken = tmp_path / "folder/taken"
    taken.mkdir()
    with pytest.raises(OSError, match="taken"):
        write_text(taken, "text\n")
    assert sorted(item.name for item in path.parent.iterdir()) == ["taken", "world_model.md"]
