"""How many engines, in which roles and with which chunk, serve a trace within an SLO.

Every layout is first predicted by formula (`queueing`); the best few of either kind are replayed in
the simulator, which runs the gateway's own decisions. A verdict rests on replays alone; formulas
choose what is worth one, and are printed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gateway.planner.counted import counted
from gateway.planner.queueing import Layout, Predicted, Traffic, predict
from gateway.planner.replay import OURS, Setup, run
from gateway.planner.trace_files import Rows
from native._core import Duet, Fit, Simulated

CHUNKS = (512, 1024, 2048, 4096, 8192)
KEPT = 3  # layouts of either kind that are replayed
PREFILL_CHUNK = 8192  # where prefill disturbs no answer
# Of an engine's KV memory, what answers can fill in the mean; above it, prompts wait for room.
FILLED = 0.7


@dataclass(frozen=True, slots=True)
class Goal:
    """SLOs in seconds, 0 = none; `target`: share of requests that must keep them."""

    ttft_s: float
    tpot_s: float
    target: float = 0.9


@dataclass(frozen=True, slots=True)
class Means:
    """What engines are made of. `kv_tokens` 0: the profile's; `speed`: of the trace's arrivals;
    `constants`: of step times, in place of the profile's."""

    profile: str = "h100-70b-tp4"
    gpus: int = 4
    kv_tokens: int = 0
    link_gb_s: float = 12.5
    speed: float = 1.0
    seed: int = 0
    constants: tuple[tuple[str, float], ...] = ()

    def fit(self, chunk_tokens: int) -> Fit:
        return Fit(self.profile, list(self.constants), chunk_tokens)

    def memory(self) -> int:
        return self.kv_tokens or self.fit(0).kv_tokens


@dataclass(frozen=True, slots=True)
class Option:
    """A layout, what the formula says of it, if there is one, and its replay. One of the two is
    there."""

    layout: Layout
    predicted: Predicted | None
    run: Simulated | None = None

    def attained(self, goal: Goal) -> float:
        """Of the replay; of the formula where there is none."""
        if self.run is not None:
            return attained(self.run, goal)
        assert self.predicted is not None
        late = goal.tpot_s and self.predicted.tpot_s > goal.tpot_s
        return self.predicted.in_time * (0.5 if late else 1.0)


def attained(run: Simulated, goal: Goal) -> float:
    """The share of requests that kept the SLOs."""
    return run.good(goal.ttft_s, goal.tpot_s) / run.requests


class Planner:
    """A trace, a goal and the means; runs, and what caches save, are kept, as several questions ask
    for the same.
    """

    def __init__(self, found: Rows, goal: Goal, told: Callable[[str, float], None]) -> None:
        """`told`: hears what is under way and the share of it that is done."""
        self.found, self.goal, self.told = found, goal, told
        self.recorded = found.packed()
        self._columns = [row.input for row in found.rows], [row.output for row in found.rows]
        self._runs: dict[tuple[Layout, Means], Simulated] = {}
        self._traffic: dict[tuple[int, float], Traffic] = {}

    @property
    def rate(self) -> float:
        return len(self.found.rows) / max(self.recorded.trace.span_s, 1e-9)

    def predict(self, layout: Layout, means: Means) -> Predicted:
        memory = means.memory() * (layout.prefill or layout.engines)
        key = (memory, self.rate * means.speed)
        if key not in self._traffic:
            self._traffic[key] = Traffic.of(self.recorded.trace, self._columns, *key)
        fit = means.fit(layout.chunk_tokens)
        return predict(fit, layout, self._traffic[key], self.goal.ttft_s)

    def replay(self, layout: Layout, means: Means) -> Simulated:
        key = (layout, means)
        if key not in self._runs:
            self._runs[key] = self._simulated(layout, means)
        return self._runs[key]

    def _simulated(self, layout: Layout, means: Means) -> Simulated:
        setup = Setup(
            engines=layout.engines,
            profile=means.profile,
            kv_tokens=means.kv_tokens,
            chunk_tokens=layout.chunk_tokens,
            constants=means.constants,
            speed=means.speed,
            ttft_s=self.goal.ttft_s,
            tpot_s=self.goal.tpot_s,
        )
        force = 0 if layout.auto else 1
        duet = Duet(layout.roles, force, means.link_gb_s) if layout.is_split else None
        return run(self.recorded, setup, OURS, means.seed, duet=duet)

    def options(self, engines: int, means: Means) -> list[Option]:
        """Replayed layouts of so many engines, best first."""
        together = [Layout(engines, 0, chunk, means.link_gb_s) for chunk in CHUNKS]
        split = [
            Layout(engines, prefill, PREFILL_CHUNK, means.link_gb_s)
            for prefill in range(1, engines)
        ]
        chosen = [*self._promising(together, means), *self._promising(split, means)]
        done = []
        for at, option in enumerate(chosen):
            self.told(f"{counted(engines, 'engine')}: {option.layout.name}", at / len(chosen))
            done.append(replace(option, run=self.replay(option.layout, means)))
        return sorted(done, key=lambda option: -option.attained(self.goal))

    def _promising(self, layouts: Sequence[Layout], means: Means) -> list[Option]:
        room = FILLED * means.memory()

        def rank(layout: Layout) -> tuple[tuple[bool, float, float], Option]:
            said = self.predict(layout, means)
            option = Option(layout, said)
            return (said.held_tokens > room, -option.attained(self.goal), said.ttft_s), option

        found = sorted(map(rank, layouts), key=lambda one: one[0])
        return [option for _, option in found[:KEPT]]

    def option(self, layout: Layout, means: Means) -> Option:
        """A layout that is there, replayed."""
        said = self.predict(layout, means) if layout.has_formula else None
        return Option(layout, said, self.replay(layout, means))

    def needed(self, most: int, means: Means) -> tuple[int, Option] | None:
        """The fewest engines that reach the target, and their layout; None: more than `most`."""
        low, high = 1, most
        best: tuple[int, Option] | None = None
        while low <= high:
            middle = (low + high) // 2
            option = self.options(middle, means)[0]
            if option.attained(self.goal) >= self.goal.target:
                best, high = (middle, option), middle - 1
            else:
                low = middle + 1
        return best
