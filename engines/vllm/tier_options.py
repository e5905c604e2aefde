"""What an operator may say about kvbm in vLLM's `--kv-transfer-config`. Pure but for the token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

NUMBERS = frozenset(("recompute_us_per_token", "load_s", "store_s", "patience_ms"))


@dataclass(frozen=True, slots=True)
class TierOptions:
    """`weights`: tells apart what goes by one model name (a revision). `salt`: engines with another
    share nothing. `recompute_us_per_token`: what computing takes; a load that would take longer is
    not offered (0: not known, all are). `patience_ms`: what a scheduler's step may wait for an
    answer. `socket_token`: `file:PATH` or `env:NAME`."""

    socket: str = "/run/kvbm/kvbm.sock"
    weights: str = ""
    salt: str = ""
    socket_token: str = ""
    recompute_us_per_token: float = 0.0
    load_s: float = 2.0
    store_s: float = 10.0
    patience_ms: float = 1.0
    locality: str | None = None  # vLLM's, for all tiers; a block's own place is used instead

    @classmethod
    def of(cls, said: Mapping[str, object]) -> TierOptions:
        """Raises ValueError with what is wrong."""
        known = {field.name: field for field in fields(cls)}
        unknown = sorted(set(said) - set(known))
        if unknown:
            raise ValueError(
                f"kvbm: unknown option `{unknown[0]}` in secondary_tiers; there are "
                + ", ".join(known)
            )
        for name, value in said.items():
            wanted = float if name in NUMBERS else str
            is_right = isinstance(value, wanted) or (wanted is float and isinstance(value, int))
            if value is not None and (not is_right or isinstance(value, bool)):
                kind = "a number" if wanted is float else "text"
                raise ValueError(f"kvbm: `{name}` in secondary_tiers is {kind}, not {value!r}")
        options = cls(**said)  # type: ignore[arg-type]
        for name in ("load_s", "store_s"):
            if not 0 < getattr(options, name) <= 3600:
                raise ValueError(f"kvbm: `{name}` is above 0 and at most 3600 s")
        if not 0 < options.patience_ms <= 1000:
            raise ValueError("kvbm: `patience_ms` is above 0 and at most 1000 ms")
        if options.recompute_us_per_token < 0:
            raise ValueError("kvbm: `recompute_us_per_token` is not negative")
        return options

    def token(self) -> bytes:
        """Raises ValueError where it cannot be read."""
        kind, _, place = self.socket_token.partition(":")
        if not self.socket_token:
            return b""
        if kind == "env" and place in os.environ:
            return os.environ[place].strip().encode()
        if kind == "file":
            try:
                with open(place, "rb") as file:
                    return file.read().strip()
            except OSError as error:
                raise ValueError(f"kvbm: socket_token {place}: {error.strerror}") from error
        raise ValueError("kvbm: `socket_token` is file:PATH or env:NAME of a variable that is set")
