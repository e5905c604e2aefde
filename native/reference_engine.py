"""What an engine's events mean, in plain Python: a part of `reference_index`.

A block is named by all that makes it: (the block before it, its tokens, its own keys), down to the
scope of its prompt. Nothing is hashed, so nothing can collide, and an answer is a walk over plain
dictionaries. Events are mappings with the names of vLLM's fields.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TIERS = ("device", "host", "disk", "remote")
COUNTED = TIERS[:2]
MEDIA = {"GPU": "device", "CPU": "host", "STORAGE": "disk", "REMOTE": "remote"}
WHOLE = ("full_attention", "mla_attention", "sink_full_attention")

Name = tuple[Any, ...]  # of a block (name of the one before, tokens, keys), of a root (lora, salt)
Event = Mapping[str, Any]


@dataclass(slots=True)
class Group:
    """One group of an engine's cache."""

    needs: int | None  # tokens before a prefix's end; None for all
    size: int
    named: dict[Any, Name] = field(default_factory=dict)  # engine hash -> block
    copies: Counter[tuple[Any, str]] = field(default_factory=Counter)  # (engine hash, tier)

    def any(self, name: Any) -> bool:
        """True if there is a copy under this hash."""
        return any(self.copies[name, tier] for tier in TIERS)

    def has(self, block: Name, tier: str) -> bool:
        """True if there is a copy of this block in this tier."""
        return any(self.copies[name, tier] for name, named in self.named.items() if named == block)


def own_keys(event: Event, at: int) -> tuple[tuple[Any, ...], str | None]:
    """A block's keys besides LoRA and salt, and the salt."""
    entries = event.get("extra_keys") or []
    keys = list(entries[at] or ()) if at < len(entries) else []
    if event.get("lora_name") in keys:
        keys.remove(event["lora_name"])
    first = at == 0 and event.get("parent_block_hash") is None
    salt = next((key for key in keys if isinstance(key, str)), None) if first else None
    if salt is not None:
        keys.remove(salt)
    return tuple(map(repr, keys)), salt


@dataclass(slots=True)
class Run:
    """Consecutive blocks that wait for a parent; one without tokens waits for its own hash."""

    parent: Any
    group: int
    tier: str
    hashes: Sequence[Any]
    parts: list[Name]  # tokens and keys of each
    gone: set[Any] = field(default_factory=set)


