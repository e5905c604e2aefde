"""How much memory a model takes, on how many GPUs it fits, and how long its KV is on the way.

KV bytes of a request are exact for what a model's configuration says; weights are exact where files
say so; activations are an estimate, and named as assumed. GiB are 2^30 bytes, GB 10^9: links carry
GB, and a figure in GiB that is divided by a link in GB is 7 % too short.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.planner.gpus import GIB, Gpu
from gateway.planner.model_config import ModelConfig, dtype
from gateway.planner.model_layers import (
    CHUNKED,
    FULL,
    LATENT,
    NONE,
    RECURRENT,
    SLIDING,
    Layers,
    heads,
    layers,
)
from gateway.planner.parameters import Weights, weights

ENGINE_GPUS = (1, 2, 4, 8, 16, 32, 64)
# Of a GPU: what CUDA graphs, communication buffers and the runtime take beside the model.
RUNTIME_BYTES = 2 * GIB
# vLLM keeps a few rows of logits in float32 and their copy while it samples.
SAMPLED = 256
LOGIT_BYTES = 8


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be served: `concurrency` requests of `tokens` each, prompt and answer."""

    tokens: int = 8192
    concurrency: int = 100
    chunk_tokens: int = 8192
    utilization: float = 0.9  # of a GPU's memory, as vLLM's --gpu-memory-utilization


@dataclass(frozen=True, slots=True)
class Model:
    """A model's shape, as far as memory goes."""

    family: str
    kinds: tuple[Layers, ...]
    weights: Weights
    kv_dtype: str
    heads: int
    hidden: int
    widest: int  # of a feed-forward part, in numbers
    vocabulary: int
    context: int  # tokens; 0 = not said

    @property
    def bytes_per_token(self) -> float:
        """Of KV, in all layers that attend."""
        return sum(kind.count * kind.token_bytes for kind in self.kinds)

    @property
    def bytes_per_late_token(self) -> float:
        """Of KV, once every window is full: what a longer prompt really adds."""
        return sum(kind.count * kind.token_bytes for kind in self.kinds if not kind.window)

    def bytes_per_request(self, tokens: int) -> float:
        return sum(kind.request_bytes(tokens) for kind in self.kinds)

    def bytes_on(self, gpus: int, tokens: int) -> float:
        """KV of a request on all GPUs of an engine, copies included."""
        return sum(kind.request_bytes(tokens) * kind.copies(gpus) for kind in self.kinds)

    def activation_bytes(self, gpus: int, chunk_tokens: int) -> float:
        """Per GPU, estimated: residuals and projections of one step, and sampling."""
        step = chunk_tokens * (4 * self.hidden + 2 * self.widest / gpus) * 2
        return step + SAMPLED * self.vocabulary * LOGIT_BYTES


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine on so many GPUs; bytes per GPU. `requests`: how many fit at once."""

    gpus: int
    weights_bytes: float
    activation_bytes: float
    kv_bytes: float
    requests: int


@dataclass(frozen=True, slots=True)
class Floor:
    """The fewest GPUs that hold a load: `engines` of `each.gpus`, beside `prefill` ones."""

    each: Engine
    engines: int
    prefill: int = 0

    @property
    def gpus(self) -> int:
        return (self.engines + self.prefill) * self.each.gpus


def model(config: ModelConfig, kv_dtype: str = "auto", weights_bytes: int = 0) -> Model:
    """Raises BadModel. `weights_bytes` 0: of the files beside it, or counted."""
    kept = dtype(config) if kv_dtype == "auto" else kv_dtype
    kinds = layers(config, kept)
    hidden = config.number("hidden_size", "n_embd", "d_model")
    return Model(
        family=config.family,
        kinds=kinds,
        weights=weights(config, kinds, weights_bytes),
        kv_dtype=kept,
        heads=heads(config)[0],
        hidden=hidden,
        widest=config.number("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden),
        vocabulary=config.number("vocab_size"),
        context=config.optional("max_position_embeddings", "n_positions"),
    )


def engine(model: Model, gpu: Gpu, gpus: int, load: Load) -> Engine | None:
    """None where not even one request fits, or the heads cannot be divided."""
    if model.heads % gpus:
        return None
    held = model.weights.bytes / gpus
    active = model.activation_bytes(gpus, load.chunk_tokens)
    room = gpu.memory_bytes * load.utilization - RUNTIME_BYTES - held - active
    each = model.bytes_on(gpus, load.tokens) / gpus
    requests = int(room / each) if room > 0 else 0
    return Engine(gpus, held, active, room, requests) if requests else None


def floors(model: Model, gpu: Gpu, load: Load) -> tuple[Floor | None, Floor | None]:
    """(aggregated, disaggregated): the fewest GPUs of each, None where none would do.

    Disaggregated serving needs the weights twice: an engine that prefills, with room for one
    prompt at least, beside as many as hold the KV of the whole load.
    """
    sizes = (engine(model, gpu, gpus, load) for gpus in ENGINE_GPUS)
    found = [each for each in sizes if each is not None]
    one = [Floor(each, -(-load.concurrency // each.requests)) for each in found]
    two = [Floor(floor.each, floor.engines, 1) for floor in one]
    return _least(one), _least(two)


def _least(floors: Iterable[Floor]) -> Floor | None:
    return min(floors, key=lambda floor: (floor.gpus, floor.each.gpus), default=None)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Of a load's KV over a link. `seconds` counts bytes; `seconds_gib_as_gb` is what comes out
    where GiB are taken for GB, as articles do; `seconds_real` at the share of its rate that a link
    gives in practice.
    """

    gbit_s: float
    seconds: float
    seconds_gib_as_gb: float
    seconds_real: float


REAL_SHARE = 0.7


def transfer(size: float, gbit_s: float) -> Transfer:
    seconds = size * 8 / (gbit_s * 1e9)
    return Transfer(gbit_s, seconds, size / GIB * 8 / gbit_s, seconds / REAL_SHARE)


_WORDS = {
    FULL: "every token kept",
    SLIDING: "sliding window",
    CHUNKED: "chunked window",
    LATENT: "latent (MLA)",
    RECURRENT: "recurrent state",
    NONE: "no attention",
}


def attention(model: Model) -> str:
    """In words: `32 layers, every token kept, GQA 32:8`."""
    parts = []
    for kind in model.kinds:
        text = f"{kind.count} layers, {_WORDS[kind.kind]}"
        if kind.window:
            text += f" of {kind.window}"
        if kind.kv_heads:
            how = {1: "MQA", model.heads: "MHA"}.get(kind.kv_heads, "GQA")
            text += f", {how} {model.heads}:{kind.kv_heads}"
        parts.append(text)
    return "; ".join(parts)
