"""A machine whose blocks go to a bucket in bundles: a core, an engine, and the store behind."""

from __future__ import annotations

from pathlib import Path

from harness.blocks import BLOCK, Engine, name
from harness.object_store import Objects
from harness.waiting import until

from native import _core

PAGE, RECORD = 4096, 4096 + BLOCK
COUNT = 4


class Machine:
    """A core that bundles COUNT blocks, an engine, and the store behind."""

    def __init__(self, root: Path, **options: object) -> None:
        root.mkdir(exist_ok=True)
        disk = _core.KvbmDisk(str(root / "disk"), 64 << 20, segment_bytes=1 << 20)
        given = {
            "disk": disk, "remote_blocks": 1000, "upload": "all", "bundle_s": 0.05,
            "bundle_bytes": PAGE + COUNT * RECORD, "bundle_below": BLOCK, **options,
        }  # fmt: skip
        self.core = _core.KvbmCore(str(root / "s"), **given)  # type: ignore[arg-type]
        self.store = Objects(self.core)
        self.engine_socket = root / "s"
        self.engine = Engine(str(self.engine_socket)).up()

    def stop(self) -> None:
        self.engine.__exit__(None, None, None)
        self.core.stop()

    def sees(self, other: Objects) -> None:
        """The same bucket as another machine's, looked through."""
        self.store.held, self.store.bundles = other.held, other.bundles
        self.store.marks = other.marks
        self.store.survey()

    def keys(self, blocks: range | list[int]) -> list[bytes]:
        return self.engine.client.keys([name(n) for n in blocks])

    def figure(self, which: str) -> int:
        return int(self.core.stats()[which])

    def idle(self) -> None:
        def done() -> bool:
            waits = self.figure("remote_queued_sends")
            return not self.store.serve(0.0) and not waits

        until(done, "that nothing waits", 10.0)

    def load(self, blocks: list[int]) -> list[int]:
        return self.store.load(self.engine, blocks)
