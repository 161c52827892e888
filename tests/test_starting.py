"""`bco init --langgraph`: an app's folder in, a config that loads out; the graph is built in the sandbox first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from click.testing import CliRunner, Result

from bco_graph.benchmarks.jsonl import Match
from bco_graph.cli import main
from bco_graph.config import RunConfig, load_config
from bco_graph.proposers import KINDS
from bco_graph.protocols import Score
from bco_graph.starting import propose_mapping
from bco_graph.suites import load_suite

AGENT = """
from langgraph.graph import START, MessagesState, StateGraph

def build(model):
    graph = StateGraph(MessagesState)
    graph.add_node("say", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "say")
    return graph
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def init(*args: str) -> Result:
    return CliRunner().invoke(main, ["init", *args])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_app_of_messages_gets_a_config_that_loads_and_example_tasks(here: Path) -> None:
    write(here / "my_app/app.py", AGENT)
    done = init("bco.yaml", "--langgraph", "my_app/app.py:build")
    assert done.exit_code == 0, done.output
    for said in ("wrote bco.yaml", "wrote tasks/train.jsonl", "1. look at entry.input", "bco doctor bco.yaml"):
        assert said in done.output
    config = load_config(Path("bco.yaml"))
    assert (config.name, config.suite, config.suite_options["scaffold"]) == ("my_app-bco", "jsonl", "my_app")
    suite = load_suite(config)
    assert (suite.interface.entry, suite.interface.kind) == ("app.py:build", "graph")
    assert suite.interface.settings == {
        "input": {"messages": [{"role": "user", "content": "{question}"}]}, "output": "messages.-1.content",
    }  # fmt: skip
    assert suite.tasks("train")[0].inputs == {"question": "What is 6 times 7?"}
    assert suite.grade(suite.tasks("train")[0], "42") == Score(1.0)


def test_tasks_that_are_there_stay_and_give_the_mapping_its_names(here: Path) -> None:
    state = "from typing import TypedDict\nclass State(TypedDict, total=False):\n    topic: str\n    tone: str\n"
    app = state + AGENT.replace("MessagesState)", "State)").replace('"messages"', '"topic"') + "    "
    write(here / "code/src/graph.py", app)
    line = json.dumps({"id": "a", "inputs": {"tone": "dry", "topic": "rain"}, "gold": "x"}) + "\n"
    train = write(here / "tasks/train.jsonl", line)
    done = init("--langgraph", "src/graph.py:build", "--folder", "code", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert facts["wrote"] == ["bco.yaml", "tasks/heldout.jsonl"]
    assert facts["entry"]["path"] == "src/graph.py:build"
    assert facts["entry"]["input"] == {"topic": "{topic}", "tone": "{tone}"}
    assert train.read_text(encoding="utf-8") == line
    assert load_suite(load_config(Path("bco.yaml"))).interface.settings["input"] == facts["entry"]["input"]
    assert "# The graph's input has the keys: topic, tone." in Path("bco.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (AGENT.replace("def build(model)", "def build()"), "does not take one positional argument"),
        (AGENT.replace("    return graph", "    return graph.compile().get_graph()"), "returned a value of type Graph"),
        (AGENT + "graph = build(None)\nbuild = graph\n", "is a graph that the import built around a model of its own"),
        ("import langchain_nothing\n" + AGENT, "No module named 'langchain_nothing'"),
    ],
)
def test_an_app_that_cannot_be_run_is_refused_with_the_reason_and_nothing_written(
    here: Path, app: str, said: str
) -> None:
    write(here / "my_app/app.py", app)
    done = init("--langgraph", "my_app/app.py:build")
    assert done.exit_code == 2
    assert said in done.output.replace("\n", " ")
    assert [path.name for path in here.iterdir()] == ["my_app"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--langgraph", "my_app/app.py"], "expected FILE.py:ATTR"),
        (["--langgraph", "my_app/none.py:build"], "is no file"),
        (["--langgraph", "my_app/app.py:build", "--suite", "quickstart"], "exclude each other"),
        (["--langgraph", "../app.py:build", "--folder", "my_app/inner"], "lies outside of --folder"),
        (["my_app/bco.yaml", "--langgraph", "my_app/app.py:build"], "with the tasks and their answers"),
        (["my_app/bco.yaml", "--folder", "my_app"], "with the tasks and their answers"),
        (["--langgraph", "app.py:build", "--folder", "."], "is no file"),
        (["old.yaml", "--langgraph", "my_app/app.py:build"], "old.yaml is there already"),
    ],
)
def test_a_wrong_place_is_refused_by_name(here: Path, args: list[str], said: str) -> None:
    write(here / "my_app/app.py", AGENT)
    write(here / "my_app/agent.py", "async def solve(task, target): ...")
    write(here / "my_app/inner/x.py", "")
    write(here / "old.yaml", "mine\n")
    done = init(*args)
    assert done.exit_code == 2
    assert said in done.output


