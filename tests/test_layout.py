"""How the house is built: symlinked rooms, imports that go downhill, an import that costs little."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bco_graph"

LAYERS = [
    {"apart", "errors", "sections", "state", "probability", "signature", "scratch", "strict_json"},
    {
        "prose",
        "submissions",
        "protocols",
        "events",
        "config",
        "model_sections",
        "sink_sections",
        "receipts",
        "recorded",
        "run_folder",
        "scaffold_tree",
        "prompts",
    },
    {"testing", "redaction", "selection", "world_model", "prediction", "ledger", "candidates"},
    {"task_tables", "paper_prediction", "gateway", "benchmarks"},
    {"calibration", "evidence", "suites", "proposers", "evaluation"},
    {"sinks", "distill", "records", "baseline", "document", "reserve", "tampering"},
    {"runtime", "manifest"},
    {"preflight"},
    {"opening"},
    {"steps", "report", "binding", "places", "outside", "own_nodes", "asking", "believing"},
    {"nodes", "studies", "terminal", "export"},
    {"graph", "starting", "estimate", "doctor"},
    {"driver", "fork", "server"},
    {"console"},
    {"demo"},
    {"cli"},
]
"""Rooms from the ground up; a room imports from its own layer and from those below."""

LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def rooms() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.iterdir()):
        if path.suffix == ".py" and path.name != "__init__.py":
            found[path.stem] = [path]
        elif path.is_dir() and (path / "__init__.py").exists():
            found[path.name] = sorted(path.rglob("*.py"))
    return found


def imported(path: Path) -> set[str]:
    """Rooms of this package that a file imports, inside functions too, but not for types only."""
    names = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "bco_graph":
                names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("bco_graph.")}
    return names - {"__version__"}


def test_every_room_has_its_place() -> None:
    assert sorted(rooms()) == sorted(LEVEL)


@pytest.mark.parametrize("room", sorted(LEVEL))
def test_imports_go_downhill(room: str) -> None:
    uphill = {
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in rooms()[room]
        for other in imported(path)
        if LEVEL[other] > LEVEL[room]
    }
    assert uphill == set()


def test_reports_read_run_folders_and_never_a_live_run() -> None:
    live = {"runtime", "opening", "binding", "graph", "nodes", "gateway", "proposers", "driver", "steps"}
    assert {other for path in rooms()["report"] for other in imported(path)} & live == set()


@pytest.mark.parametrize("library", ["litellm", "llama_cpp"])
def test_only_the_gateway_knows_the_model_libraries(library: str) -> None:
    users = {
        room
        for room, paths in rooms().items()
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(a.name.split(".")[0] == library for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == library)
    }
    assert users <= {"gateway"}


@pytest.mark.parametrize("room", ["nodes", "prompts", "benchmarks", "examples"])
def test_the_rooms_at_the_root_are_part_of_the_package(room: str) -> None:
    """A checkout without symlinks holds text files in their place, and would build a broken wheel."""
    assert (PACKAGE / room).is_dir()
    assert (PACKAGE / room).resolve() == ROOT / room


@pytest.mark.parametrize("room", ["nodes", "prompts", "benchmarks"])
def test_a_symlinked_room_is_importable(room: str) -> None:
    assert (PACKAGE / room / "__init__.py").is_file()


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, bco_graph, bco_graph.cli;"
        "heavy = ('langgraph', 'litellm', 'langchain_core', 'pydantic', 'rich', 'aiohttp');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_the_surface() -> None:
    import bco_graph

    assert sorted(bco_graph.__all__) == dir(bco_graph)
    for name in bco_graph.__all__:
        assert getattr(bco_graph, name) is not None
    with pytest.raises(AttributeError):
        _ = bco_graph.nothing


def test_a_wheel_holds_every_room_once(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    wanted = [
        "nodes/propose.py", "prompts/skill_bco.md", "benchmarks/quickstart/surface.md", "evaluation/worker.py",
        "benchmarks/quickstart/scaffold/prompt.md", "examples/quickstart/bco.yaml", "py.typed",
        "examples/quickstart/recorded/bco/cache.sqlite", "examples/quickstart/recorded/bco/iter_001/source/agent.py",
    ]  # fmt: skip
    assert [name for name in wanted if f"bco_graph/{name}" not in names] == []
    assert {name.split("/")[0] for name in names} == {"bco_graph", "bco_graph-0.1.0.dist-info"}
    assert len(names) == len(set(names))
