"""Landlock: a process gives up, for itself and all that it starts, what no rule allows. Linux, no privileges needed.

The worker loads this file, which lies beside it; standard library only. What the kernel can restrict depends on its
ABI: files from 1, truncation from 3, TCP from 4, signals and abstract Unix sockets from 6. No ABI covers UDP, Unix
sockets that have a path, or the names, modes and owners of files.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

MIN_ABI = 3
"""Below, any file that the user may write could be emptied."""
TCP_ABI, SCOPE_ABI = 4, 6

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many rights on files there are, from the lowest bit; 16 from ABI 5 on."""
_BIND_CONNECT, _CONNECT = 3, 2
_SCOPES = 3
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The kernel's Landlock ABI; 0 where there is none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)))


class Jail:
    """What processes may do that `enter` it, beside what they write below folders of their own.

    `read` are files and folders to read and execute, `listed` folders of which names may be listed, also below them,
    `ports` TCP ports to connect to (None: the network stays as it is). Made once, for a fork to enter. Raises OSError.
    """

    def __init__(self, read: Iterable[str], listed: Iterable[str] = (), ports: Iterable[int] | None = ()) -> None:
        self.abi = abi()
        self.ports = None if ports is None else list(ports)
        self.rules = [(os.open(path, os.O_PATH | os.O_CLOEXEC), _READ) for path in read]
        self.rules += [(os.open(path, os.O_PATH | os.O_CLOEXEC), _READ_DIR) for path in listed]
        devices = [path for path in _DEVICES if Path(path).exists()]
        self.rules += [(os.open(path, os.O_PATH | os.O_CLOEXEC), _READ_FILE | _WRITE_FILE) for path in devices]

    def enter(self, writable: Iterable[str]) -> None:
        """Restrict this thread and what it forks, for ever. It must have set no_new_privs. Raises OSError."""
        every = (1 << _RIGHTS_BY_ABI.get(self.abi, 16)) - 1
        attributes = struct.pack("=QQQ", every, 0 if self.ports is None else _BIND_CONNECT, _SCOPES)
        size = 24 if self.abi >= SCOPE_ABI else 16 if self.abi >= TCP_ABI else 8
        ruleset = _call(_CREATE, attributes, ctypes.c_size_t(size), 0)
        own = [(os.open(path, os.O_PATH | os.O_CLOEXEC), every) for path in writable]
        for handle, rights in [*self.rules, *own]:
            allowed = rights & every
            if not stat.S_ISDIR(os.fstat(handle).st_mode):
                allowed &= _ON_FILES
            _call(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, handle), 0)
            os.close(handle)
        for port in (self.ports or ()) if self.abi >= TCP_ABI else ():
            _call(_ADD, ruleset, _NET_PORT, struct.pack("=QQ", _CONNECT, port), 0)
        _call(_RESTRICT, ruleset, 0)
        os.close(ruleset)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return result