def needed(event: Event) -> int | None:
    """Tokens before a prefix's end that must be there; None for all, 0 for a group of no use."""
    kind, size = event.get("kv_cache_spec_kind"), int(event["block_size"])
    if kind in WHOLE or (kind is None and not event.get("group_idx")):
        return None
    if kind in ("sliding_window", "sliding_window_mla"):
        window = event.get("kv_cache_spec_sliding_window") or 0
        return max(-(-(window - 1) // size), 1) * size if window else 0
    return size if kind == "mamba" else 0


class Engine:
    """What one engine said it has."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Nothing was announced."""
        self.groups: dict[int, Group] = {}
        self.size = 0
        self.scoped = False
        self.waiting: list[Run] = []

    def known(self, name: Any) -> Name | None:
        """The block of an engine hash, by any group."""
        found = (group.named[name] for group in self.groups.values() if name in group.named)
        return next(found, None)

    def apply(self, event: Event) -> None:
        """One event."""
        if event["type"] == "AllBlocksCleared":
            self.waiting = []
            for group in self.groups.values():
                for name, tier in list(group.copies):
                    if tier in COUNTED:
                        del group.copies[name, tier]
                group.named = {name: it for name, it in group.named.items() if group.any(name)}
            return
        if (event["medium"] or "GPU") not in MEDIA:
            return
        far = event.get("locality") == "REMOTE"
        tier = "remote" if far else MEDIA[event["medium"] or "GPU"]
        if event["type"] == "BlockRemoved":
            for name in event["block_hashes"]:
                self._remove(event.get("group_idx") or 0, name, tier)
        else:
            self._store(event, tier)

    def _remove(self, index: int, name: Any, tier: str) -> None:
        group = self.groups.get(index)
        if group is None:
            return
        if group.copies[name, tier]:
            group.copies[name, tier] -= 1
            if not group.any(name):
                del group.named[name]
            return
        for run in self.waiting:
            here = (run.group, run.tier) == (index, tier)
            if here and name in run.hashes and name not in run.gone:
                run.gone.add(name)  # what hangs on the block still waits
                return

    def _group(self, event: Event) -> int | None:
        index, size = event.get("group_idx") or 0, event["block_size"]
        told = bool(event["token_ids"]) and size > 0
        group = self.groups.get(index)
        if group is not None:
            if not told or size <= group.size:
                return index
            self.forget()
        if not told:
            return None
        needs = needed(event)
        if needs == 0:
            return None
        if needs is None and size != self.size:
            if any(group.needs is None for group in self.groups.values()):
                return None
            # Windows announced before were in other blocks: they are known by their hashes only.
            self.waiting = [run for run in self.waiting if not run.parts]
            for place, other in self.groups.items():
                for (name, tier), copies in other.copies.items():
                    self.waiting += [Run(name, place, tier, [name], []) for _ in range(copies)]
                self.groups[place] = Group(other.needs, other.size)
            self.size = size
        self.size = self.size or size
        self.groups[index] = Group(needs, size)
        return index

    def _store(self, event: Event, tier: str) -> None:
        index = self._group(event)
        if index is None:
            return
        tokens, size, hashes = event["token_ids"], event["block_size"], event["block_hashes"]
        told = bool(tokens) and size > 0
        if told and size < self.groups[index].size:
            return
        sure = tier == "device" or event.get("extra_keys") is not None or not self.scoped
        if not (told and sure and size == self.size and len(tokens) == len(hashes) * size):
            # Only the hashes count: such blocks wait until they are known, which may be now.
            self.waiting += [Run(name, index, tier, [name], []) for name in hashes]
            return self._adopt()
        salt = own_keys(event, 0)[1]
        spans = [tuple(tokens[at : at + size]) for at in range(0, len(tokens), size)]
        parts: list[Name] = [(span, own_keys(event, at)[0]) for at, span in enumerate(spans)]
        self.scoped |= bool(salt or any(keys for _, keys in parts))
        parent = event["parent_block_hash"]
        lora = event["lora_name"] or (f"#{event['lora_id']}" if event["lora_id"] else None)
        last = (lora, salt) if parent is None else self.known(parent)
        run = Run(parent, index, tier, hashes, parts)
        if last is None:
            self.waiting.append(run)
        else:
            self._chain(run, last, event.get("extra_keys") is not None)
        self._adopt()

    def _chain(self, run: Run, last: Name, sure: bool | None = None) -> dict[Any, Name]:
        """Holds what is not gone of a run after `last`; the names of all of it.

        `sure`: the event said which keys the blocks have, so what was known of them gives way.
        """
        named = self.groups[run.group].named
        made = {}
        for name, (tokens, keys) in zip(run.hashes, run.parts, strict=True):
            last = (last, tokens, keys)
            if sure and name in named and name not in made:
                named[name] = last
            elif sure is not None:
                last = named.get(name, last)
            made[name] = last
            if name not in run.gone:
                self._hold(run.group, name, last, run.tier)
        return made

    def _hold(self, index: int, name: Any, block: Name, tier: str) -> None:
        group = self.groups[index]
        group.named.setdefault(name, block)
        if tier in COUNTED or not group.copies[name, tier]:
            group.copies[name, tier] += 1

    def _adopt(self) -> None:
        """Takes in what waits for blocks that are known by now."""
        links: dict[Any, Name] = {}
        while True:
            named = [(run, self.known(run.parent) or links.get(run.parent)) for run in self.waiting]
            ready = [(run, name) for run, name in named if name is not None]
            if not ready:
                return
            for run, last in ready:
                self.waiting.remove(run)
                if run.parts:
                    links |= self._chain(run, last)
                elif run.parent not in run.gone:
                    self._hold(run.group, run.parent, last, run.tier)
