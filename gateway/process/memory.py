"""What all processes of one gateway share: in-flight counts, statistics, health, heartbeats.

Invariant: each process writes to its own slot only, and a slot is taken back (`retire`) when its
process has ended, never before. The memory is made by the master and inherited over fork.
"""

from __future__ import annotations

from gateway.disagg.counts import DisaggCounts
from gateway.fleet.ledger import ENGINES_MAX, Ledger
from gateway.kv.board import Board
from gateway.kv.counts import KvCounts
from gateway.kv.event_counts import EventCounts
from gateway.process.delay import Delays
from gateway.site.limits import Zones
from gateway.stats import Statistics

MONITOR_SLOT = 0  # the monitor's; workers have the others
SLOTS_MIN = 16


def slots_for(workers: int) -> int:
    """Slots for twice as many workers, as those that drain overlap with their successors, with
    room to grow by a reload.
    """
    return max(SLOTS_MIN, 4 * workers + 4)


class Memory:
    """`slots` None: this process is alone and writes at once."""

    def __init__(self, slots: int | None = None) -> None:
        self.slots = slots or 1
        first = 0 if slots is None else None
        self.ledger = Ledger(self.slots, first)
        self.stats = Statistics(self.slots, first)
        self.kv = KvCounts(self.slots, first)
        self.disagg = DisaggCounts(self.slots, first)
        self.events = EventCounts(self.slots, first)
        self.trust = Board(self.slots, ENGINES_MAX, first)
        self.zones = Zones(self.slots, first)
        self.delays = Delays(self.slots, first)

    def bind(self, slot: int) -> None:
        """Makes this process the writer of a slot. Raises ValueError where it is taken."""
        self.ledger.core.bind(slot)
        self.stats.bind(slot)
        self.kv.bind(slot)
        self.disagg.bind(slot)
        self.events.bind(slot)
        self.trust.bind(slot)
        self.zones.bind(slot)
        self.delays.bind(slot)

    def retire(self, slot: int) -> None:
        """Takes back what an ended process had in flight; what it counted stays."""
        self.ledger.core.retire(slot)
        self.stats.retire(slot)
        self.kv.retire(slot)
        self.disagg.retire(slot)
        self.events.retire(slot)
        self.trust.retire(slot)
        self.zones.retire(slot)
