"""Amounts as options of the command line write them; each reads one, or says what would be one."""

from __future__ import annotations

import argparse

from gateway.conf.units import BadValue, seconds


def slo(text: str) -> tuple[float, float]:
    """`ttft=2s,tpot=50ms`, either or both, in seconds."""
    found = dict(slos(text, ("ttft", "tpot")))
    return found.get("ttft", 0.0), found.get("tpot", 0.0)


def slos(text: str, names: tuple[str, ...]) -> list[tuple[str, float]]:
    """`ttft=2s,e2el=30s`: some of the names, in seconds."""
    found = []
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if name not in names or not equals:
            wanted = " or ".join(f"{name}=TIME" for name in names)
            raise argparse.ArgumentTypeError(f'"{part}" is not {wanted}')
        try:
            found.append((name, seconds(value)))
        except BadValue as error:
            raise argparse.ArgumentTypeError(f'"{part}": {error.expected}') from error
    return found


def time(text: str) -> float:
    """In seconds."""
    try:
        return seconds(text)
    except BadValue as error:
        raise argparse.ArgumentTypeError(f'"{text}": {error.expected}') from error


def count(text: str) -> int:
    """`461000`, `461k`, `2m`."""
    units = {"k": 1_000, "m": 1_000_000}
    digits, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    if not digits.isdecimal() or len(digits) > 12:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number such as 461000, 461k or 2m')
    return int(digits) * unit


def some(text: str) -> int:
    """A `count` of at least one."""
    found = count(text)
    if found == 0:
        raise argparse.ArgumentTypeError(f'"{text}" is not at least 1')
    return found


def share(text: str) -> float:
    found = number(text)
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a share such as 0.9')
    return found


def gib(text: str) -> float:
    found = number(text)
    if not 0 <= found < 1e9:
        raise argparse.ArgumentTypeError(f'"{text}" is not a size in GiB')
    return found


def rates(text: str) -> list[float]:
    """In Gbit/s."""
    found = [number(part) for part in text.split(",")]
    if not all(0 < rate < 1e6 for rate in found):
        raise argparse.ArgumentTypeError(f'"{text}" is not a list of Gbit/s such as 100,400')
    return found


def number(text: str) -> float:
    """-1 for what is none, which no amount may be."""
    try:
        return float(text)
    except ValueError:
        return -1.0
