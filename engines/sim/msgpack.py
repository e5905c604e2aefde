"""The part of msgpack that KV events need, encoded byte for byte as vLLM's encoder does."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

_U16, _U32, _U64 = struct.Struct(">BH").pack, struct.Struct(">BI").pack, struct.Struct(">BQ").pack
_I8, _I16, _I32, _I64 = (struct.Struct(f).pack for f in (">Bb", ">Bh", ">Bi", ">Bq"))
_F64 = struct.Struct(">Bd").pack


def pack_int(value: int) -> bytes:
    """Raises OverflowError beyond 64 bits."""
    if value >= 0:
        if value < 0x80:
            return bytes((value,))
        if value < 0x100:
            return bytes((0xCC, value))
        if value < 0x10000:
            return _U16(0xCD, value)
        if value < 0x1_0000_0000:
            return _U32(0xCE, value)
        if value < 1 << 64:
            return _U64(0xCF, value)
        raise OverflowError(f"{value} does not fit 64 bits")
    if value >= -32:
        return bytes((value & 0xFF,))
    if value >= -0x80:
        return _I8(0xD0, value)
    if value >= -0x8000:
        return _I16(0xD1, value)
    if value >= -0x8000_0000:
        return _I32(0xD2, value)
    return _I64(0xD3, value)


def _head(length: int, fix: int, fix_max: int, wide: tuple[int, int, int]) -> bytes:
    if length <= fix_max:
        return bytes((fix | length,))
    if wide[0] and length < 0x100:
        return bytes((wide[0], length))
    if length < 0x10000:
        return _U16(wide[1], length)
    return _U32(wide[2], length)


def pack(value: Any) -> bytes:
    """Raises TypeError for a type no event holds."""
    if type(value) is int:  # first: events are lists of thousands of them
        return pack_int(value)
    if value is None:
        return b"\xc0"
    if value is True:
        return b"\xc3"
    if value is False:
        return b"\xc2"
    if isinstance(value, str):
        data = value.encode()
        return _head(len(data), 0xA0, 31, (0xD9, 0xDA, 0xDB)) + data
    if isinstance(value, float):
        return _F64(0xCB, value)
    if isinstance(value, bytes):
        return _head(len(value), 0, -1, (0xC4, 0xC5, 0xC6)) + value
    if isinstance(value, Mapping):
        parts = [_head(len(value), 0x80, 15, (0, 0xDE, 0xDF))]
        for key, item in value.items():
            parts.append(pack(key))
            parts.append(pack(item))
        return b"".join(parts)
    if isinstance(value, Sequence):
        return _head(len(value), 0x90, 15, (0, 0xDC, 0xDD)) + b"".join(map(pack, value))
    raise TypeError(f"cannot pack {type(value).__name__}")
