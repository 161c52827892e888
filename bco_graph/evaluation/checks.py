"""What a candidate must pass before it costs a model call; each reason names the file and the invariant."""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from bco_graph import scaffold_tree
from bco_graph.config import Evaluation, nearest
from bco_graph.evaluation.leaks import LeakPatterns
from bco_graph.evaluation.local import LocalExecutor
from bco_graph.protocols import Interface

_TARGET_CALLS = frozenset({"chat", "complete"})
_PARAMETERS = {"solve": ("task", "target"), "graph": ("model",)}
_NUMBERS = {1: "one positional argument", 2: "two positional arguments"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class ImportProbe(Protocol):
    """Imports a scaffold as a run would; `LocalExecutor` is one."""

    def import_problems(self, source: Path, interface: Interface) -> list[str]: ...


def check_candidate(
    source: Path, interface: Interface, leaks: LeakPatterns, executor: ImportProbe | None = None
) -> list[str]:
    """Why a scaffold may not be evaluated, as sentences to send back; empty when it may be.

    The import, which runs the candidate's code, is tried only when all else holds; it takes about 0.2 s, in the
    executor's sandbox (None: the strongest there is). It builds a graph too, which takes 1 to 2 s with LangGraph's
    own import.
    """
    if problems := scaffold_tree.scan_tree(source):
        return problems
    present = scaffold_tree.files(source)
    reasons = [
        *_placeholder_problems(source, present, interface),
        *_entry_problems(source, present, interface),
        *leaks.scan(source),
    ]
    return reasons or (executor or _default_probe()).import_problems(source, interface)


@functools.cache
def _default_probe() -> ImportProbe:
    return LocalExecutor(Evaluation(), socket_path=Path("/nonexistent"))


def _placeholder_problems(source: Path, present: list[str], interface: Interface) -> Iterator[str]:
    for path, fields in interface.placeholders.items():
        if path not in present:
            names = " and ".join(repr(field) for field in fields)
            yield f"{path}: is missing{nearest(path, present)}; the interface declares it, with {names} in it"
            continue
        text = scaffold_tree.read_file(source, path).decode("utf-8", errors="replace")
        for field in fields:
            if field not in text:
                yield f"{path}: lacks the placeholder {field!r}, which the interface declares"


def _entry_problems(source: Path, present: list[str], interface: Interface) -> Iterator[str]:
    file, _, name = interface.entry.partition(":")
    if file not in present:
        yield f"{file}: is missing{nearest(file, present)}; the interface declares the entry point {interface.entry!r}"
        return
    try:
        tree = _parse(source, file)
    except SyntaxError as error:
        yield f"{file}, line {error.lineno}: does not compile: {error.msg}"
        return
    except (ValueError, RecursionError, MemoryError) as error:
        yield f"{file}: does not compile: {error or type(error).__name__}"
        return
    yield from _signature_problems(file, name, tree, _PARAMETERS[interface.kind])
    if interface.must_call_target and interface.kind == "graph":
        yield from _unused_model_problems(file, name, tree)
    elif interface.must_call_target and not any(
        _calls_target(source, path) for path in present if path.endswith(".py")
    ):
        yield f"{file}: no code calls target.chat or target.complete; the interface requires that the target is asked"


def _parse(source: Path, file: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # An odd escape in a candidate's text is its own affair.
        return ast.parse(scaffold_tree.read_file(source, file), filename=file)


def _unused_model_problems(file: str, name: str, tree: ast.Module) -> Iterator[str]:
    """A factory that never reads the model that it is given builds a graph that cannot ask the target."""
    found = [node for node in _top_level(tree) if isinstance(node, Function) and node.name == name]
    given = [*found[-1].args.posonlyargs, *found[-1].args.args][:1] if found else []
    for argument in given:
        if not any(isinstance(node, ast.Name) and node.id == argument.arg for node in ast.walk(found[-1])):
            yield (
                f"{file}, line {found[-1].lineno}: {name} never uses {argument.arg!r}; the interface requires that the "
                "target is asked"
            )


def _signature_problems(file: str, name: str, tree: ast.Module, parameters: Sequence[str]) -> Iterator[str]:
    """Of the last definition by `def`; a name that is bound in another way is judged by the import alone."""
    functions = [node for node in _top_level(tree) if isinstance(node, Function)]
    found = [node for node in functions if node.name == name]
    if not found and name not in _bound_names(tree):
        known = nearest(name, [node.name for node in functions])
        yield f"{file}: defines no {name!r}{known}; the interface declares the entry point '{file}:{name}'"
    if found and not _takes(len(parameters), found[-1].args):
        shown = f"{name}({ast.unparse(found[-1].args)})"
        yield (
            f"{file}, line {found[-1].lineno}: {shown} does not take {_NUMBERS[len(parameters)]}; the interface "
            f"declares {name}({', '.join(parameters)})"
        )


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements of the module, also those below `if`, `try` and `with`."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop(0)):
            if isinstance(child, ast.stmt):
                yield child
            if not isinstance(child, Function | ast.ClassDef | ast.expr):
                waiting.append(child)


def _bound_names(tree: ast.Module) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in _top_level(tree):
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def _takes(count: int, args: ast.arguments) -> bool:
    positional = len(args.posonlyargs) + len(args.args)
    required = positional - len(args.defaults)
    named_only = any(default is None for default in args.kw_defaults)
    return required <= count and (positional >= count or args.vararg is not None) and not named_only


def _calls_target(source: Path, path: str) -> bool:
    try:
        tree = _parse(source, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.Attribute) and node.attr in _TARGET_CALLS for node in ast.walk(tree))
