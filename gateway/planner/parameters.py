"""How many weights a model has, from its `config.json`, and how many bytes they are.

Projections of attention, of the feed-forward part or its experts, norms and embeddings are counted;
biases are not, so that a count is right to a few thousandths. Files beside the configuration that
say what the weights weigh go before any count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gateway.planner.model_config import ModelConfig, weight_bits
from gateway.planner.model_layers import LATENT, NONE, RECURRENT, Layers, heads

# Families whose feed-forward part has two projections; others gate and have three.
_UNGATED = {"gpt2", "opt", "falcon", "mpt", "gpt_bigcode", "gpt_neox", "bloom", "nemotron",
            "starcoder2", "phi", "nemotron_h"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weights:
    """`source`: where the bytes are from: `files`, `given`, or `counted` from the configuration."""

    parameters: int
    bytes: int
    stored: str
    source: str


def weights(config: ModelConfig, kinds: tuple[Layers, ...], given: int = 0) -> Weights:
    """`given`: bytes that somebody knows better. Raises BadModel."""
    count = _parameters(config, kinds)
    stored, bits = weight_bits(config)
    if given:
        return Weights(count, given, stored, "given")
    found = _of_files(Path(config.source).parent)
    if found:
        return Weights(count, found, stored, "files")
    # Embeddings keep the model's own type.
    table = _embeddings(config)
    return Weights(count, round((count - table) * bits / 8 + table * 2), stored, "counted")


def _of_files(folder: Path) -> int:
    index = folder / "model.safetensors.index.json"
    try:
        return int(json.loads(index.read_text())["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _embeddings(config: ModelConfig) -> int:
    hidden = config.number("hidden_size", "n_embd", "d_model")
    # Absent means tied in most families that leave it out, and small.
    tables = 1 if config.get("tie_word_embeddings") in (True, None) else 2
    return tables * config.number("vocab_size") * hidden


def _parameters(config: ModelConfig, kinds: tuple[Layers, ...]) -> int:
    hidden = config.number("hidden_size", "n_embd", "d_model")
    count = _embeddings(config) + hidden
    depth = sum(kind.count for kind in kinds)
    for kind in kinds:
        count += kind.count * (_mixer(config, kind.kind, hidden) + 2 * hidden)
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):  # a layer is one thing or the other
        return count + pattern.count("-") * _dense(config, hidden)
    sparse = _sparse_layers(config, depth)
    count += sparse * _experts(config, hidden) if sparse else 0
    return count + (depth - sparse) * _dense(config, hidden)


def _mixer(config: ModelConfig, kind: str, hidden: int) -> int:
    if kind == NONE:
        return 0
    if kind == LATENT:
        return _latent(config, hidden)
    if kind == RECURRENT:
        return _recurrent(config, hidden)
    queries, grouped, width = heads(config)
    return hidden * width * (2 * queries + 2 * grouped)


def _latent(config: ModelConfig, hidden: int) -> int:
    queries = config.number("num_attention_heads")
    plain = config.number("qk_nope_head_dim", default=128)
    turned = config.number("qk_rope_head_dim", default=64)
    values = config.number("v_head_dim", default=128)
    rank, low = config.number("kv_lora_rank"), config.optional("q_lora_rank")
    asked = queries * (plain + turned)
    query = hidden * low + low * asked if low else hidden * asked
    keys = hidden * (rank + turned) + rank * queries * (plain + values)
    return query + keys + queries * values * hidden


def _recurrent(config: ModelConfig, hidden: int) -> int:
    if config.optional("linear_num_value_heads"):
        keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
        values = config.number("linear_num_value_heads") * config.number("linear_value_head_dim")
        return hidden * (2 * keys + 3 * values)
    count = config.optional("mamba_n_heads", "mamba_num_heads")
    each = config.optional("mamba_d_head", "mamba_head_dim")
    inner = count * each or hidden * config.number("mamba_expand", default=2)
    return 3 * hidden * inner


def _dense(config: ModelConfig, hidden: int) -> int:
    width = config.number("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden)
    return (2 if config.family in _UNGATED else 3) * hidden * width


def _sparse_layers(config: ModelConfig, depth: int) -> int:
    if not config.optional("num_local_experts", "num_experts", "n_routed_experts"):
        return 0
    every = config.number("decoder_sparse_step", "expert_layer_period", default=1)
    dense = config.get("mlp_only_layers")
    first = config.optional("first_k_dense_replace")
    return (depth - first) // every - (len(dense) if isinstance(dense, list) else 0)


def _experts(config: ModelConfig, hidden: int) -> int:
    experts = config.number("num_local_experts", "num_experts", "n_routed_experts")
    width = config.number("moe_intermediate_size", "intermediate_size")
    shared = config.optional("n_shared_experts") * width
    shared += config.optional("shared_expert_intermediate_size")
    return 3 * hidden * (experts * width + shared) + hidden * experts
