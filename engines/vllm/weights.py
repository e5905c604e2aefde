"""What tells a model's weights apart from others that were in the same folder before.

An engine knows its model by a name, which may be a folder whose files were replaced. A digest of
their sizes and of samples all over them costs milliseconds where reading them whole costs minutes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

SUFFIXES = frozenset((".safetensors", ".bin", ".pt", ".gguf"))
SAMPLES = 64
SAMPLE = 4096


def weights_of(model: str) -> str:
    """A digest, "" where `model` is no folder or file (a hub name) or cannot be read."""
    path = Path(model)
    try:
        files = _files(path)
        digest = hashlib.sha256()
        for file in files:
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
            digest.update(_sampled(file))
    except OSError:
        return ""
    return digest.hexdigest()[:32] if files else ""


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        return []
    wanted = [file for file in path.iterdir() if file.suffix in SUFFIXES]
    return sorted([*wanted, *(path / name for name in ("config.json",) if (path / name).exists())])


def _sampled(path: Path) -> bytes:
    """The digest of parts that are spread evenly, the first and the last among them."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        last = max(0, os.fstat(file.fileno()).st_size - SAMPLE)
        for at in sorted({last * n // (SAMPLES - 1) for n in range(SAMPLES)}):
            file.seek(at)
            digest.update(file.read(SAMPLE))
    return digest.digest()
