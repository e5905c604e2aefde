"""What the command line shows of a daemon's answers, as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def octets(count: float) -> str:
    """`1.5 GiB`."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """`3d 4h`, `12s`: the two largest units."""
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count:.0f}{unit}")
    return " ".join(parts[:2])


def stat(document: Mapping[str, Any]) -> str:
    """`kvbm stat`: one paragraph per tier, then what engines did."""
    counters = document["counters"]
    head = (
        f"kvbm {document['version']}, process {document['pid']}, up "
        f"{duration(document['uptime_s'])}: {document['state']}"
    )
    lines = [head, f"socket {document['socket']}, {counters.get('sessions', 0)} engines connected"]
    for name, tier in document["tiers"].items():
        lines += ["", *_tier(name, tier)]
    shown = {name: value for name, value in counters.items() if value and name != "boot"}
    lines += ["", *(f"{name:<26}{value}" for name, value in sorted(shown.items()))]
    for row in document["namespaces"]:
        lines.append(f"namespace {row['fingerprint'][:16]}  {_model(row['descriptor'])}")
    return "\n".join(lines)


def _tier(name: str, tier: Mapping[str, Any]) -> list[str]:
    used, most = tier.get("used_bytes"), tier.get("capacity_bytes")
    head = f"{name}: {tier.get('blocks', 0)} blocks"
    if used is not None and most:
        head += f", {octets(used)} of {octets(most)} ({100 * used / most:.0f} %)"
    lines = [head if tier.get("good", 1) else f"{head}: does not serve"]
    if tier.get("trouble"):
        lines.append(f"  trouble: {tier['trouble']}")
    skipped = ("blocks", "used_bytes", "capacity_bytes", "trouble", "good")
    lines += [f"  {key:<24}{value}" for key, value in tier.items() if value and key not in skipped]
    return lines


def _model(descriptor: Any) -> str:
    if isinstance(descriptor, dict):
        return " ".join(f"{key}={value}" for key, value in descriptor.items())[:160]
    return str(descriptor)[:160]


def blocks(rows: list[Mapping[str, Any]]) -> str:
    """`kvbm ls`: one line per block."""
    return "\n".join(
        f"{row['namespace'][:16]}  {row['key']}  {row['bytes'] or '?':>10}  {row['hits']}  "
        f"{' '.join(row['tiers'])}"
        for row in rows
    )


def verified(report: Mapping[str, Any]) -> str:
    """`kvbm verify`: the counts of each tier, then one line per block that was lost."""
    heads, rows, bad = [], report["blocks"], report["bad"]
    if report["ever"]:
        heads.append(_read("disk", report, "forgotten"))
    store = report["remote"]
    if store is not None:
        heads.append(_read("remote", store, "deleted"))
        bad += store["bad"]
        if store["why"]:
            heads.append(f"remote: not all, {store['failed']} objects failed: {store['why']}")
    lines = [
        f"{row['namespace'][:16]}  {row['key']}  {row['tier']}"
        + ("" if row["certain"] else "  bad or evicted")
        for row in rows
    ]
    if len(rows) < bad:
        lines.append(f"and {bad - len(rows)} that cannot be named")
    return "\n".join([*heads, *lines])


def _read(tier: str, report: Mapping[str, Any], fate: str) -> str:
    state = "done" if report["done"] else "under way"
    return (
        f"{tier}: {report['checked']} blocks, {octets(report['bytes'])} read, {report['bad']} bad "
        f"and {fate}: {state}"
    )


def dropped(report: Mapping[str, Any]) -> str:
    """`kvbm drop`: blocks by tier."""
    counts = {tier: report[tier] for tier in ("host", "disk", "remote")}
    said = ", ".join(f"{tier} {count}" for tier, count in counts.items())
    state = "blocks dropped" if report["done"] else "blocks dropped so far"
    return f"{state}: {said} ({report['objects']} objects)"


def not_dropped(report: Mapping[str, Any]) -> str:
    """What is left of what should have gone; empty: nothing."""
    if not report["why"]:
        return ""
    left = f"{report['failed']} could not be deleted" if report["failed"] else "not all was done"
    return f"{left}: {report['why']}"
