"""What has happened to the KV events of one engine in this process, counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Tally:
    """Counts only go up."""

    batches: int = 0  # applied
    gaps: int = 0
    lost: int = 0  # batches that no replay could give
    restarts: int = 0
    replays: int = 0
    replays_failed: int = 0
    duplicates: int = 0
    overflows: int = 0  # times that batches waiting for a replay were too many
    malformed: int = 0  # frames that are no batch

    def plus(self, others: Iterable[Tally]) -> Tally:
        rows = zip(*(one.counts().values() for one in (self, *others)), strict=True)
        return Tally(*map(sum, rows))

    def counts(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
