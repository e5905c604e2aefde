"""The KV hand-over between engines, as NixlConnector does it by pull, NixlPushConnector by push.

A prefill engine that was asked for `do_remote_decode` keeps the request's blocks under a lease and
answers with `kv_transfer_params`; a decode engine given these reads the blocks it lacks over the
side channel. Nobody checks that the blocks still hold what they held: after the lease has run out
and the blocks were used again, the reader gets a wrong answer with status 200, as with the real
engine. An engine used against its `kv_role` hands over wrong contents, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Coroutine, Mapping
from collections.abc import Sequence as Many
from typing import Any

import orjson

from . import text
from .core import Core
from .errors import ApiError
from .lease import WRONG_ROLE, Leases
from .link import Link
from .peer import Message, PeerLost, Peers, SideChannel
from .push import Pushes
from .sequence import Sequence, State
from .settings import Settings, TransferSettings

DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_NEEDED = ("remote_block_ids", "remote_engine_id", "remote_request_id")
_NEEDED_TO_PUSH = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


class Transfer:
    """Both sides of the hand-over of one engine process."""

    def __init__(self, settings: Settings, cores: list[Core]) -> None:
        assert settings.transfer is not None
        self._s: TransferSettings = settings.transfer
        self._settings, self._cores = settings, cores
        self._engine_id = self._s.engine_id
        self._pushes = Pushes()
        self._leases = Leases(settings, self._s, cores, self._pushes.expired)
        self._peers = Peers(self._fits, self._s.handshake_timeout_s)
        self._needed = _NEEDED_TO_PUSH if self._s.push else _NEEDED
        self._pulls: dict[Sequence, asyncio.Task[None] | None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._channel = SideChannel(self._answer)
        prof, scale = settings.profile, settings.time_scale
        self._link = Link(prof.link_gb_s * 1e9 / scale if scale > 0 else 0.0)
        self._base_s = prof.transfer_base_ms * scale / 1000
        self._block_bytes = settings.block_size * prof.kv_bytes_per_token
        self.on_death: Callable[[str], None] | None = None
        for core in cores:
            core.handover = self

    # -- life

    async def start(self) -> None:
        await self._channel.start(self._s.side_host, self._s.side_port)
        self._spawn(self._beat())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self._peers.close()
        await self._channel.stop()

    def restart(self) -> None:
        """A new process: another engine id, no leases, no connections."""
        self._leases.clear()
        for task in self._pulls.values():
            if task is not None:
                task.cancel()
        self._pulls.clear()
        self._engine_id = str(uuid.uuid4())
        self._channel.drop_all()
        self._peers.close()
        self._pushes.clear()

    def state(self) -> dict[str, Any]:
        return {"engine_id": self._engine_id, "side_port": self._channel.port,
                "pulls": len(self._pulls), "leases": len(self._leases),
                "leased_blocks": self._leases.blocks}

    def engine_id(self, core: Core) -> str:
        many = len(self._cores) > 1
        return f"{self._engine_id}_dp{core.rank}" if many else self._engine_id

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- prefill side

    def lease(self, seq: Sequence) -> bool:
        """Keeps the blocks of a finished prefill if its request asks for it."""
        params = seq.params.kv_transfer_params
        if params is None or not params.get("do_remote_decode"):
            return False
        core = next(c for c in self._cores if seq in c.scheduler.running)
        seq.kv_result = self._leases.grant(core, seq, self.engine_id(core), self._channel.port)
        if self._s.push:
            self._pushes.ended(seq.id, seq.blocks)
        return True

    async def _answer(self, message: Message) -> Message | None:
        op = message.get("op")
        if op == "hello":
            return {"engines": [self.engine_id(c) for c in self._cores],
                    "model": self._settings.model, "block_size": self._settings.block_size,
                    "push": self._s.push}
        if op == "read":
            return await self._read(message)
        if op == "register":
            name, blocks = await self._pushes.wanted(str(message.get("request")))
            count = int(message.get("count", 0))
            return await self._read({**message, "request": name,
                                     "blocks": blocks[-count:] if count else []})
        if op == "notify":
            self._leases.release(str(message.get("request")))
        elif op == "beat":
            for name in message.get("requests", ()):
                self._leases.extend(str(name))
        return None

    async def _read(self, message: Message) -> Message:
        core = next((c for c in self._cores if self.engine_id(c) == message.get("engine")), None)
        if core is None:
            return {"error": "unknown engine"}
        blocks = [int(b) for b in message.get("blocks", ())]
        await self._link.move(len(blocks) * self._block_bytes)
        last = len(core.cache.blocks)
        contents = [core.cache.blocks[b].content if 0 < b < last else 1 for b in blocks]
        self._leases.release(str(message.get("request")))
        return {"contents": contents}

    # -- decode side

    def check(self, params: Mapping[str, Any]) -> None:
        """Raises ApiError 500 for parameters that kill a real engine's core (and this one, with
        `--fragile`)."""
        if params.get("do_remote_prefill") and any(params.get(k) is None for k in self._needed):
            self._break()
            raise ApiError(500, DEAD)

    def _break(self) -> None:
        if self._settings.fragile and self.on_death is not None:
            self.on_death(DEAD)

    def rejected(self, body: bytes) -> None:
        """A request was refused before the engine saw it: its prefill engine can let go."""
        try:
            params = orjson.loads(body).get("kv_transfer_params")
        except (orjson.JSONDecodeError, AttributeError):
            return
        if isinstance(params, dict) and params.get("do_remote_prefill"):
            self.notify(params)

    def queued(self, seq: Sequence) -> None:
        """From now on the prefill engine hears heartbeats for this request."""
        params = seq.params.kv_transfer_params
        if params is not None and params.get("do_remote_prefill"):
            seq.remote_cached = params.get("remote_prefill_cached_tokens")
            self._pulls[seq] = None
            if params.get("remote_host") is not None and params.get("remote_port") is not None:
                self._spawn(self._greet(params))

    async def _greet(self, params: Mapping[str, Any]) -> None:
        with contextlib.suppress(PeerLost):
            await self._peers.reach(params)

    def start_pull(self, seq: Sequence, local_blocks: int) -> None:
        self._pulls[seq] = self._spawn(self._pull(seq, local_blocks))

    def aborted(self, seq: Sequence) -> None:
        """Tells the prefill engine that nobody will read; what is under way is dropped."""
        if seq not in self._pulls:
            return
        task = self._pulls.pop(seq)
        if task is not None:
            task.cancel()
        params = seq.params.kv_transfer_params
        if params is None:
            return
        if params.get("remote_host") is None:
            self._break()  # the real clean-up trips over the missing field
        else:
            self.notify(params)

    def notify(self, params: Mapping[str, Any]) -> None:
        """Releases blocks at the prefill engine without reading them."""
        if all(params.get(k) for k in (*self._needed, "remote_host", "remote_port")):
            self._spawn(self._notify(params))

    async def _notify(self, params: Mapping[str, Any]) -> None:
        try:
            peer = await self._peers.reach(params)
        except PeerLost:
            self._cores[0].metrics.add("nixl_num_failed_notifications")
            return
        peer.tell({"op": "notify", "request": params["remote_request_id"]})

    def _fits(self, hello: Message) -> bool:
        own = self._settings.model, self._settings.block_size, self._s.push
        return own == (hello["model"], hello["block_size"], hello["push"])

    async def _pull(self, seq: Sequence, local_blocks: int) -> None:
        params = seq.params.kv_transfer_params
        core = next(c for c in self._cores if seq in c.scheduler.remote)
        assert params is not None
        if params.get("remote_host") is None or params.get("remote_port") is None:
            return  # a real engine logs a line and leaves the request waiting for ever
        seq.external = seq.prompt_len - seq.computed
        core.metrics.add("external_prefix_cache_queries", seq.external)
        core.metrics.add("external_prefix_cache_hits", seq.external)
        try:
            contents = await self._fetch(core, seq, params, local_blocks)
        except PeerLost:
            core.metrics.add("nixl_num_failed_transfers")
            self._pulls.pop(seq, None)
            if self._s.load_failure_policy == "recompute":
                core.scheduler.pull_failed(seq)
                core.wake()
            else:
                core.fail(seq, "Internal server error")
            return
        self._pulls.pop(seq, None)
        if seq.state is not State.REMOTE:
            return
        self._arrived(core, seq, contents, local_blocks)

    async def _fetch(self, core: Core, seq: Sequence, params: Mapping[str, Any],
                     local_blocks: int) -> list[int]:
        wanted = len(seq.blocks) - local_blocks
        ask: Message = {"op": "register", "engine": params["remote_engine_id"],
                        "count": wanted, "request": seq.id}
        blocks: Many[int] = range(wanted)
        if not self._s.push:
            remote = [b for group in params["remote_block_ids"] for b in group]
            blocks = remote[-wanted:] if wanted else []
            ask |= {"op": "read", "blocks": blocks, "request": params["remote_request_id"]}
        peer = await self._peers.reach(params)
        began, size = core.now(), len(blocks) * self._block_bytes
        if self._base_s > 0:
            await asyncio.sleep(self._base_s)
        reply, _ = await asyncio.gather(
            peer.ask(ask), self._link.move(size))
        if "error" in reply:
            raise PeerLost(str(reply["error"]))
        core.metrics.observe("nixl_xfer_time_seconds", core.now() - began)
        core.metrics.observe("nixl_post_time_seconds", 0.0)
        core.metrics.observe("nixl_bytes_transferred", size)
        core.metrics.observe("nixl_num_descriptors", 2)
        return [int(c) for c in reply["contents"]]

    def _arrived(self, core: Core, seq: Sequence, contents: list[int], local_blocks: int) -> None:
        """Puts the contents into the blocks; wrong ones spoil what this request will say."""
        flip = WRONG_ROLE << 1 if self._s.role == "kv_producer" else 0
        size = self._settings.block_size
        expected = text.block_digests(seq.tokens, seq.prompt_len, size)[local_blocks:]
        own = seq.blocks[local_blocks:]
        got = [c ^ flip or 1 for c in contents] + [1] * (len(own) - len(contents))
        for number, content in zip(own, got, strict=False):
            core.cache.blocks[number].content = content
        wrong = [c for c, e in zip(got, expected, strict=False) if c != e]
        if wrong:
            seq.digest = text.corrupt(seq.digest, wrong)
        core.scheduler.pulled(seq, seq.prompt_len)
        core.wake()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._s.lease_s / 6)
            groups: dict[str, list[str]] = {}
            for seq in self._pulls:
                params = seq.params.kv_transfer_params or {}
                if params.get("tp_size") is not None and params.get("remote_request_id"):
                    groups.setdefault(str(params.get("remote_engine_id")), []).append(
                        str(params["remote_request_id"]))
            for name, requests in groups.items():
                peer = self._peers.get(name)
                if peer is not None:
                    peer.tell({"op": "beat", "requests": requests})
