"""Step-time model of an engine: how long one batch step takes, and the built-in profiles.

    step_ms = max(base, a0 + b*N + c*sum(n*(p + n/2))) + hb*B + hk*sum(KV) + overhead

N = prefill tokens in the step, n of one request of which p are already there, B = decoding
requests, KV = their context lengths. The constants are fits to kernel measurements (BF16); the
overhead of 1 ms a step stands for the scheduler. A real engine is up to 1.4 times slower when its
cache is full: that is what `--time-scale` is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Profile:
    """Timing in ms, sizes in tokens and bytes."""

    name: str
    base_ms: float = 0.0
    a0_ms: float = 0.0
    b_ms: float = 0.0
    c_ms: float = 0.0
    hb_ms: float = 0.0
    hk_ms: float = 0.0
    overhead_ms: float = 0.0
    kv_tokens: int = 262_144
    kv_bytes_per_token: int = 1_024
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2_048
    transfer_base_ms: float = 0.0
    link_gb_s: float = 0.0  # 0 = transfers take no time

    def step_ms(self, prefills: Iterable[tuple[int, int]], decodes: int, kv_tokens: int) -> float:
        """Milliseconds of one step; `prefills` are (tokens computed now, tokens already there)."""
        total, quadratic = 0, 0.0
        for now, there in prefills:
            total += now
            quadratic += now * (there + now / 2)
        linear = self.a0_ms + self.b_ms * total + self.c_ms * quadratic
        step = linear if linear > self.base_ms else self.base_ms
        return step + self.hb_ms * decodes + self.hk_ms * kv_tokens + self.overhead_ms


_KB_8B, _KB_70B = 131_072, 327_680


def _gpu(name: str, fit: tuple[float, float, float, float, float, float], kv_tokens: int,
         kv_bytes: int, big: bool) -> Profile:
    base, a0, b, c, hb, hk = fit
    return Profile(
        name, base, a0, b, c, hb, hk, overhead_ms=1.0, kv_tokens=kv_tokens,
        kv_bytes_per_token=kv_bytes, max_num_seqs=1024 if big else 256,
        max_num_batched_tokens=8192 if big else 2048, transfer_base_ms=2.0, link_gb_s=50.0,
    )


PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        Profile("zero"),
        _gpu("h100-8b-tp1", (6.42, 1.23, 0.02036, 7.89e-7, 0.0110, 4.19e-5), 430_000, _KB_8B, True),
        _gpu("h200-8b-tp1", (4.96, 0.56, 0.02054, 8.08e-7, 0.0117, 2.95e-5), 840_000, _KB_8B, True),
        _gpu("a100-8b-tp1", (11.54, 6.98, 0.05490, 2.98e-6, 0.0267, 8.65e-5), 430_000, _KB_8B,
             False),
        _gpu("h100-70b-tp4", (15.2, 4.33, 0.06251, 9.50e-7, 0.0322, 2.65e-5), 461_000, _KB_70B,
             True),
        _gpu("h100-70b-tp8", (9.98, 5.93, 0.03892, 4.67e-7, 0.0239, 1.33e-5), 1_320_000, _KB_70B,
             True),
        _gpu("a100-70b-tp4", (27.7, 28.3, 0.14836, 3.71e-6, 0.100, 5.63e-5), 461_000, _KB_70B,
             False),
    )
}


_CONSTANTS = ("base", "a0", "b", "c", "hb", "hk", "ovh")  # as the gateway's `profile` has them


def profile(name: str) -> Profile:
    """A built-in profile; one with other constants (`h100-8b-tp1,b=0.04,c=0`); or `fixed:MS`:
    every step takes MS milliseconds. Raises ValueError.
    """
    base, *changes = name.split(",")
    kind, _, value = base.partition(":")
    try:
        if kind == "fixed" and value:
            found = replace(PROFILES["zero"], name=name, base_ms=float(value))
        else:
            found = PROFILES[base]
        changed: dict[str, Any] = dict(map(_constant, changes))
        return replace(found, **changed)
    except (KeyError, ValueError):
        raise ValueError(
            f"unknown profile `{name}`\nhint: one of {', '.join(PROFILES)}, or fixed:MS; constants "
            f"in ms may follow (,b=0.02): {', '.join(_CONSTANTS)}"
        ) from None


def _constant(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in _CONSTANTS:
        raise ValueError(text)
    return f"{'overhead' if name == 'ovh' else name}_ms", float(value)
