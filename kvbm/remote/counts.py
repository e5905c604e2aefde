"""What the courier counts; the core cannot know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Blocks, unless said otherwise."""

    sent: int = 0
    sent_bytes: int = 0
    bundles: int = 0  # objects of several blocks
    bundled: int = 0  # sent in such
    bad_bundles: int = 0  # that were not what their name says
    deduped: int = 0
    send_failed: int = 0
    deleted: int = 0
    listed: int = 0
    opened: int = 0  # times the breaker opened
