"""What must not get through: task text into a candidate, a key into a file, another data set into a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bco_graph.testing import Reply
from tests.faults.play import BARE, PROPOSER, TARGET, Act, When, bco, bco_process, models, play, submit, told, write
from tests.faults.tasks import ASKS, task, write_tasks, write_tasks_config
from tests.toy import SHORT

SENTENCE = "the ferryman counted eleven copper lanterns along the frozen canal before the bells of midnight rang"
COMMON = "Answer the question with one word and nothing else; think step by step before you answer."


def test_task_text_and_ids_in_an_edit_are_found_before_a_call_with_file_and_line(tmp_path: Path) -> None:
    """A sentence of a task, word for word, and the id of one; common wording of every prompt is none of them."""
    texts = [f"{COMMON} {text}" for text in (SENTENCE, "Who rang them?", "Where was the canal?")]
    write_tasks(tmp_path, [task(f"lantern-{n}", f"gold-{n}", text=text) for n, text in enumerate(texts)])
    leaks = ASKS + f'\n\n# hint\nHINT = "{SENTENCE}"\n'
    names = ASKS + "\n\nif False:\n    SPECIAL = 'lantern-2'\n"
    fine = ASKS.replace('"say "', f'"{COMMON} "')
    acts: dict[When, list[Act]] = {
        (1, "propose"): [[write("agent.py", leaks), *submit(BARE)], [write("agent.py", names), *submit(BARE)],
                         [write("agent.py", fine), *submit(BARE)]],
    }  # fmt: skip
    with models(acts, lambda body: "ok") as server:
        write_tasks_config(tmp_path, server, iterations=1)
        bco(tmp_path, "run", "bco.yaml", "--no-preflight")
        said = [told(request.body) for request in server.requests_of(PROPOSER)]
        assert len(server.requests_of(TARGET)) == 6
    assert "agent.py, line 6" in said[1]
    assert SENTENCE not in said[1].split("refused", 1)[1]
    assert "agent.py, line 6: holds a task id" in said[2]
    assert (tmp_path / "runs/toy/iterations/iter_001/source/agent.py").read_text(encoding="utf-8") == fine


KEY = "sk-marker-7f3a9c2e1b5d8046"


def test_a_key_is_in_no_file_no_output_and_no_prompt_whoever_echoes_it(tmp_path: Path) -> None:
    """The endpoint sends it back in its errors and its answers; a candidate prints its whole environment."""
    prints = ASKS.replace("    return", "    import os\n    print(dict(os.environ))\n    return")
    write_tasks(tmp_path, [task("fig", "fig"), task("oak", "oak"), task("elm", "elm")], agent=prints)

    def echo(body: dict[str, Any]) -> Reply:
        word = str(body["messages"][-1]["content"]).removeprefix("say ")
        faults = {"fig": Reply(f"wrong key {KEY}", status=500), "oak": Reply(f"your key is {KEY}")}
        return faults.get(word, Reply("elm"))

    acts: dict[When, list[Act]] = {(1, "propose"): ["No."]}
    with models(acts, echo) as server:
        params = {"model": f"openai/{TARGET}", "api_base": server.base_url, "api_key": "os.environ/MARKER_KEY"}
        proposer = {**server.deployment(PROPOSER), "model_name": "proposer"}
        write_tasks_config(
            tmp_path, server, iterations=1, max_failures=1,
            models={"model_list": [{"model_name": "toy", "litellm_params": params}, proposer]},
        )  # fmt: skip
        said = bco_process(tmp_path, "run", "bco.yaml", "--no-preflight", code=1, MARKER_KEY=KEY)
        sent = [request for request in server.requests if KEY in request.headers.get("Authorization", "")]
        prompts = json.dumps([request.body for request in server.requests])
    assert len(sent) == 3
    assert KEY not in said.out + said.err
    assert KEY not in prompts
    assert [
        path for path in (tmp_path / "runs").rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()
    ] == []


def test_a_run_is_not_continued_on_other_tasks_and_the_message_names_them(tmp_path: Path) -> None:
    """Shuffled and extended: another split than the one it was made with."""
    write_tasks(tmp_path, [task(word, word) for word in ("fig", "oak", "elm")])
    with models(target=lambda body: "ok") as server:
        write_tasks_config(tmp_path, server)
        bco(tmp_path, "run", "bco.yaml", "--no-preflight")
        asked = len(server.requests)
        write_tasks(tmp_path, [task(word, word) for word in ("elm", "ash", "fig")])
        said = bco(tmp_path, "resume", "runs/toy", "--iterations", "1", code=1)
        assert len(server.requests) == asked
    assert "train tasks added: 'ash'; removed: 'oak'" in said.text


def test_a_run_without_a_held_out_look_claims_a_fit_and_nothing_more(tmp_path: Path) -> None:
    with models({(1, "propose"): [[write("prompt.md", SHORT), *submit(BARE)]]}) as server:
        play(tmp_path, server)
        before = bco(tmp_path, "status", "runs/toy")
        facts = bco(tmp_path, "status", "runs/toy", "--json").json
        bco(tmp_path, "heldout", "runs/toy")
        after = bco(tmp_path, "status", "runs/toy", "--json").json
    assert (facts["claim"], facts["best"]["heldout"], facts["change"]["heldout"]) == ("fit score", None, None)
    assert "fit score: nothing is said about tasks that the search did not see" in before.text
    assert (after["claim"], after["best"]["heldout"]["mean"], after["heldout_looks"]) == ("heldout", 0.5, 2)
