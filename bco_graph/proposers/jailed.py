"""The program that starts a command inside its jail: jailed.py (PORT:SOCKET | -) WORD...

With PORT:SOCKET it listens on loopback, and what comes goes to the Unix socket: so the command reaches the gateway
under the gateway's own URL, and nothing else. One file of the standard library only.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

_CHUNK = 1 << 16


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


async def _listen(port: int, path: str) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there, back = await asyncio.open_unix_connection(path)
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
            back.close()
        writer.close()

    await asyncio.start_server(forward, "127.0.0.1", port)


async def main(way: str, argv: list[str]) -> int:
    """The command's exit code; 128 more than its number for a signal, 127 where it cannot be started."""
    port, _, path = way.partition(":")
    if path:
        await _listen(int(port), path)
    try:
        process = await asyncio.create_subprocess_exec(*argv)
    except OSError as error:
        print(f"cannot start {argv[0]!r}: {error.strerror}; install it or mend proposer.command", flush=True)
        return 127
    code = await process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2:])))
