"""Paths, links and files: out of the scaffold, into it, and what a next task could find."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.hostile.hands import Hands


def dots_and_links(hands: Hands) -> None:
    here = os.getcwd()
    for number, path in enumerate([*hands.canaries, "/etc/passwd", "/etc/shadow", "/root", "/home"]):
        hands.read(path)
        hands.read(here + "/.." * hands.rng.randint(1, 12) + path)
        hands.read("/proc/self/root" + path)
        try:
            os.symlink(path, f"link-{number}")
            hands.read(f"link-{number}")
            os.link(path, f"hard-{number}")
            hands.read(f"hard-{number}")
        except OSError:
            pass


def roots_of_others(hands: Hands) -> None:
    for pid in hands.pids():
        for way in ("root", "cwd"):
            for path in hands.canaries:
                hands.read(f"/proc/{pid}/{way}{path}")


def write_outside(hands: Hands) -> None:
    folders = [
        *{os.path.dirname(path) for path in hands.canaries},
        "/",
        "/etc",
        "/usr",
        "/root",
        "/run",
        "/home",
        "/dev",
    ]
    for folder in folders:
        for flags in (os.O_CREAT | os.O_WRONLY, os.O_TMPFILE | os.O_RDWR):
            path = folder if flags & os.O_TMPFILE == os.O_TMPFILE else f"{folder}/left-{hands.rng.random()}"
            try:
                os.close(os.open(path, flags, 0o666))
                hands.say(f"breach wrote into {folder}")
            except OSError:
                pass


def write_canaries(hands: Hands) -> None:
    for path in hands.canaries:
        changes: list[tuple[Any, ...]] = [
            (os.truncate, 0), (os.unlink,), (os.rename, "moved"), (os.chmod, 0o777), (os.utime, (1, 1)),
            (os.open, os.O_WRONLY | os.O_APPEND), (os.setxattr, "user.left", b"x"), (os.chown, 0, 0),
        ]  # fmt: skip
        for change, *arguments in changes:
            try:
                change(path, *arguments)
                hands.say(f"breach changed {path}")
            except OSError:
                pass


def write_own_source(hands: Hands) -> None:
    worker = getattr(sys.modules["__main__"], "__file__", "") or ""
    library = os.path.dirname(os.__file__)
    # A checkout below /tmp is not there in a task's own /tmp: what is made in its place is seen by nobody else.
    folders = [folder for folder in sys.path if not folder.startswith("/tmp/")]
    for path in (__file__, worker, f"{library}/json/__init__.py", *[f"{folder}/evil.pth" for folder in folders]):
        try:
            os.chmod(os.path.dirname(path), 0o777)
        except OSError:
            pass
        try:
            with open(path, "ab") as file:
                file.write(b"\nraise SystemExit('changed by a task')\n")
            hands.say(f"breach wrote to {path}")
        except OSError:
            pass


def reopen_descriptors(hands: Hands) -> None:
    for pid in ["self", *hands.pids()]:
        for number in range(hands.rng.choice([16, 64])):
            path = f"/proc/{pid}/fd/{number}"
            try:
                hands.found(os.readlink(path))
                handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                hands.found(os.read(handle, 1 << 16))
            except OSError:
                pass
            os.close(handle)


def device_nodes(hands: Hands) -> None:
    for major, minor in ((1, 1), (8, 0), (254, 0), (5, 0)):
        try:
            os.mknod(f"device-{major}", 0o020666 if major in (1, 5) else 0o060666, os.makedev(major, minor))
            handle = os.open(f"device-{major}", os.O_RDWR | os.O_NONBLOCK)
            hands.say(f"breach opened the device {major}:{minor}")
            os.close(handle)
        except OSError:
            pass
    for path in ("/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/fuse", "/dev/net/tun", "/dev/kvm"):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            hands.say(f"breach opened {path}")
        except OSError:
            pass


def leave_for_the_next(hands: Hands) -> None:
    """What one task leaves, a next one looks for: each says its own private marker only."""
    secret = str(hands.inputs.get("secret", "")).encode()
    places = ["/tmp", "/dev/shm", "/var/tmp", os.environ.get("HOME", "/"), os.environ.get("TMPDIR", "/"), "."]
    for place in places:
        for folder, _, names in os.walk(place):
            for name in names[:50]:
                if name.startswith("left"):
                    hands.read(f"{folder}/{name}")
        try:
            with open(f"{place}/left-{hands.rng.randint(0, 9)}", "ab") as file:
                file.write(secret)
        except OSError:
            pass


def close_folders(hands: Hands) -> None:
    """Trees that are hard to remove: no permissions, very deep, strange names."""
    os.makedirs("locked/inner", exist_ok=True)
    open("locked/inner/file", "wb").close()
    os.chmod("locked/inner", 0)
    os.chmod("locked", 0)
    start = os.getcwd()
    try:
        for _ in range(hands.rng.choice([50, 800])):
            os.mkdir("d" * 60)
            os.chdir("d" * 60)
    finally:
        os.chdir(start)
    open(b"name-\xff\n-\x1b[2J", "wb").close()


def fill_the_disk(hands: Hands) -> None:
    chunk = bytes(1 << 20)
    for place in (os.environ["TMPDIR"], "/dev/shm"):
        try:
            with open(f"{place}/full", "wb") as file:
                for _ in range(hands.rng.choice([40, 300])):
                    file.write(chunk)
        except OSError:
            pass
        try:
            os.unlink(f"{place}/full")
        except OSError:
            pass


PIECES = (
    dots_and_links, roots_of_others, write_outside, write_canaries, write_own_source, reopen_descriptors,
    device_nodes, leave_for_the_next, close_folders, fill_the_disk,
)  # fmt: skip
