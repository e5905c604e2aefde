"""What the Rust core means, in plain Python: the oracle of its property tests. Never used to serve.

Slow and simple on purpose: JSON is parsed by the standard library into trees that keep duplicate
members, and every answer is read off such a tree.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

DEPTH_MAX = 128
FORBIDDEN = frozenset({"kv_transfer_params", "ec_transfer_params"})
FORBIDDEN_XARGS = FORBIDDEN | {"kv_cache_report_mode"}


@dataclass(frozen=True, slots=True)
class Members:
    """An object: its members in order, duplicates included."""

    pairs: list[tuple[str, "Tree"]]

    def __iter__(self) -> Iterator[tuple[str, "Tree"]]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def last(self, name: str) -> "Tree":
        """The value Python's `json` would keep; None if there is none (or null)."""
        return next((value for key, value in reversed(self.pairs) if key == name), None)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written."""

    form: str


Tree = Members | list["Tree"] | Number | str | bool | None


def parse(body: bytes) -> Members:
    """The tree of a JSON object; ValueError for anything `scan` must refuse."""

    def refuse(word: str) -> Tree:
        raise ValueError(f"{word} is no JSON")

    text = body.decode("utf-8", "strict")
    try:
        tree: Tree = json.loads(
            text,
            object_pairs_hook=Members,
            parse_int=Number,
            parse_float=Number,
            parse_constant=refuse,
        )
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(tree, Members):
        raise ValueError("not an object")
    if depth(tree) > DEPTH_MAX:
        raise ValueError("nested too deep")
    return tree


def depth(tree: Tree) -> int:
    """Containers around the deepest value, itself included if it is one."""
    if isinstance(tree, Members):
        return 1 + max((depth(value) for _, value in tree), default=0)
    if isinstance(tree, list):
        return 1 + max((depth(value) for value in tree), default=0)
    return 0


def stripped(tree: Members) -> Members:
    """The object without the fields a stranger must not set."""
    kept = []
    for key, value in tree:
        if key in FORBIDDEN:
            continue
        if key == "vllm_xargs" and isinstance(value, Members):
            value = Members([pair for pair in value if pair[0] not in FORBIDDEN_XARGS])
        kept.append((key, value))
    return Members(kept)


def rewritten(tree: Members, model: str | None, strip: bool, include_usage: bool) -> Members:
    """What an edited request must mean: duplicates resolved, new members first."""
    result = dict(stripped(tree) if strip else tree)
    if model is not None:
        result["model"] = model
    if include_usage and boolean(tree.last("stream")) is True:
        options = result.get("stream_options")
        if options is None:
            options = Members([])
        if isinstance(options, Members):
            usage = (
                [("include_usage", True)]
                if boolean(options.last("include_usage")) is not True
                else []
            )
            result["stream_options"] = Members([*options, *usage])
    return Members(list(result.items()))


def resolved(tree: Tree) -> object:
    """The value with duplicates resolved as Python's `json` does, numbers by their form."""
    if isinstance(tree, Members):
        return {key: resolved(value) for key, value in tree}
    if isinstance(tree, list):
        return [resolved(value) for value in tree]
    return tree


def text(value: Tree) -> str | None:
    """A string as `scan` gives it: a surrogate without its other half becomes U+FFFD."""
    if not isinstance(value, str):
        return None
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in value)


def boolean(value: Tree) -> bool | None:
    """As pydantic reads it in lax mode; None for null and for what it refuses."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Number):
        return {1.0: True, 0.0: False}.get(float(value.form))
    if isinstance(value, str):
        yes, no = {"1", "true", "t", "yes", "y", "on"}, {"0", "false", "f", "no", "n", "off"}
        return True if value.lower() in yes else False if value.lower() in no else None
    return None


class SmoothTurns:
    """Smooth weighted round robin, as a loop over dictionaries."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = dict(enumerate(weights))
        self.credit = dict.fromkeys(self.weights, 0)

    def next(self, eligible: bytes) -> int:
        """The position picked, -1 for nobody."""
        there = [i for i in self.weights if eligible[i]]
        for i in there:
            self.credit[i] += self.weights[i]
        if not there:
            return -1
        best = max(there, key=lambda i: self.credit[i])
        self.credit[best] -= sum(self.weights[i] for i in there)
        return best


def least(inflight: Sequence[int], weights: Sequence[int], may: Callable[[int], bool]) -> set[int]:
    """All positions that a pick of the least loaded engine may return."""
    there = [i for i in range(len(inflight)) if may(i)]
    low = min((inflight[i] / weights[i] for i in there), default=0.0)
    return {i for i in there if inflight[i] / weights[i] == low}


@dataclass(slots=True)
class Books:
    """A ledger as dictionaries. Engines are (slot, generation); a worker's entry for a slot counts
    for one generation, and starts anew with a later one."""

    entries: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    dispatched: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    underflows: int = 0
    stale: int = 0

    def acquire(self, worker: int, engine: tuple[int, int]) -> bool:
        """One more in flight; False if the worker knows a later engine in the slot."""
        slot, generation = engine
        known, count = self.entries.get((worker, slot), (0, 0))
        if known > generation:
            self.stale += 1
            return False
        self.entries[worker, slot] = (generation, count + 1 if known == generation else 1)
        self.dispatched.setdefault(engine, {}).setdefault(worker, 0)
        if known < generation:
            for other in self.dispatched:
                if other[0] == slot and other != engine:
                    self.dispatched[other].pop(worker, None)
        self.dispatched[engine][worker] += 1
        return True

    def release(self, worker: int, engine: tuple[int, int]) -> bool:
        """One less; False, and nothing changes, if there is none of this engine."""
        slot, generation = engine
        known, count = self.entries.get((worker, slot), (0, 0))
        if known != generation:
            self.stale += 1
            return False
        if count == 0:
            self.underflows += 1
            return False
        self.entries[worker, slot] = (generation, count - 1)
        return True

    def retire(self, worker: int) -> None:
        """What a dead worker had in flight is gone; what it dispatched is not."""
        for (at, slot), (generation, _) in list(self.entries.items()):
            if at == worker:
                self.entries[at, slot] = (generation, 0)

    def inflight(self, engine: tuple[int, int]) -> int:
        """In flight at an engine, all workers."""
        here = [entry for (_, slot), entry in self.entries.items() if slot == engine[0]]
        return sum(count for generation, count in here if generation == engine[1])

    def total(self, engine: tuple[int, int]) -> int:
        """Ever dispatched to an engine, all workers."""
        return sum(self.dispatched.get(engine, {}).values())


def bucket(bounds: Sequence[float], value_s: float) -> int:
    """Index of the first bound that is not below the value; len(bounds) above all."""
    return next((i for i, bound in enumerate(bounds) if value_s <= bound), len(bounds))
