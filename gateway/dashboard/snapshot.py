"""What the page is told once a second: one JSON object, from two readings. Pure.

`VERSION` grows when a name leaves or changes its meaning; new names may come at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.dashboard.figures import Totals, figures, grown

VERSION = 1
Document = dict[str, Any]
_NOTHING = Totals()


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything at one moment. `status`: as `/kvgate/status` has it, with `load` per engine."""

    at: float  # monotonic seconds
    wall: float
    status: Document
    totals: dict[str, Totals] = field(default_factory=dict)  # by upstream
    slo_s: dict[str, dict[str, float]] = field(default_factory=dict)  # by upstream and histogram
    matched: dict[str, int] = field(default_factory=dict)  # prompt tokens by tier
    prompt_tokens: int = 0  # of prompts routed by them
    compared: dict[str, int] = field(default_factory=dict)  # tokens expected, and cached
    legs: dict[str, int] = field(default_factory=dict)  # requests by why two engines or one
    transfers: dict[str, int] = field(default_factory=dict)  # by their end; `pending`
    planned: dict[str, Document] = field(default_factory=dict)  # by upstream: the last plan


def snapshot(
    now: Reading,
    before: Reading,
    bounds: dict[str, tuple[float, ...]],
    happened: Iterable[Document] = (),
    receipts: Iterable[Document] = (),
) -> Document:
    """`before`: the start of the stretch that rates and percentiles are of. `happened`, `receipts`:
    the newest last, shown newest first.
    """
    seconds = now.at - before.at
    status = now.status
    return {
        "version": VERSION,
        "at": round(now.wall, 3),
        "over_s": round(seconds, 3),
        "gateway": {name: value for name, value in status.items() if name != "upstreams"},
        "upstreams": {
            name: _upstream(name, group, now, before, bounds)
            for name, group in status["upstreams"].items()
        },
        "kv": _kv(now, before),
        "legs": {
            "requests": _present(now.legs),
            "transfers": now.transfers,
        },
        "changes": list(happened)[::-1],
        "decisions": list(receipts)[::-1],
        "planner": now.planned,
    }


def _upstream(
    name: str,
    group: Document,
    now: Reading,
    before: Reading,
    bounds: dict[str, tuple[float, ...]],
) -> Document:
    slo_s = now.slo_s.get(name, {})
    found = figures(
        now.totals.get(name, _NOTHING),
        before.totals.get(name, _NOTHING),
        now.at - before.at,
        bounds,
        slo_s,
    )
    former = before.status["upstreams"].get(name, {"engines": []})
    sent = {engine["address"]: engine["load"]["dispatched"] for engine in former["engines"]}
    seconds = now.at - before.at
    return {
        "models": group["models"],
        "balance": group["balance"],
        "tokenizer": None if group["tokenizer"] is None else group["tokenizer"]["state"],
        "slo_s": slo_s,
        "figures": {key: _round(value) for key, value in found.items()},
        "roles": count_roles(group["engines"]),
        "engines": [
            engine
            | {
                "sent_per_s": _round(
                    grown(engine["load"]["dispatched"], sent[engine["address"]]) / seconds
                    if engine["address"] in sent and seconds > 0
                    else None
                )
            }
            for engine in group["engines"]
        ],
    }


def count_roles(engines: Sequence[Document]) -> dict[str, int]:
    roles = {"prefill": 0, "decode": 0, "both": 0}
    for engine in engines:
        roles[engine["role"]] += 1
    return roles


def _kv(now: Reading, before: Reading) -> Document:
    asked = grown(now.prompt_tokens, before.prompt_tokens)
    return {
        "prompt_tokens": asked,
        "matched": {
            tier: grown(count, before.matched.get(tier, 0)) for tier, count in now.matched.items()
        },
        "compared": {
            kind: grown(count, before.compared.get(kind, 0)) for kind, count in now.compared.items()
        },
    }


def changes(now: Reading, before: Reading) -> list[Document]:
    """What became of engines and of the configuration between two readings."""
    out: list[Document] = []

    def say(kind: str, where: str, what: str) -> None:
        out.append({"at": round(now.wall, 3), "kind": kind, "where": where, "what": what})

    if now.status["generation"] != before.status["generation"]:
        say("configuration", "", f"generation {now.status['generation']} is loaded")
    if now.status["reload_error"] and now.status["reload_error"] != before.status["reload_error"]:
        say("configuration", "", f"not loaded: {now.status['reload_error']}")
    engines, former = _engines(now), _engines(before)
    for key, engine in engines.items():
        was, where = former.get(key), " ".join(key)
        if was is None:
            say("engine", where, "added")
            continue
        for kind, old, new in (
            ("role", was["role"], engine["role"]),
            ("state", was["state"], engine["state"]),
            ("trust", _trust(was), _trust(engine)),
        ):
            if old != new:
                why = engine["why"] if kind == "state" and new != "up" else ""
                say(kind, where, f"{old} → {new}" + (f": {why}" if why else ""))
    for key in former.keys() - engines.keys():
        say("engine", " ".join(key), "removed")
    return out


def _engines(reading: Reading) -> dict[tuple[str, str], Document]:
    return {
        (name, engine["address"]): engine
        for name, group in reading.status["upstreams"].items()
        for engine in group["engines"]
    }


def _trust(engine: Document) -> str:
    return "not followed" if engine["kv"] is None else str(engine["kv"]["worst"])


def _present(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
