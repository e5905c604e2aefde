"""Metrics of disaggregated serving, declared once, and the collector that fills them.

Counts are of all workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.disagg.counts import HISTOGRAMS
from gateway.disagg.roles import role_of
from gateway.disagg.transfer import ENDS
from gateway.kv.routed import WHYS
from gateway.metrics import Declared, add, buckets, families
from gateway.planner.roles import ROLES

if TYPE_CHECKING:
    from gateway.disagg.counts import DisaggCounts
    from gateway.fleet.engines import EngineTable

DECIDED = Declared(
    "kvgate_disaggregated_requests_total", "counter", ("why",),
    "requests of disaggregated upstreams, by why two engines or one served them",
)  # fmt: skip
TRANSFERS = Declared(
    "kvgate_transfers_total", "counter", ("end",),
    "prompts computed to be fetched by another engine, by what became of them: used, failed,"
    " released (let go, as nobody fetches them), orphaned (kept until their lease ends)",
)  # fmt: skip
TOKENS = Declared(
    "kvgate_transfer_prompt_tokens_total", "counter", (),
    "tokens of prompts computed for another engine", "tokens",
)  # fmt: skip
REDONE = Declared(
    "kvgate_transfers_redone_total", "counter", (),
    "answers that failed before a byte and were made anew from the prefill on",
)  # fmt: skip
AGAIN = Declared(
    "kvgate_prefills_asked_again_total", "counter", (),
    "prefills asked for once more, as a decode engine waited for blocks that were to be pushed",
)  # fmt: skip
APART = Declared(
    "kvgate_transfer_pairs_barred_total", "counter", (),
    "times that a decode engine could not fetch from a prefill engine, and the two were kept apart",
)  # fmt: skip
PENDING = Declared(
    "kvgate_transfers_pending", "gauge", (),
    "prompts being computed for another engine, or waiting to be fetched",
)  # fmt: skip
PREFILL = Declared(
    "kvgate_prefill_leg_seconds", "histogram", (), "time of a prefill leg", "seconds"
)
SECOND = Declared(
    "kvgate_second_leg_delay_seconds", "histogram", (),
    "time from a prefill engine's reply to the request to the decode engine", "seconds",
)  # fmt: skip
FETCH = Declared(
    "kvgate_fetch_seconds", "histogram", (),
    "time from the request to a decode engine to its first output, streams only", "seconds",
)  # fmt: skip
ENGINES = Declared(
    "kvgate_role_engines", "gauge", ("upstream", "role"),
    "engines of an upstream with elastic roles that have a role now",
)  # fmt: skip
MOVES = Declared(
    "kvgate_role_moves_total", "counter", ("role",),
    "engines that were given another role because of the load, by the new one",
)  # fmt: skip

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Declared))


class DisaggCollector(Collector):
    def __init__(self, counts: DisaggCounts, table: EngineTable) -> None:
        self._counts, self._table = counts, table

    def collect(self) -> Iterator[Metric]:
        made = families(ALL)
        count = self._counts.count
        for why in WHYS:
            add(made, DECIDED, (why,), count(f"why/{why}"))
        for end in ENDS:
            add(made, TRANSFERS, (end,), count(f"end/{end}"))
        sums = ((TOKENS, "tokens"), (REDONE, "redone"), (AGAIN, "again"), (APART, "apart"))
        for metric, name in sums:
            add(made, metric, (), count(name))
        add(made, PENDING, (), count("pending"))
        for metric, name in ((PREFILL, "prefill"), (SECOND, "second"), (FETCH, "fetch")):
            counts, total = self._counts.histogram(name)
            rows = buckets(HISTOGRAMS[name], counts)
            made[metric.name].add_metric((), rows, total)  # type: ignore[attr-defined]
        for role in ROLES:
            add(made, MOVES, (role,), count(f"role/{role}"))
        for name, group in self._table.groups.items():
            if group.conf.disaggregation.roles == "elastic":
                now = [role_of(self._table.ledger, engine) for engine in group.engines]
                for role in ROLES:
                    add(made, ENGINES, (name, role), now.count(role))
        yield from made.values()
