"""A real PostgreSQL server for tests: Debian's binaries, a folder of its own, a Unix socket and no port."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

STARTS_WITHIN_S = 60


def binaries() -> Path | None:
    """The folder of the newest version that Debian's package has put there; None where there is none."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda folder: int(folder.parent.name), default=None)


@contextmanager
def server(programs: Path) -> Iterator[str]:
    """What a client takes to connect, for as long as the block lasts.

    The server refuses to run as root, so root runs it as `nobody`.
    """
    root = Path(tempfile.mkdtemp(prefix="bco-pg-"))
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(root, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    try:
        subprocess.run(
            [programs / "initdb", "-D", root / "data", "-A", "trust", "-U", "bco", "--no-sync", "--no-locale",
             "-E", "UTF8"],
            check=True, capture_output=True, cwd=root, **user,
        )  # fmt: skip
        with (root / "log").open("wb") as log:
            process = subprocess.Popen(
                [programs / "postgres", "-D", root / "data", "-k", root, "-c", "listen_addresses=", "-c", "fsync=off"],
                stdout=log, stderr=log, cwd=root, **user,
            )  # fmt: skip
        try:
            where = f"host={root} user=bco dbname=postgres"
            _wait(where, process, root / "log")
            yield where
        finally:
            process.terminate()
            process.wait(30)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _wait(where: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            psycopg.connect(where).close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text(encoding="utf-8", errors="replace")) from error
            time.sleep(0.05)
