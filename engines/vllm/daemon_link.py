"""An engine's connection to kvbm's daemon: when it begins, who looks for a daemon that went away,
what is said of both.

Invariant: nothing here waits for the daemon on the scheduler's thread, but for the first request:
50 ms, if the socket is there.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

import vllm
from vllm.v1.core import kv_cache_utils

from engines.vllm.kv_namespace import KvFormat, LayerGroup, Topology, probe
from engines.vllm.tier_options import TierOptions
from engines.vllm.weights import weights_of
from native import _core

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec

# A name below vLLM's own, which alone has handlers in an engine.
LOG = logging.getLogger("vllm.kvbm")
SAY_S = 10.0
# The first request waits so long for a daemon whose socket is there: what it could load is found
# then, after a restart of the engine.
FIRST_S = 0.05
# An engine without requests asks nothing; a daemon that came back is looked for all the same.
LOOK_S = 0.25
BLOCK_MAX = 64 << 20
ENGINE_MAX = 256


class DaemonLink:
    """`row`: bytes of a block. Raises ValueError where the configuration cannot work."""

    def __init__(self, spec: OffloadingSpec, options: TierOptions, row: int) -> None:
        if "NONE_HASH" not in kv_cache_utils.__annotations__:
            raise ValueError(unknown_version("the seed of its block hashes"))
        if row > BLOCK_MAX:
            raise ValueError(
                f"kvbm: a chunk of KV cache has {row} bytes, at most {BLOCK_MAX} are possible; "
                "set a smaller `block_size` in kv_connector_extra_config"
            )
        self._options, self._row = options, row
        self._token = options.token()
        self._engine = spec.config.engine_id[:ENGINE_MAX]
        self._format = kv_format(spec, row, options)
        self._client: _core.KvbmClient | None = None
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="kvbm-keeper", daemon=True)
        self._told: bool | None = None
        self._told_s = -SAY_S

    def start(self, region: int | None = None, slots: int = 0) -> _core.KvbmClient:
        """Connects, and lends `region`, a descriptor of memory of `slots` rows. Not before the
        first request: vLLM makes what offloads before it seeds its block hashes."""
        options = self._options
        client = _core.KvbmClient(
            options.socket,
            self._engine,
            self._format.descriptor(),
            probe(kv_cache_utils.NONE_HASH),
            self._row,
            lookup_us=int(options.patience_ms * 1000),
            token=self._token,
        )
        if region is not None:
            client.lend(region, self._row, slots)
        if os.path.exists(options.socket):
            client.connect(FIRST_S)
        self._client = client
        self._keeper.start()
        return client

    def _keep(self) -> None:
        client = self._client
        assert client is not None
        while not self._over.wait(LOOK_S):
            if not client.connected and os.path.exists(self._options.socket):
                client.connect(FIRST_S)

    @property
    def block_tokens(self) -> int:
        """What a block of the daemon's spans."""
        return max(group.tokens for group in self._format.groups) * self._format.blocks_per_chunk

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.connected

    def watch(self, now: float) -> None:
        """Says when the daemon comes or goes, at most every 10 s."""
        is_there = self.connected
        if self._client is None or is_there == self._told or now < self._told_s + SAY_S:
            return
        self._told, self._told_s = is_there, now
        if not is_there:
            LOG.warning("kvbm: %s: computing what it may hold", self._client.trouble or "no answer")
            return
        LOG.info("kvbm: connected to %s", self._options.socket)
        if self._client.differing_probes:
            LOG.warning(
                "kvbm: other engines of this model hash blocks with another seed, nothing is "
                "shared with them; start all with one PYTHONHASHSEED, or with a sha256 hash"
            )

    def stop(self) -> None:
        self._over.set()
        if self._client is not None:
            self._keeper.join()
        self._client = None


def unknown_version(what: str) -> str:
    return (
        f"kvbm: vLLM {vllm.__version__} keeps {what} where this does not find it; the versions "
        "that are known to work are in docs/kvbm.md"
    )


def kv_format(spec: OffloadingSpec, row: int, options: TierOptions) -> KvFormat:
    """What of vLLM's configuration makes blocks interchangeable."""
    config, parallel = spec.config, spec.config.parallel
    canonical = ""
    if config.canonical_layout:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading import canonical_mapping

        canonical = canonical_mapping.canonical_format_id(config.kv_cache_layout)
    is_any = parallel.is_parallelism_agnostic or config.replicated_layout
    topology = Topology(
        parallel.world_size,
        parallel.tp_size,
        parallel.pp_size,
        parallel.pcp_size,
        parallel.dcp_size,
    )
    return KvFormat(
        engine="vllm " + ".".join(vllm.__version__.split(".")[:2]),
        model=config.model.name,
        dtype=config.model.dtype,
        tokens_per_hash=config.cache.tokens_per_hash,
        blocks_per_chunk=config.cache.blocks_per_chunk,
        block_bytes=row,
        groups=tuple(LayerGroup(g.tokens_per_block, tuple(g.layer_names)) for g in config.groups),
        topology=None if is_any else topology,
        layout=config.kv_cache_layout or "",
        canonical=canonical,
        replicated=config.replicated_layout,
        weights=options.weights or weights_of(config.model.name),
        salt=options.salt,
    )
