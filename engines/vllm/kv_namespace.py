"""What makes two engines' blocks of KV cache interchangeable: descriptor and probe of a namespace.

Pure. Invariant: engines whose blocks differ in anything that is said here share nothing; what a
daemon holds of one is never offered to the other.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

FORMAT = 1


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers whose blocks are kept together, and how many tokens one block of them spans."""

    tokens: int
    layers: tuple[str, ...]

    def described(self) -> dict[str, object]:
        # The names may be long and many, a descriptor has 64 KiB: their digest tells them apart.
        digest = hashlib.sha256("\n".join(self.layers).encode()).hexdigest()
        return {"tokens": self.tokens, "layers": len(self.layers), "names": digest}


@dataclass(frozen=True, slots=True)
class Topology:
    """How many ranks the layers and heads of a block are spread over."""

    world: int = 1
    tp: int = 1
    pp: int = 1
    pcp: int = 1
    dcp: int = 1

    def described(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("world", "tp", "pp", "pcp", "dcp")}


@dataclass(frozen=True, slots=True)
class KvFormat:
    """`block_bytes`: of all ranks together. `topology`: None where the bytes are the same for any.

    `layout` and `canonical` are the engine's names of the order of a block's bytes; `weights` tells
    apart what goes by one name; `salt` keeps tenants apart and appears as a digest only.
    """

    engine: str
    model: str
    dtype: str
    tokens_per_hash: int
    blocks_per_chunk: int
    block_bytes: int
    groups: tuple[LayerGroup, ...]
    topology: Topology | None
    layout: str = ""
    canonical: str = ""
    replicated: bool = False
    weights: str = ""
    salt: str = ""

    def descriptor(self) -> bytes:
        """Canonical JSON. `model` and `groups` are read by the daemon, for its events."""
        salt = hashlib.sha256(b"kvgate salt 1 " + self.salt.encode()).hexdigest()
        told = {
            "format": FORMAT,
            "engine": self.engine,
            "model": self.model,
            "weights": self.weights,
            "dtype": self.dtype,
            "layout": self.layout,
            "canonical": self.canonical,
            "replicated": self.replicated,
            "tokens_per_hash": self.tokens_per_hash,
            "blocks_per_chunk": self.blocks_per_chunk,
            "block_bytes": self.block_bytes,
            "groups": [group.described() for group in self.groups],
            "topology": self.topology.described() if self.topology else None,
            "salt": salt if self.salt else "",
        }
        return json.dumps(told, sort_keys=True, separators=(",", ":")).encode()


def probe(chain_start: bytes) -> bytes:
    """32 bytes that differ where block hashes do: from the hash that every chain begins with, which
    the hash function makes of the seed."""
    return hashlib.sha256(b"kvgate probe 1 " + chain_start).digest()
