"""Whether loading a prefix from kvbm is quicker than computing it again. Pure: data and time in.

An engine measures both: how long its prompts take per token, and how long its loads took against
what the daemon expected of them. A prefix whose load would take longer than computing it is not
loaded; a load that takes much longer than was expected is given up early. Invariant: a load that is
begun has a deadline, and computing after it costs a tenth more than computing at once, and what
twice the expected load takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

DISK, REMOTE = 2, 3
# Of a new measure, in the geometric mean of measure over expectation.
WEIGHT = 0.3
FACTOR_MIN, FACTOR_MAX = 0.1, 1000.0
# A tier whose loads are not begun is tried so often, with so many blocks, beside all requests.
PROBE_S = 1.0
PROBE_BLOCKS = 8
# Blocks that are not loaded for that reason are misses for so long.
GATED_S = 1.0
# Fewer tokens of a prompt tell nothing of what one costs.
TOKENS_MIN = 64
# Prompts that are being computed, the oldest of which is forgotten.
PROMPTS_MAX = 1024
# What a request waits beside its load: the engine's steps before and after it.
STEP_US = 1_000
# Of what computing takes, what a load may be expected to take; and what more it may take.
SHARE, EXCESS = 0.9, 0.1
# No load is given up sooner.
LIMIT_MIN_US = 5_000
# What was given up after a time is taken to need so many times as long.
LATE = 4


class Pace:
    """Microseconds that computing a token of a prompt takes: `said`, or measured.

    A prompt's blocks are offered for storing a step or so after they were computed, and a step may
    compute for others too. So what is quicker than known counts more than what is slower.
    """

    def __init__(self, said: float = 0.0) -> None:
        self._said, self._measured = said, 0.0
        self._prompts: dict[str, tuple[float, int]] = {}

    @property
    def us_per_token(self) -> float:
        """0: not known yet."""
        return self._said or self._measured

    def begins(self, request: str, now: float) -> None:
        """A request's first step begins. Times are seconds of the monotonic clock."""
        while len(self._prompts) >= PROMPTS_MAX:
            del self._prompts[next(iter(self._prompts))]
        self._prompts[request] = now, 0

    def computed(self, request: str, tokens: int, now: float) -> None:
        """So many tokens of its prompt are there."""
        began, before = self._prompts.get(request, (now, 0))
        total = before + tokens
        if request not in self._prompts:
            return
        self._prompts[request] = began, total
        if total < TOKENS_MIN:
            return
        sample = (now - began) * 1e6 / total
        known = self._measured or sample
        weight = WEIGHT if sample < known else WEIGHT / 6
        self._measured = known + weight * (min(sample, 4 * known) - known)

    def ends(self, request: str) -> None:
        self._prompts.pop(request, None)


class Daemon(Protocol):
    """What is asked of `_core.KvbmClient`."""

    def expected_us(self, disk: int, remote: int) -> int: ...
    def count_gated(self, blocks: int) -> None: ...
    def prefetch(self, names: Sequence[bytes]) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Of a load: until when it is worth waiting for (0: it is not to be begun), what the daemon
    expects it to take, the farthest tier of it."""

    limit_us: int
    daemon_us: int
    tier: int


class LoadGate:
    """`tokens`: in a block."""

    def __init__(self, pace: Pace, tokens: int) -> None:
        self.pace, self._tokens = pace, tokens
        self._factors = {DISK: 1.0, REMOTE: 1.0}
        self._probed_s = -PROBE_S

    def expected_us(self, daemon_us: int, tier: int) -> float:
        """What a load will take, which the daemon expects to take so long. `tier`: the farthest."""
        return (daemon_us + STEP_US) * self._factors[tier]

    def plan(
        self, daemon: Daemon, blocks: int, remote: int, most_us: int, host: int = 0
    ) -> Plan:
        """`blocks`: to be loaded, `remote` and `host` of them from there. `most_us`: the limit
        where it is not known what computing takes."""
        tier = REMOTE if remote else DISK
        daemon_us = daemon.expected_us(blocks - remote - host, remote)
        return Plan(self.limit_us(blocks, daemon_us, tier, most_us), daemon_us, tier)

    def limit_us(self, blocks: int, daemon_us: int, tier: int, most_us: int) -> int:
        """Until when a load is worth waiting for; 0: it is not to be begun."""
        computing_us = blocks * self._tokens * self.pace.us_per_token
        if not computing_us:
            return most_us
        expected_us = self.expected_us(daemon_us, tier)
        if expected_us > SHARE * computing_us:
            return 0
        return min(most_us, max(LIMIT_MIN_US, int(2 * expected_us + EXCESS * computing_us)))

    def refuse(self, daemon: Daemon, names: Sequence[bytes], now: float) -> None:
        """A load is not begun: counted, and some of its blocks are read for nobody. By these the
        daemon sees that a tier became quick again; what was learned here is forgotten with them."""
        daemon.count_gated(len(names))
        if now < self._probed_s + PROBE_S:
            return
        self._probed_s = now
        self._factors = {tier: factor**0.5 for tier, factor in self._factors.items()}
        daemon.prefetch(names[:PROBE_BLOCKS])

    def took(self, daemon_us: int, tier: int, us: int, *, is_late: bool = False) -> None:
        """A load has ended, or was given up: nobody knows how long it would have taken."""
        us = us * LATE if is_late else us
        ratio = (us + STEP_US) / (daemon_us + STEP_US)
        moved = self._factors[tier] ** (1 - WEIGHT) * ratio**WEIGHT
        self._factors[tier] = min(max(moved, FACTOR_MIN), FACTOR_MAX)
