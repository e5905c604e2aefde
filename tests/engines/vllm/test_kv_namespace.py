"""Whatever makes blocks differ makes the namespace differ; nothing else does."""

from __future__ import annotations

import json
from dataclasses import replace

from engines.vllm.kv_namespace import KvFormat, LayerGroup, Topology, probe

PLAIN = KvFormat(
    engine="vllm 0.32",
    model="org/model",
    dtype="bfloat16",
    tokens_per_hash=16,
    blocks_per_chunk=1,
    block_bytes=65536,
    groups=(LayerGroup(16, ("layers.0", "layers.1")),),
    topology=Topology(2, 2),
)
OTHERS = {
    "engine": "vllm 0.33", "model": "org/other", "dtype": "fp8", "tokens_per_hash": 32,
    "blocks_per_chunk": 2, "block_bytes": 131072, "groups": (LayerGroup(16, ("layers.0",)),),
    "topology": None, "layout": "LBHNC", "canonical": "v1-nhd", "replicated": True,
    "weights": "revision", "salt": "tenant",
}  # fmt: skip


def test_every_field_counts() -> None:
    assert set(OTHERS) == set(KvFormat.__slots__)
    told = {replace(PLAIN, **{name: value}).descriptor() for name, value in OTHERS.items()}
    assert len(told | {PLAIN.descriptor()}) == len(OTHERS) + 1
    order = LayerGroup(16, ("layers.1", "layers.0"))
    assert replace(PLAIN, groups=(order,)).descriptor() != PLAIN.descriptor()


def test_a_descriptor_is_canonical_short_and_keeps_secrets() -> None:
    layers = tuple(f"model.decoder.layers.{n}.self_attention.attn" for n in range(4000))
    told = replace(PLAIN, groups=(LayerGroup(16, layers),) * 20, salt="a secret").descriptor()
    document = json.loads(told)
    assert told == json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    assert len(told) < 64 << 10
    assert b"a secret" not in told
    assert document["model"] == "org/model"
    assert len(document["groups"]) == 20


def test_a_probe_tells_seeds_apart() -> None:
    assert len(probe(b"x")) == 32
    assert probe(b"x") == probe(b"x") != probe(b"y")
