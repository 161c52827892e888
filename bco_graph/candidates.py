"""The candidate store: a bare git repository with one commit per candidate, tag `iter_NNN`, parent = its parent.

Bytes are stored as they are: no line-ending conversion, no filters, no ignore rules, no hooks, no user config.
Trees are staged first (`stage`) and become candidates later (`admit`), so that a prediction can be made on the diff
of something that is no candidate yet. Needs the `git` program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bco_graph.errors import ConfigError, RunUnreadable
from bco_graph.scaffold_tree import copy_tree
from bco_graph.scratch import scratch
from bco_graph.state import candidate_id

_PLAIN = "* -text -eol -filter -ident -working-tree-encoding -export-subst -export-ignore !diff !merge\n"
_IDENTITY = {
    "GIT_AUTHOR_NAME": "bco-graph",
    "GIT_AUTHOR_EMAIL": "bco-graph@localhost",
    "GIT_COMMITTER_NAME": "bco-graph",
    "GIT_COMMITTER_EMAIL": "bco-graph@localhost",
}


class CandidateStore:
    """Content-addressed: equal sources have equal trees, in any run. Methods block for a few milliseconds.

    The candidates of a store are read once, so that a call costs the same however many there are: what another process
    admits later is not seen.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, str] | None = None
        self._last_diff = ("", "", "")
        if not path.exists():
            self._create()

    def _create(self) -> None:
        if shutil.which("git") is None:
            raise ConfigError("the candidate store needs the program 'git' on PATH: install git")
        making = self.path.with_name(self.path.name + ".making")
        shutil.rmtree(making, ignore_errors=True)
        _git(["init", "--quiet", "--bare", "--initial-branch=candidates", "--template=", str(making)])
        (making / "info").mkdir(exist_ok=True)
        (making / "info" / "attributes").write_text(_PLAIN, encoding="utf-8")
        making.replace(self.path)

    def stage(self, folder: Path) -> str:
        """Store the admitted files of a folder; returns the tree's id. The folder is not changed."""
        with scratch("stage") as apart:
            clean = apart / "tree"
            copy_tree(folder, clean)
            # The index goes to a file of its own: several stages may run at once.
            env = {"GIT_INDEX_FILE": str(apart / "index"), "GIT_WORK_TREE": str(clean)}
            self._run("add", "--force", "--all", ".", env=env, cwd=clean)
            return self._run("write-tree", env=env).decode().strip()

    def admit(self, iteration: int, tree: str, parent: str | None) -> str:
        """Make a staged tree the candidate of an iteration; repeating it with the same tree changes nothing."""
        name = candidate_id(iteration)
        known = self._trees()
        if name in known:
            if known[name] != tree:
                raise RunUnreadable(f"{self.path} already holds another {name}: was this run folder edited by hand?")
            return name
        parents = ["-p", f"refs/tags/{parent}"] if parent else []
        # The iteration is the time stamp, so that the same edits give the same commits.
        stamp = {"GIT_AUTHOR_DATE": f"{iteration} +0000", "GIT_COMMITTER_DATE": f"{iteration} +0000"}
        stamp = {key: f"@{value}" for key, value in stamp.items()}
        commit = self._run("commit-tree", tree, *parents, "-m", name, env={**_IDENTITY, **stamp}).decode().strip()
        self._run("update-ref", f"refs/tags/{name}", commit)
        known[name] = tree
        return name

    def forget_after(self, iteration: int) -> None:
        """Take the candidates of later iterations away."""
        for name in self.ids():
            if int(name.removeprefix("iter_")) > iteration:
                self._run("update-ref", "-d", f"refs/tags/{name}")
                del self._trees()[name]

    def trees(self) -> dict[str, str]:
        """Tree of each candidate, by id in the order of iterations."""
        return dict(self._trees())

    def _trees(self) -> dict[str, str]:
        if self._known is None:
            self._known = self._list()
        return self._known

    def _list(self) -> dict[str, str]:
        listed = self._run("for-each-ref", "--format=%(refname:strip=2) %(tree)", "refs/tags/iter_*").decode()
        found = dict(line.split(" ", 1) for line in listed.splitlines())
        return dict(sorted(found.items(), key=lambda item: int(item[0].removeprefix("iter_"))))

    def ids(self) -> list[str]:
        """Candidate ids in the order of iterations."""
        return list(self._trees())

    def tree(self, candidate: str) -> str:
        """Raises RunUnreadable where there is no such candidate."""
        if candidate not in self._trees():
            raise RunUnreadable(f"{self.path} holds no candidate {candidate!r}")
        return self._trees()[candidate]

    def checkout(self, tree: str, folder: Path) -> None:
        """Write a tree's files into a folder that is emptied first."""
        folder = folder.resolve()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with scratch("checkout") as apart:
            env = {"GIT_INDEX_FILE": str(apart / "index"), "GIT_WORK_TREE": str(folder)}
            self._run("read-tree", "--reset", "-u", tree, env=env, cwd=folder)

    def diff(self, old: str, new: str) -> str:
        """A patch that turns the old tree into the new one (`git apply`), binary files and renames included."""
        if self._last_diff[:2] != (old, new):
            patch = self._run("diff-tree", "-p", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", old, new)
            self._last_diff = (old, new, patch.decode("utf-8", errors="surrogateescape"))
        return self._last_diff[2]

    def _run(self, *args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> bytes:
        return _git([f"--git-dir={self.path.resolve()}", *args], env=env, cwd=cwd)


def _git(args: list[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> bytes:
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "HOME": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        **(env or {}),
    }
    settings = ["-c", "core.autocrlf=false", "-c", "core.quotepath=true", "-c", "core.hooksPath=/dev/null"]
    settings += ["-c", "core.bare=false"] if env and "GIT_WORK_TREE" in env else []
    try:
        done = subprocess.run(["git", *settings, *args], env=environment, cwd=cwd, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ConfigError("the candidate store needs the program 'git' on PATH: install git") from error
    if done.returncode:
        message = done.stderr.decode("utf-8", errors="replace").strip()
        raise RunUnreadable(f"git {args[1] if len(args) > 1 else args} failed in the candidate store: {message}")
    return done.stdout
