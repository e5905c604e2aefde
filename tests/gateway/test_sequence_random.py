"""Batches of KV events by their numbers: all faults together, in every order."""

from __future__ import annotations

from random import Random

from harness.publisher import World
from hypothesis import given, settings
from hypothesis import strategies as st

OPS = (
    "publish", "drop", "forget", "deliver", "answer", "detach", "attach", "restart", "wait",
    "silence", "cut", "tail", "double",
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(5, 120),
    st.sampled_from([2, 8, 10_000]),
    st.lists(st.sampled_from(OPS), min_size=3, unique=True),
)
def test_whatever_happens_the_run_is_one_publishers_and_in_the_end_the_present_ones(
    seed: int, count: int, buffer: int, ops: list[str]
) -> None:
    draw = Random(seed)
    world = World(buffer=buffer)
    for _ in range(count):
        step(world, draw.choice([*ops, "publish", "deliver", "answer"]), draw)
        if world.stream.exact:
            world.check_run()
    world.settle()
    world.publish(2)
    world.settle()
    world.check_run()
    numbers = world.numbers()  # none of a former life
    assert numbers == world.history[len(world.history) - len(numbers) :]
    assert len(numbers) >= 2
    assert not world.stream.exact or numbers == world.history
    if buffer == 10_000 and "forget" not in ops:
        assert world.stream.exact


def step(world: World, op: str, draw: Random) -> None:
    if op in ("publish", "drop", "forget"):
        world.publish(draw.randint(1, 4), drop=op == "drop", forget=op == "forget")
    elif op == "deliver":
        world.deliver(draw.randint(1, 6))
    elif op == "answer":
        world.answer(draw.randint(1, 6))
    elif op == "wait":
        world.wait(draw.choice([0.5, 6.0, 70.0]))
    elif op == "silence":
        world.answering = not world.answering
    elif op == "cut":
        world.cut_answers(draw.randint(1, 3))
    elif op == "tail":
        world.cut_end(draw.randint(0, 3))
    elif op == "double":
        world.live.extend(list(world.live)[-1:])
    elif op == "attach":
        if not world.attached:
            world.attach()
    elif op == "detach":
        world.detach()
    else:
        world.restart()
