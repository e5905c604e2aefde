"""Blocks dropped on an operator's command, in every tier: some of a namespace, or all there are.

Invariants: one drop at a time, on a thread of its own, a page of blocks after the other; a drop
has gone well only if nothing is left of what it was about, and its report says what is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kvbm.remote import StoreError
from kvbm.remote.outcome import Cleared
from native import _core

if TYPE_CHECKING:
    from kvbm.remote.courier import Courier

PAGE = 4096
LOCAL = 1 | 2  # bits of the host and the disk in the core's list
FAILED = "it has failed; hint: the daemon's standard error says how"
UNDER_WAY = "a drop is under way; hint: wait until `GET /drop` says that it is done"


class _Job(Protocol):
    why: str
    done: bool


@dataclass(slots=True)
class _Drop:
    """Blocks of the host and the disk that are gone, and what came of the store's."""

    store: Cleared
    host: int = 0
    disk: int = 0
    why: str = ""
    done: bool = False


class Drops:
    """May be used from any thread. `courier` None: there is no object store."""

    def __init__(self, core: _core.KvbmCore, courier: Courier | None) -> None:
        self._core, self._courier = core, courier
        self._lock = threading.Lock()
        self._drop = _Drop(Cleared(), done=True)

    def begin(self, fingerprint: bytes, keys: Sequence[bytes]) -> str:
        """Drops blocks. Empty, or why it was not begun."""
        return self._begin(lambda drop: self._some(drop, fingerprint, keys))

    def begin_all(self, fingerprint: bytes | None) -> str:
        """Drops all blocks of a namespace, or of every one. Empty, or why it was not begun."""
        return self._begin(lambda drop: self._all(drop, fingerprint))

    def report(self) -> dict[str, Any]:
        """Blocks by tier, objects of the store that were deleted and that could not be; `why` says
        what stood in the way, and is empty where nothing did.
        """
        drop = self._drop
        return {
            "host": drop.host,
            "disk": drop.disk,
            "remote": drop.store.blocks,
            "objects": drop.store.objects,
            "failed": drop.store.failed,
            "why": drop.why or drop.store.why,
            "done": drop.done,
        }

    def namespaces(self) -> set[bytes]:
        """Of all tiers, as far as the store can be asked."""
        found = {row[1] for row in self._core.namespaces()}
        with contextlib.suppress(StoreError, CancelledError):
            found |= self._stored()
        return found

    def _stored(self) -> set[bytes]:
        if self._courier is None:
            return set()
        return set(self._courier.run(self._courier.clearance.namespaces()).result())

    def _begin(self, work: Callable[[_Drop], None]) -> str:
        with self._lock:
            if not self._drop.done:
                return UNDER_WAY
            self._drop = drop = _Drop(Cleared())
        threading.Thread(target=_run, args=(work, drop), name="kvbm-drop", daemon=True).start()
        return ""

    def _some(self, drop: _Drop, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        courier = self._courier
        for at in range(0, len(keys), PAGE):
            some = keys[at : at + PAGE]
            self._page(drop, fingerprint, some)
            # What was on its way to the store has come there.
            if courier and courier.run(courier.clearance.settle(fingerprint, some)).result():
                self._page(drop, fingerprint, some)

    def _page(self, drop: _Drop, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        dropped = self._core.drop(fingerprint, keys)
        drop.host += dropped.host
        drop.disk += dropped.disk
        if self._courier is not None and dropped.errands:
            clearance = self._courier.clearance
            self._courier.run(clearance.errands(dropped.errands, drop.store)).result()

    def _all(self, drop: _Drop, fingerprint: bytes | None) -> None:
        prints = {row[0]: row[1] for row in self._core.namespaces()}
        cursor: int | None = 0
        while cursor is not None:
            rows, cursor = self._core.blocks(cursor, PAGE)
            pages: dict[bytes, list[bytes]] = {}
            for number, key, _, _, tiers in rows:
                print = prints.get(number)
                if print is not None and fingerprint in (None, print) and tiers & LOCAL:
                    pages.setdefault(print, []).append(key)
            for print, keys in pages.items():
                dropped = self._core.drop(print, keys, local=True)
                drop.host += dropped.host
                drop.disk += dropped.disk
        if self._courier is None:
            return
        wanted = {fingerprint} if fingerprint else {*prints.values(), *self._stored()}
        for print in sorted(wanted):
            clearance = self._courier.clearance
            self._courier.run(clearance.everything(print, drop.store)).result()
            if drop.store.why:
                return


def _run(work: Callable[[_Drop], None], drop: _Drop) -> None:
    with ending(drop):
        work(drop)


@contextlib.contextmanager
def ending(job: _Job) -> Iterator[None]:
    """However the work ends, it is done then, and `why` says what stood in its way: what the work
    said itself, or what it raised.
    """
    why = FAILED
    try:
        yield
        why = job.why
    except (StoreError, TimeoutError) as error:
        why = str(error)
    except CancelledError:
        why = "the object store's thread has ended"
    finally:
        job.why, job.done = why, True