def found(takes: list[str], gives: list[str]) -> dict[str, Any]:
    return {"input": {"properties": dict.fromkeys(takes)}, "output": {"properties": dict.fromkeys(gives)}}


@pytest.mark.parametrize(
    ("takes", "gives", "inputs", "given", "output"),
    [
        (["kind", "question"], ["kind", "answer"], [], {"question": "{question}"}, "answer"),
        (["x", "y"], ["x", "z"], [], {"x": "{question}"}, "z"),
        (["messages"], ["messages", "summary"], ["q"], {"messages": [{"role": "user", "content": "{q}"}]}, "summary"),
        (["messages", "q"], ["messages"], ["q"], {"q": "{q}"}, "messages.-1.content"),
        ([], [], [], {"question": "{question}"}, "answer"),
    ],
)
def test_a_mapping_is_guessed_from_names(
    takes: list[str], gives: list[str], inputs: list[str], given: Any, output: str
) -> None:
    assert propose_mapping(found(takes, gives), inputs) == {"input": given, "output": output}


# -- what the comments of a template say -------------------------------------------------------------------------------

TEMPLATES = [
    ["--suite", "quickstart"], ["--folder", "agent"], ["--langgraph", "my_app/app.py:build"],
    ["--suite", "quickstart", "--method", "vanilla"], ["--folder", "agent", "--method", "notes"],
]  # fmt: skip


@pytest.fixture
def template(here: Path, request: pytest.FixtureRequest) -> str:
    """A config as `bco init` writes it, beside what it names."""
    write(here / "agent/agent.py", "async def solve(task, target): ...")
    write(here / "my_app/app.py", AGENT)
    for split in ("train", "heldout"):
        write(here / f"tasks/{split}.jsonl", json.dumps({"id": split, "inputs": {"q": "x"}, "gold": "y"}) + "\n")
    done = init("bco.yaml", *request.param)
    assert done.exit_code == 0, done.output
    return Path("bco.yaml").read_text(encoding="utf-8")


def commented(text: str) -> Iterator[tuple[str, str]]:
    """(dotted key, comment) of each line of a mapping that has one."""
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        found = re.fullmatch(r"( *)([a-z_]+):(?: [^#]*?)?(?:\s+# (.*))?", line)
        if not found:
            continue
        depth = len(found[1])
        above = [*(pair for pair in above if pair[0] < depth), (depth, found[2])]
        if found[3]:
            yield ".".join(name for _, name in above), found[3]


def accepted(key: str) -> set[str]:
    """All words that a key of the config takes; none where it takes more than words of a list."""
    if key == "suite_options.match":
        return set(get_args(Match))
    if key == "proposer.kind":
        return set(KINDS)
    model: Any = RunConfig
    for name in key.split("."):
        fields = getattr(model, "model_fields", {})
        if name not in fields:
            return set()
        model = fields[name].annotation
    return set(get_args(model)) if get_origin(model) is Literal else set()


@pytest.mark.parametrize("template", TEMPLATES, indirect=True)
def test_the_comments_of_a_template_name_all_that_a_key_takes_and_nothing_else(template: str) -> None:
    said = dict(commented(template))
    listed = {key: set(note.partition(" (")[0].split(" | ")) for key, note in said.items() if " | " in note}
    assert {"method", "proposer.kind", "evaluation.sandbox", "grading"} <= listed.keys()
    assert ("suite_options.match" in listed) == ("suite: jsonl" in template)
    assert listed == {key: accepted(key) for key in listed}
    assert {key for key in said if accepted(key)} == listed.keys(), "a key whose words are not listed"
    for key, words in listed.items():
        for word in words:
            load_suite(load_config(Path("bco.yaml"), overrides={key: word}))


@pytest.mark.parametrize("template", TEMPLATES, indirect=True)
def test_a_key_that_a_template_has_commented_out_is_taken(template: str) -> None:
    opened = re.sub(r"(?m)^( +)# ([a-z_]+: )", r"\1\2", template)
    assert opened != template
    Path("bco.yaml").write_text(opened, encoding="utf-8")
    budget = load_config(Path("bco.yaml")).budget
    assert (budget.usd, budget.wall_s) == (20, 14400)
