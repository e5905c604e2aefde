"""The index answers as its plain Python model does, whatever engines announce in whatever order.

Each example is a story: two engines, prompts from a small alphabet so that they share prefixes, and
events as an engine would send them (stores from any block on, copies, removals, tiers, groups,
resets), mixed with those that are harder (late joins, strangers, tokens left out).
"""

from __future__ import annotations

from typing import Any

import msgspec
from harness import kv_frames
from hypothesis import given, settings
from hypothesis import strategies as st

from native import reference_index
from native._core import Index, Prompt

SIZE = 4
ENGINES = 2
SCOPES = [(None, None), ("lora", None), (None, "salt")]
MEDIA = [("GPU", None), ("CPU", None), ("STORAGE", "LOCAL"), ("STORAGE", "REMOTE"), ("TAPE", None)]
# group index -> kind, window, block size
GROUPS: list[dict[int, tuple[str | None, int | None, int]]] = [
    {0: (None, None, SIZE)},
    {0: ("full_attention", None, SIZE)},
    {0: ("full_attention", None, SIZE), 1: ("sliding_window", 9, SIZE)},
    {0: ("sliding_window", 6, SIZE), 1: ("mla_attention", None, SIZE)},
    {0: ("full_attention", None, SIZE), 1: ("mamba", None, 2 * SIZE), 2: ("cross_attention", 0, 4)},
    {0: ("mla_attention", None, 2 * SIZE), 1: ("sliding_window_mla", 12, SIZE)},
    {0: ("sliding_window", 9, SIZE)},
    {0: ("full_attention", None, SIZE), 1: ("mla_attention", None, SIZE)},
]


@st.composite
def token_lists(draw: st.DrawFn) -> tuple[int, ...]:
    """Up to ten blocks of two kinds, and a rest; now and then one image token."""
    blocks = draw(st.lists(st.sampled_from([1, 1, 2]), max_size=10))
    rest = draw(st.integers(0, SIZE - 1))
    return tuple(token for block in blocks for token in [block] * SIZE) + (9,) * rest


