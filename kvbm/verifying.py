"""Reading everything once, to see whether it is still what was written: the disk, and where that is
asked for the object store.

Invariant: one reading of the store at a time; a new one of the disk takes the place of the last.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

from kvbm.drops import ending
from kvbm.losses import Losses, Lost
from kvbm.remote.outcome import Inspected
from native import _core

if TYPE_CHECKING:
    from kvbm.remote.courier import Courier


class Verifying:
    """May be used from any thread. `courier` None: there is no object store."""

    def __init__(self, core: _core.KvbmCore, losses: Losses, courier: Courier | None) -> None:
        self._core, self._losses, self._courier = core, losses, courier
        self._lock = threading.Lock()
        self._store: Inspected | None = None

    def begin(self, rate: int, remote: bool) -> str:
        """`rate`: bytes a second of each, 0 for no limit. Empty, or why it was not begun."""
        if remote and self._courier is None:
            return "there is no object store to verify"
        with self._lock:
            if self._store is not None and not self._store.done:
                return "the object store is being verified"
            has_disk = self._losses.verify(rate)
            if not has_disk and not remote:
                hint = "; hint: --remote verifies the object store" if self._courier else ""
                return f"there is no disk to verify{hint}"
            self._store = None
            if remote:
                self._store = found = Inspected()
                work = (rate, found)
                threading.Thread(
                    target=self._inspect, args=work, name="kvbm-verify", daemon=True
                ).start()
        return ""

    def report(self) -> dict[str, Any]:
        """Of the disk, with the blocks that were lost; `remote` is the store's, None where it was
        not asked for. `done`: all of it.
        """
        report = self._core.scrub_report()
        checked, size, bad, done = report or (0, 0, 0, True)
        lost = self._losses.blocks() if bad else []
        document: dict[str, Any] = {
            "checked": checked, "bytes": size, "bad": bad, "done": done,
            "ever": report is not None, "remote": None,
        }  # fmt: skip
        if (store := self._store) is not None:
            lost += [Lost(p.hex(), key.hex(), True, "remote") for p, key in store.named[:]]
            document["remote"] = {
                "checked": store.checked, "bytes": store.size, "bad": store.bad,
                "failed": store.failed, "why": store.why, "done": store.done,
            }  # fmt: skip
            document["done"] = done and store.done
        return {**document, "blocks": [dataclasses.asdict(one) for one in lost]}

    def _inspect(self, rate: int, found: Inspected) -> None:
        """All that lies in the store, whether or not anybody here has named its namespace."""
        courier = self._courier
        assert courier is not None
        with ending(found):
            for print in sorted(courier.run(courier.clearance.namespaces()).result()):
                courier.run(courier.inspection.namespace(print, rate, found)).result()
                if found.why:
                    break
