"""Kinds of GPU: how much memory each has, as its driver reports it.

Step times are not here: profiles hold what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30
PER_NODE = 8


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_bytes: int


_MEMORY_MIB = {
    "l4": 23_034, "a10": 23_028, "rtx4090": 24_564, "a100-40": 40_960, "l40s": 46_068,
    "a100": 81_920, "h100": 81_559, "h20": 97_871, "h200": 143_771, "b200": 183_359,
    "mi300x": 196_592,
}  # fmt: skip
GPUS = {name: Gpu(name, mib * MIB) for name, mib in _MEMORY_MIB.items()}


def gpu(name: str) -> Gpu:
    """By its name, or its memory as `80GiB` or `80GB`. Raises ValueError for one there is not."""
    if name in GPUS:
        return GPUS[name]
    for unit, size in (("GiB", GIB), ("GB", 10**9)):
        digits = name.removesuffix(unit)
        if digits != name and digits.isdecimal() and 0 < int(digits) < 10_000:
            return Gpu(name, int(digits) * size)
    raise ValueError(f'there is no GPU "{name}"; there are {", ".join(GPUS)}, or a size: 80GiB')
