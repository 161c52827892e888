"""The program that starts a command under Landlock: landlocked.py RULES WORD...

RULES is a JSON file: {"program", "read", "listed", "writable", "ports"}, as `landlock.Jail` takes them; `program` is
the folder of worker.py and landlock.py, and `ports` null leaves the network open. What the command leaves behind is
adopted here, and killed with its end. The standard library only.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_PR_PDEATHSIG, _PR_SUBREAPER, _PR_NO_NEW_PRIVS = 1, 36, 38


def main(rules: dict[str, Any], argv: list[str]) -> int:
    """The command's exit code; 128 more than its number for a signal, 127 where it cannot be started."""
    sys.path.insert(0, rules["program"])
    worker, landlock = importlib.import_module("worker"), importlib.import_module("landlock")
    worker.prctl(_PR_SUBREAPER, 1)
    pid = os.fork()
    if pid == 0:
        try:
            worker.prctl(_PR_PDEATHSIG, signal.SIGKILL)
            worker.prctl(_PR_NO_NEW_PRIVS, 1)
            worker.drop_capabilities()
            landlock.Jail(rules["read"], rules["listed"], rules["ports"]).enter(rules["writable"])
            os.execvp(argv[0], argv)
        except OSError as error:
            print(f"cannot start {argv[0]!r}: {error.strerror}; install it or mend proposer.command", flush=True)
        finally:
            os._exit(127)
    while (ended := os.wait())[0] != pid:
        pass
    worker.end_children()
    code = os.waitstatus_to_exitcode(ended[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2:]))