def events(data: st.DataObject, groups: dict[int, Any]) -> kv_frames.Event:
    """One event of an engine with these groups."""
    kind = data.draw(st.sampled_from(["store"] * 6 + ["remove"] * 3 + ["clear"]))
    if kind == "clear" and data.draw(st.booleans()):
        return kv_frames.AllBlocksCleared()
    tokens = data.draw(token_lists())
    lora, salt = data.draw(st.sampled_from(SCOPES))
    medium, locality = data.draw(st.sampled_from(MEDIA[:1] * 6 + MEDIA))
    index = data.draw(st.sampled_from([*groups, *groups, *groups, 7]))
    name, window, size = groups.get(index, ("full_attention", None, SIZE))
    # A hash names a prefix at a boundary, whichever group's block ends there.
    hashes = kv_frames.chain(tokens, SIZE, scope=(lora, salt))[size // SIZE - 1 :: size // SIZE]
    since = data.draw(st.integers(0, 3)) if data.draw(st.booleans()) else 0
    if kind == "remove":
        gone = data.draw(st.lists(st.sampled_from(hashes), max_size=3)) if hashes else []
        return kv_frames.BlockRemoved(gone, medium, index, locality)
    salted = [(salt,) if salt and at == 0 else None for at in range(len(hashes))]
    event = kv_frames.BlockStored(
        block_hashes=list(hashes[since:]),
        parent_block_hash=hashes[since - 1] if 0 < since <= len(hashes) else None,
        token_ids=list(tokens[since * size : len(hashes) * size]),
        block_size=size,
        lora_id=None,
        medium=medium,
        lora_name=lora,
        extra_keys=salted[since:] if medium == "GPU" else None,
        group_idx=index,
        kv_cache_spec_kind=name,
        kv_cache_spec_sliding_window=window,
        locality=locality,
    )
    if since >= len(hashes):
        event.block_hashes, event.token_ids, event.extra_keys = [], [], None
    return odd(data, event)


def odd(data: st.DataObject, event: kv_frames.BlockStored) -> kv_frames.BlockStored:
    """Sometimes leaves tokens or blocks out, as offloading and masked groups do, or cuts a tail."""
    how = data.draw(st.sampled_from(["plain"] * 8 + ["untold", "masked", "partial", "image"]))
    if how == "untold":
        event.token_ids, event.block_size, event.parent_block_hash = [], 0, None
        event.extra_keys = None
    elif how == "masked" and len(event.block_hashes) > 1:
        kept = data.draw(st.integers(1, len(event.block_hashes) - 1))
        event.block_hashes = event.block_hashes[kept:]
        event.extra_keys = event.extra_keys and event.extra_keys[kept:]
    elif how == "partial" and event.block_hashes:
        event.block_hashes, event.block_size = [12345], SIZE // 2
        event.token_ids, event.extra_keys = event.token_ids[: SIZE // 2], [None]
    elif how == "image" and event.extra_keys and event.block_hashes:
        event.block_hashes = [name ^ 1 for name in event.block_hashes if isinstance(name, int)]
        event.extra_keys = [(("image", -1),), *event.extra_keys[1:]]
    return event


def agree(index: Index, model: reference_index.Index, asked: list[Any], now: float) -> None:
    for ids, (lora, salt) in asked:
        prompt = Prompt.of_list(list(ids), lora, salt)
        found = index.match(prompt, list(range(ENGINES)), now)
        for slot, match in enumerate(found):
            want = model.match(reference_index.Prompt(ids, lora, salt), slot, now)
            got = {name: getattr(match, name) for name in want}
            assert got == want, (ids, lora, salt, slot)
            assert match.total == sum(want.values()) <= max(len(ids) - 1, 0)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_index_is_its_model(data: st.DataObject) -> None:
    index, model = Index(1 << 24), reference_index.Index(ENGINES)
    assert [index.add_engine() for _ in range(ENGINES)] == list(range(ENGINES))
    groups = [data.draw(st.sampled_from(GROUPS)) for _ in range(ENGINES)]
    now = 0.0
    numbers: list[int] = []  # of predictions
    for _ in range(data.draw(st.integers(1, 14))):
        slot = data.draw(st.integers(0, ENGINES - 1))
        others = ["clear", "predict", "settle", "assume", "wait"]
        action = data.draw(st.sampled_from(["events"] * 8 + others))
        if action == "events":
            sent = [events(data, groups[slot]) for _ in range(data.draw(st.integers(1, 4)))]
            write = kv_frames.batch if data.draw(st.booleans()) else kv_frames.arrays
            applied = index.apply(slot, write(*sent))
            assert not applied.malformed
            for event in msgspec.to_builtins(sent):
                model.slots[slot].engine.apply({"extra_keys": None, "group_idx": None} | event)
                if event["type"] == "AllBlocksCleared":
                    model.forget(slot)
        elif action == "clear":
            index.clear(slot)
            model.clear(slot)
        elif action == "wait":
            now += data.draw(st.sampled_from([1.0, 6.0]))
        elif action == "settle":
            if numbers:
                at = data.draw(st.integers(0, len(numbers) - 1))
                index.settle(numbers[at], now + 0.5)
                model.settle(at, now + 0.5)
        else:
            ids, (lora, salt) = data.draw(token_lists()), data.draw(st.sampled_from(SCOPES))
            prompt, twin = Prompt.of_list(list(ids), lora, salt), (ids, lora, salt)
            if action == "predict":
                numbers.append(index.predict(slot, prompt, now, 5.0))
                model.predict(slot, reference_index.Prompt(*twin), now + 5.0)
            else:
                room = data.draw(st.integers(0, 8 * reference_index.BLOCK_SIZE))
                index.assume(slot, prompt, room)
                model.slots[slot].assume(reference_index.Prompt(*twin), room)
        asked = [(data.draw(token_lists()), scope) for scope in SCOPES]
        agree(index, model, asked, now)
    sizes = [index.block_size(slot) for slot in range(ENGINES)]
    assert sizes == [slot.engine.size for slot in model.slots]
