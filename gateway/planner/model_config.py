"""A model's `config.json`, read as far as sizes go: names that families give to the same thing.

Invariant: a number that is needed and is not there, or cannot be, is a `BadModel` that names it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class BadModel(ValueError):
    """The file and what is wrong there."""


class ModelConfig:
    """The text part of a configuration: a multimodal model's `text_config` before the whole."""

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self.source = source
        inner: dict[str, Any] = next(
            (values[key] for key in _INNER if isinstance(values.get(key), dict)), {}
        )
        self._values = {**values, **inner}

    @classmethod
    def read(cls, path: Path) -> ModelConfig:
        """Of a file, or of the folder it lies in. Raises BadModel, OSError."""
        path = path / "config.json" if path.is_dir() else path
        try:
            values = json.loads(path.read_text())
        except ValueError as error:
            raise BadModel(f"{path}: {error}") from error
        if not isinstance(values, dict):
            raise BadModel(f"{path}: it is not a JSON object")
        return cls(values, str(path))

    def get(self, *names: str) -> Any:
        """The first of the names that has a value; None."""
        found = (self._values.get(name) for name in names)
        return next((value for value in found if value is not None), None)

    def number(self, *names: str, default: int | None = None) -> int:
        """A positive number. Raises BadModel for none without a default, or one that cannot be."""
        value = self.get(*names)
        if value is None:
            if default is None:
                raise BadModel(f"{self.source}: it has no `{'` or `'.join(names)}`")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
            raise BadModel(f"{self.source}: `{names[0]}` cannot be {value!r}")
        return value

    def optional(self, *names: str) -> int:
        """As `number`; 0 where it is absent or 0."""
        return 0 if self.get(*names) in (None, 0, False) else self.number(*names)

    def words(self, name: str) -> Sequence[str] | None:
        """A list of words, such as `layer_types`."""
        value = self.get(name)
        is_list = isinstance(value, list) and all(isinstance(word, str) for word in value)
        return value if is_list else None

    @property
    def family(self) -> str:
        return str(self.get("model_type") or "model")


_INNER = ("text_config", "llm_config", "language_config")

# Bits of a stored number, by the names that configurations and vLLM's options use.
BITS = {
    "float32": 32, "fp32": 32, "bfloat16": 16, "bf16": 16, "float16": 16, "fp16": 16, "half": 16,
    "float8_e4m3fn": 8, "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "int8": 8,
    "mxfp4": 4, "nvfp4": 4, "fp4": 4, "int4": 4,
}  # fmt: skip
DTYPE = "bfloat16"


def dtype(config: ModelConfig) -> str:
    """What the model computes in, and keeps its KV in unless it is told otherwise."""
    name = str(config.get("dtype", "torch_dtype") or DTYPE)
    if name not in BITS:
        raise BadModel(
            f"{config.source}: a dtype `{name}` is not known; there are {', '.join(BITS)}"
        )
    return name


def weight_bits(config: ModelConfig) -> tuple[str, float]:
    """How most weights are stored: its name, and bits of a weight."""
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        name = dtype(config)
        return name, BITS[name]
    method = str(found.get("quant_method") or "quantized")
    bits = found.get("bits") or found.get("w_bit") or _compressed_bits(found)
    if bits is None and found.get("load_in_4bit"):
        bits = 4
    if bits is None:
        bits = BITS.get(method, 8)
    # Scales of groups of 128 or so.
    return method, float(bits) * (1.03 if bits < 8 else 1.0)


def _compressed_bits(found: dict[str, Any]) -> float | None:
    """Of compressed-tensors, which names its groups."""
    groups = found.get("config_groups")
    if not isinstance(groups, dict):
        return None
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and isinstance(weights.get("num_bits"), int):
            return float(weights["num_bits"])
    return None
