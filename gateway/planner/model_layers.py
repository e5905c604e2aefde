"""What a model's layers keep of a prompt: KV of every token, of the last ones, or a state.

Per layer and token: 2 x KV heads x head size numbers (MHA, GQA, MQA); kv_lora_rank +
qk_rope_head_dim numbers (MLA), once for all heads. A sliding window keeps no more tokens than it is
wide; a recurrent layer keeps one state per request, whatever its length.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.planner.model_config import BITS, BadModel, ModelConfig

FULL, SLIDING, CHUNKED, LATENT, RECURRENT, NONE = (
    "full", "sliding", "chunked", "latent", "recurrent", "none",
)  # fmt: skip

# Words of `layer_types`, as families use them.
_TYPES = {
    "full_attention": FULL, "attention": FULL, "hybrid": FULL, "global_attention": FULL,
    "sliding_attention": SLIDING, "local_attention": SLIDING, "chunked_attention": CHUNKED,
    "linear_attention": RECURRENT, "mamba": RECURRENT, "recurrent": RECURRENT, "conv": RECURRENT,
}  # fmt: skip
# Letters of Nemotron-H's `hybrid_override_pattern`.
_LETTERS = {"*": FULL, "M": RECURRENT, "-": NONE, "E": NONE}


@dataclass(frozen=True, slots=True)
class Layers:
    """`count` layers of one kind. Bytes are of one layer, of all heads; `window` 0: every token is
    kept. `kv_heads` 0: there is nothing that tensor parallelism divides.
    """

    kind: str
    count: int
    token_bytes: float = 0.0
    window: int = 0
    state_bytes: float = 0.0
    kv_heads: int = 0

    def request_bytes(self, tokens: int) -> float:
        kept = min(tokens, self.window) if self.window else tokens
        return self.count * (kept * self.token_bytes + self.state_bytes)

    def copies(self, gpus: int) -> float:
        """How often its KV lies on `gpus` in sum: once while there are heads to divide, a whole
        copy each where there are none (MLA), and per head where GPUs are more than heads."""
        if self.kind == RECURRENT:
            return 1.0
        return max(1.0, gpus / self.kv_heads) if self.kv_heads else float(gpus)


def heads(config: ModelConfig) -> tuple[int, int, int]:
    """(query heads, KV heads, head size)."""
    queries = config.number("num_attention_heads", "n_head", "n_heads")
    attention = config.get("attn_config")
    inner = attention if isinstance(attention, dict) else {}
    found = config.optional("num_key_value_heads", "num_kv_heads", "n_head_kv")
    grouped = found or inner.get("kv_n_heads")
    if not grouped:
        grouped = 1 if config.get("multi_query") else queries
    default = config.number("hidden_size", "n_embd", "d_model") // queries
    return queries, int(grouped), config.number("head_dim", "attention_head_dim", default=default)


def layers(config: ModelConfig, kv_dtype: str) -> tuple[Layers, ...]:
    """The kinds of layers there are, in a fixed order. Raises BadModel."""
    kinds = _kinds(config)
    made = {kind: _layer(config, kind, BITS[kv_dtype] / 8) for kind in dict.fromkeys(kinds)}
    order = (LATENT, FULL, SLIDING, CHUNKED, RECURRENT, NONE)
    return tuple(Layers(kind, kinds.count(kind), *made[kind]) for kind in order if kind in made)


def _kinds(config: ModelConfig) -> list[str]:
    """Of each layer."""
    count = config.number("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if config.optional("kv_lora_rank"):
        return [LATENT] * count
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_LETTERS.get(letter, NONE) for letter in pattern]
    words = config.words("layer_types") or config.words("layers_block_type")
    if words is not None:
        unknown = set(words) - set(_TYPES)
        if unknown or len(words) != count:
            wrong = f"{len(words)} of {count} layers" if not unknown else ", ".join(sorted(unknown))
            raise BadModel(f"{config.source}: its layer types are not known: {wrong}")
        return [_TYPES[word] for word in words]
    return [_by_period(config, at) for at in range(count)]


def _by_period(config: ModelConfig, at: int) -> str:
    """Where a few numbers say which layers attend, and how far."""
    period = config.optional("attn_layer_period")
    if period:
        offset = config.optional("attn_layer_offset")
        return FULL if at % period == offset else RECURRENT
    indices = config.get("attn_layer_indices")
    if isinstance(indices, list):
        return FULL if at in indices else RECURRENT
    every = config.optional("full_attention_interval")
    if every:
        return FULL if (at + 1) % every == 0 else RECURRENT
    window = config.optional("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return FULL
    pattern = config.optional("sliding_window_pattern") or (2 if config.family == "gemma2" else 0)
    if pattern:
        return FULL if (at + 1) % pattern == 0 else SLIDING
    # Qwen2: the first layers attend to everything.
    return FULL if at < config.optional("max_window_layers") else SLIDING


def _layer(config: ModelConfig, kind: str, size: float) -> tuple[float, int, float, int]:
    """(bytes per token, window, bytes of a state, KV heads) of one layer of a kind."""
    if kind == LATENT:
        numbers = config.number("kv_lora_rank") + config.optional("qk_rope_head_dim")
        # DeepSeek-V3.2 keeps a key in eight bits and its scale for the choice of tokens.
        index = config.optional("index_head_dim")
        return numbers * size + (index + 4 if index else 0), 0, 0.0, 0
    if kind == RECURRENT:
        return 0.0, 0, _state_numbers(config) * 2.0, 0
    if kind == NONE:
        return 0.0, 0, 0.0, 0
    _, grouped, width = heads(config)
    window = 0
    if kind == SLIDING:
        window = config.number("sliding_window", "sliding_window_size")
    elif kind == CHUNKED:
        window = config.number("attention_chunk_size")
    return 2 * grouped * width * size, window, 0.0, grouped


def _state_numbers(config: ModelConfig) -> int:
    """Numbers that a recurrent layer keeps: its state, and what its convolution looks back at."""
    hidden = config.number("hidden_size", "n_embd", "d_model")
    if config.optional("linear_num_value_heads"):  # gated delta net
        keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
        width = config.number("linear_value_head_dim")
        values = config.number("linear_num_value_heads")
        kernel = config.number("linear_conv_kernel_dim", default=4)
        state = values * width * config.number("linear_key_head_dim")
        return state + (kernel - 1) * (2 * keys + values * width)
    kernel = config.number("mamba_d_conv", "conv_kernel", "conv_L_cache", default=4)
    state = config.optional("mamba_d_state", "ssm_state_size")
    if not state:  # a convolution alone
        return (kernel - 1) * hidden
    count = config.optional("mamba_n_heads", "mamba_num_heads")
    if count:  # Mamba 2
        inner = count * config.number("mamba_d_head", "mamba_head_dim")
        groups = config.number("mamba_n_groups", "n_groups", default=1)
        return inner * state + (kernel - 1) * (inner + 2 * groups * state)
    inner = hidden * config.number("mamba_expand", default=2)
    return inner * state + (kernel - 1) * inner
