"""Fuzzes what a client may say to kvbm's daemon: frames of KVM1, whole, cut, mutated, in any order.

Oracles: the daemon lives, an honest engine beside it is served, and nothing of a session that ended
is left.
"""

from __future__ import annotations

import argparse
import random
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2] / part) for part in ("", "tests")]

from harness.blocks import BLOCK, DESCRIPTOR, PROBE, Engine
from harness.waiting import until

from native import _core

OPS = range(0, 25)
HEAD = struct.Struct("<IHBB4xIQIIQQQ8x")
MAGIC = int.from_bytes(b"KVM1", "little")
ANSWERED = 0x80


def _table() -> list[int]:
    """CRC-32C (Castagnoli), byte by byte."""
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def frame(op: int, payload: bytes = b"", **fields: int) -> bytes:
    """A frame whose checksum is right, whatever it says."""
    head = HEAD.pack(
        MAGIC, 1, op, fields.get("flags", 0), fields.get("count", 0), fields.get("request", 1),
        fields.get("length", len(payload)), 0, fields.get("job", 1), fields.get("deadline", 0),
        fields.get("extra", 0),
    )  # fmt: skip
    whole = head + payload
    return whole[:28] + struct.pack("<I", crc32c(whole)) + whole[32:]


def hello(block: int = BLOCK) -> bytes:
    engine = b"fuzz"
    fixed = struct.pack("<HHI32sIIIII", 1, 1, 0, PROBE, block, 0, len(engine), 0, len(DESCRIPTOR))
    return frame(1, fixed + engine + DESCRIPTOR)


def anything(dice: random.Random) -> bytes:
    """A frame of some kind with some payload."""
    sizes = (0, 1, 8, 16, 32, 36, 64, 1024, 4096)
    payload = dice.randbytes(dice.choice(sizes)) if dice.random() < 0.7 else bytes(64)
    count = dice.choice((0, 1, 2, len(payload) // 32, 4096, 2**32 - 1))
    return frame(
        dice.choice(OPS), payload, flags=dice.randrange(256) if dice.random() < 0.3 else 0,
        count=count, request=dice.getrandbits(64), job=dice.randrange(4),
        deadline=dice.choice((0, 1, 2**63)), extra=dice.choice((0, 1, 2**64 - 1)),
    )  # fmt: skip


def mutated(data: bytes, dice: random.Random) -> bytes:
    raw = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        raw[dice.randrange(len(raw))] = dice.randrange(256)
    return bytes(raw[: dice.randrange(1, len(raw) + 1)] if dice.random() < 0.3 else raw)


def session(path: str, dice: random.Random) -> None:
    """One connection's worth of talk."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(2.0)
        sock.connect(path)
        try:
            if dice.random() < 0.8:
                sock.sendall(hello(dice.choice((BLOCK, 1, 64 << 20, 0))))
            for _ in range(dice.randrange(1, 20)):
                one = anything(dice)
                sock.sendall(mutated(one, dice) if dice.random() < 0.3 else one)
            if dice.random() < 0.5:
                sock.recv(1 << 16)
        except OSError:
            return  # it was thrown out, as it should be


def is_understood(path: str) -> bool:
    """Whether the daemon takes these frames for its own: without that nothing here is tested."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5.0)
        sock.connect(path)
        sock.sendall(hello() + frame(14) + frame(21, bytes(32), count=1) + frame(15))
        heard = b""
        while heard.count(b"KVM1") < 3:
            heard += sock.recv(1 << 16)
        return heard[6] == 1 | ANSWERED


def run(seconds: float, seed: int) -> int:
    """How many sessions there were."""
    dice, count, end = random.Random(seed), 0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as root:
        disk = _core.KvbmDisk(f"{root}/disk", 64 << 20, segment_bytes=1 << 20)
        core = _core.KvbmCore(f"{root}/s", disk=disk, host_bytes=8 << 20, orphan_s=0.5)
        try:
            with Engine(f"{root}/s") as honest:
                honest.up().store([1])
                assert is_understood(f"{root}/s")
                while time.monotonic() < end:
                    session(f"{root}/s", dice)
                    count += 1
                    if count % 50 == 0:
                        assert core.running, "the daemon died"
                        assert honest.load([1]).ok, "an honest engine is not served"
                        assert honest.holds(0, 1)
                until(lambda: core.stats()["sessions"] == 1, "that all are gone")
                until(lambda: core.stats()["host_held"] == 0, "that their slots are free", 15.0)
        finally:
            core.stop()
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description="fuzzes the daemon's protocol")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{run(options.seconds, options.seed)} sessions, the daemon lives")


if __name__ == "__main__":
    main()
