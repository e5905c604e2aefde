"""One engine: one vLLM server of an upstream, over reloads the same object.

Invariant: it keeps its in-flight count (in the ledger), marks and connections for as long as its
address is in its upstream.
"""

from __future__ import annotations

from ssl import SSLContext
from typing import TYPE_CHECKING

from gateway.conf.model import EngineLine, Upstream
from gateway.disagg.pairs import Handing
from gateway.fleet.marks import Marks
from gateway.kv.trust import Trust
from native.relay import Pool

if TYPE_CHECKING:
    from gateway.fleet.ledger import Ledger
    from gateway.fleet.team import Team

TLS_POOLS_MAX = 64  # kinds of TLS connections to one engine


class Engine:
    """One vLLM server, or one rank of it. `slot` is its handle in the ledger."""

    __slots__ = (
        "address", "capacity_tokens", "checked", "context_tokens", "gone", "handing", "healthy",
        "host", "index_slot", "label", "ledger", "line", "marks", "models", "opened", "past",
        "place", "pools", "role", "slot", "team", "tls_pools", "trust", "upstream", "why",
    )  # fmt: skip

    address: str

    def __init__(self, upstream: str, line: EngineLine, ledger: Ledger, slot: int) -> None:
        self.upstream = upstream
        self.ledger = ledger
        self.line = line
        self.address = line.address
        self.role: str = line.role  # prefill | decode | both; may be moved at run time
        self.host = b"localhost" if line.unix_path else line.server.encode()
        self.label = self.host + (b"" if line.rank < 0 else b"#%d" % line.rank)  # for receipts
        self.slot = slot
        self.marks = Marks(line.max_fails, line.fail_timeout_s)
        self.healthy = True  # by active checks
        self.checked = False  # whether one has decided that yet
        self.gone = False  # a reload removed it; what runs there ends by itself
        self.why = ""  # what the last failed check said
        self.pools: list[Pool | None] = [None, None]  # http, https
        self.past = (0, 0, 0)  # what closed pools had opened, reused, failed to open
        self.opened = (0, 0, 0)  # the same over all pools, as last told to the shared memory
        self.tls_pools: dict[tuple[SSLContext, str], Pool] = {}  # of locations with proxy_ssl_*
        self.trust = Trust()
        self.handing = Handing()
        self.index_slot = -1  # in the index of cached blocks, -1 = it is not followed
        self.models: frozenset[str] | None = None  # names it serves; None = not known yet
        self.context_tokens = 0  # longest prompt and answer, 0 = not known
        self.capacity_tokens = 0  # of its KV cache, 0 = not known
        self.team: Team
        self.place = 0  # in its team

    def state(self, now: float) -> str:
        """One of: down, draining, unhealthy, benched, up."""
        if self.line.down:
            return "down"
        if self.line.drain:
            return "draining"
        if not self.healthy:
            return "unhealthy"
        return "benched" if self.marks.benched and now <= self.marks.until else "up"

    @property
    def pending(self) -> int:
        """Prompts computed here, or being computed, for another engine: of all workers."""
        return self.ledger.core.pending(self.slot)

    def pend(self, *, is_more: bool) -> None:
        """One more of them is this worker's, or one less."""
        self.ledger.core.pend(self.slot, is_more)

    def serves(self, model: str) -> bool:
        """Whether it may be asked for a model or adapter."""
        return self.models is None or model in self.models

    def counts(self) -> tuple[int, int, int]:
        """Connections opened, requests sent on idle ones, connections that failed, ever."""
        pools = self._all_pools()
        opened, reused, failed = self.past
        return (
            opened + sum(pool.opened for pool in pools),
            reused + sum(pool.reused for pool in pools),
            failed + sum(pool.connect_errors for pool in pools),
        )

    def _all_pools(self) -> list[Pool]:
        return [*(pool for pool in self.pools if pool is not None), *self.tls_pools.values()]

    def connections(self) -> tuple[int, int]:
        """Of this worker, now: idle, active."""
        pools = self._all_pools()
        return sum(pool.idle for pool in pools), sum(pool.active for pool in pools)

    def replace_pool(self, at: int, pool: Pool) -> None:
        """A pool with other settings; the former one's connections end with their exchanges."""
        former = self.pools[at]
        if former is not None:
            self._retire(former)
        self.pools[at] = pool

    def _retire(self, pool: Pool) -> None:
        opened, reused, failed = self.past
        self.past = (
            opened + pool.opened, reused + pool.reused, failed + pool.connect_errors,
        )  # fmt: skip
        pool.close()

    def secured(self, context: SSLContext, name: str) -> Pool:
        """The connections made with a context and a name to check and to send ("" = none)."""
        pool = self.tls_pools.get((context, name))
        if pool is None:
            if len(self.tls_pools) >= TLS_POOLS_MAX:
                self._close_secured()
            pool = self.open_pool(self.team.group.conf, context, name)
            self.tls_pools[context, name] = pool
        return pool

    def open_pool(self, conf: Upstream, context: SSLContext | None, name: str) -> Pool:
        return Pool(
            host=self.line.host,
            port=self.line.port,
            unix_path=self.line.unix_path,
            ssl=context,
            server_hostname=name,
            max_idle=conf.keepalive,
            idle_s=conf.keepalive_timeout_s,
            max_requests=conf.keepalive_requests,
        )

    def _close_secured(self) -> None:
        for pool in self.tls_pools.values():
            self._retire(pool)
        self.tls_pools.clear()

    def close(self) -> None:
        for pool in self.pools:
            if pool is not None:
                pool.close()
        self._close_secured()
