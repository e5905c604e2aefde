"""Small blocks in bundles: sent together, fetched together, dropped one by one; and bundles that
are not what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.blocks import BLOCK, Engine, name
from harness.machine import COUNT, PAGE, RECORD, Machine
from harness.waiting import until

REMOTE, DISK, MISS = 3, 2, 0


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def machine(**options: object) -> Machine:
        made.append(Machine(tmp_path / str(len(made)), **options))
        return made[-1]

    yield machine
    for each in made:
        each.stop()


@pytest.fixture
def pair(make: Callable[..., Machine]) -> tuple[Machine, Machine]:
    """One that sent blocks 0 to 3 in a bundle, another that learnt of it."""
    one, two = make(), make(upload="off")
    one.engine.store(range(COUNT))
    one.idle()
    two.sees(one.store)
    assert two.engine.lookup(range(COUNT)) == [REMOTE] * COUNT
    return one, two


def test_full_bundles_and_what_has_waited(make: Callable[..., Machine]) -> None:
    one = make()
    one.engine.store(range(2 * COUNT + 3))
    one.idle()
    sizes = sorted(len(data) for data in one.store.bundles.values())
    assert sizes == [PAGE + n * RECORD for n in (3, COUNT, COUNT)]
    assert not one.store.held
    one.engine.store([50])
    one.idle()
    assert len(one.store.held) == 1, "one block alone is no bundle"
    assert one.figure("remote_bundles") == 3
    assert one.figure("remote_blocks") == 2 * COUNT + 4


def test_large_blocks_go_alone(make: Callable[..., Machine]) -> None:
    one = make(bundle_below=BLOCK - 1)
    one.engine.store(range(3))
    one.idle()
    assert (len(one.store.held), len(one.store.bundles)) == (3, 0)


def test_neighbours_come_in_one_request(pair: tuple[Machine, Machine]) -> None:
    _, two = pair
    assert two.load([3, 1, 2]) == [0, 0, 0]
    assert all(two.engine.holds(slot, n) for slot, n in enumerate([3, 1, 2]))
    assert (two.figure("remote_fetches"), two.figure("remote_fetched")) == (1, 3)
    until(lambda: two.engine.lookup(range(COUNT)) == [REMOTE, DISK, DISK, DISK], "them on disk")


def test_the_chain_ahead_comes_in_one_request(pair: tuple[Machine, Machine]) -> None:
    _, two = pair
    two.engine.client.prefetch([name(n) for n in range(COUNT)])
    until(lambda: (two.store.serve(), two.engine.lookup(range(COUNT)) == [DISK] * COUNT)[1], "them")
    assert two.store.seen == ["ahead"]


def test_a_bundle_is_known_to_whoever_finds_it(make: Callable[..., Machine]) -> None:
    one = make()
    one.engine.store(range(COUNT))
    one.idle()
    other = make(bundle_bytes=0)
    other.sees(one.store)
    assert other.engine.lookup(range(COUNT + 1)) == [REMOTE] * COUNT + [MISS]
    other.engine.store([0])
    other.idle()
    assert other.store.seen == [], "what is there in a bundle is not sent again"
    less = make(remote_blocks=2)
    less.sees(one.store)
    assert sorted(less.engine.lookup(range(COUNT))) == [MISS, MISS, REMOTE, REMOTE]
    assert less.figure("remote_left_out") == 2


def test_dropped_blocks_stay_dropped_and_the_last_takes_the_object(
    pair: tuple[Machine, Machine], make: Callable[..., Machine]
) -> None:
    one, two = pair
    [fingerprint] = {print for print, _ in one.store.bundles}
    keys = one.keys(range(COUNT))
    one.store.drop(fingerprint, keys[:2])
    one.idle()
    assert [set(keys[:2])] == list(one.store.marks.values())
    two.store.survey()
    until(lambda: two.engine.lookup(range(COUNT)) == [MISS, MISS, REMOTE, REMOTE], "the drop")
    three = make()
    three.sees(one.store)
    until(lambda: three.engine.lookup(range(COUNT)) == [MISS, MISS, REMOTE, REMOTE], "it, later")
    assert three.load([2, 3]) == [0, 0]
    two.store.drop(fingerprint, keys[2:])
    assert (one.store.bundles, one.store.marks) == ({}, {})


def change(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def lie(machine: Machine, data: bytes) -> list[int]:
    """The blocks of a bundle as they lie in it: in the order they were written in, any."""
    keys = machine.keys(range(COUNT))
    heads = [data[at + 64 : at + 96] for at in range(PAGE, len(data), RECORD)]
    return [keys.index(head) for head in heads]


FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "payload": lambda data: change(data, PAGE + RECORD + PAGE + 77),
    "header": lambda data: change(data, PAGE + RECORD + 64),
    "foreign": lambda data: data[: PAGE + RECORD] + data[-RECORD:] + data[PAGE + 2 * RECORD :],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_block_is_a_miss_and_its_neighbours_are_not(
    pair: tuple[Machine, Machine], fault: str
) -> None:
    _, two = pair
    [which] = two.store.bundles
    first, bad, *others = lie(two, two.store.bundles[which])
    two.store.bundles[which] = FAULTS[fault](two.store.bundles[which])
    assert two.load([first, bad, others[0]]) == [0, 17, 0]
    assert two.engine.holds(0, first)
    assert two.engine.holds(2, others[0])
    assert two.figure("remote_corrupt") == 1
    two.idle()
    assert two.store.marks == {which: set(two.keys([bad]))}, "nobody is offered it again"
    assert two.engine.lookup([bad, others[1]]) == [MISS, REMOTE]


@pytest.mark.parametrize("length", [0, PAGE, PAGE + RECORD - 1])
def test_a_bundle_cut_short_gives_what_is_whole(pair: tuple[Machine, Machine], length: int) -> None:
    _, two = pair
    [which] = two.store.bundles
    two.store.bundles[which] = two.store.bundles[which][:length]
    assert two.load([0, 1]) == [17, 17]
    assert two.figure("remote_corrupt") == 2
    assert two.engine.lookup([0, 1]) == [MISS, MISS]


def test_a_bundle_that_is_gone_is_a_miss_and_news_when_it_comes_again(
    pair: tuple[Machine, Machine],
) -> None:
    _, two = pair
    held = dict(two.store.bundles)
    two.store.bundles.clear()
    assert two.load([0]) == [1]
    assert two.figure("remote_absent") == 1
    assert two.engine.lookup(range(COUNT)) == [MISS] * COUNT, "all of it, after one load"
    assert (two.figure("remote_bundles"), two.figure("remote_blocks")) == (0, 0)
    two.store.bundles.update(held)
    two.store.survey()
    assert two.engine.lookup(range(COUNT)) == [REMOTE] * COUNT
    assert two.load([0, 1, 2, 3]) == [0] * COUNT


def test_a_block_of_another_length_takes_no_bundle_away(pair: tuple[Machine, Machine]) -> None:
    """Who asks with a length of his own is wrong about one block, not about the object."""
    _, two = pair
    [(print, _)] = two.store.bundles
    assert two.core.hint(print, two.keys([0]), BLOCK // 2) == 1
    until(lambda: two.store.serve(), "the fetch")
    until(lambda: two.figure("remote_absent") == 1, "its end")
    assert two.engine.lookup(range(COUNT)) == [MISS] + [REMOTE] * (COUNT - 1)


def test_what_a_listing_does_not_name_is_no_hit(pair: tuple[Machine, Machine]) -> None:
    one, two = pair
    one.engine.store([50, 51, 52, 53])
    one.engine.store([60])
    one.idle()
    two.store.survey()
    assert two.engine.lookup([0, 50, 60]) == [REMOTE] * 3
    del one.store.bundles[next(iter(one.store.bundles))]
    one.store.held.clear()
    two.store.survey()
    until(lambda: two.engine.lookup([0, 1, 60]) == [MISS] * 3, "that they are gone")
    assert two.engine.lookup([50, 53]) == [REMOTE] * 2
    assert two.figure("remote_unlisted") == COUNT + 1
    assert two.load([50, 51, 52, 53]) == [0] * COUNT


@pytest.mark.parametrize("fault", ["flipped", "short", "long", "renamed", "elsewhere", "empty"])
def test_a_bad_index_is_no_index(make: Callable[..., Machine], fault: str) -> None:
    one = make()
    one.engine.store(range(COUNT))
    one.idle()
    [(print, bundle)] = one.store.bundles
    data = one.store.bundles.pop((print, bundle))
    if fault == "renamed":
        bundle = bytes(32)
    if fault == "flipped":
        data = change(data, 130)
    cut = {"short": data[:-1], "long": data + b"x", "empty": b""}.get(fault, data)
    one.store.bundles[print, bundle] = cut
    two = make()
    if fault == "elsewhere":
        other = Engine(str(two.engine_socket), probe=bytes(32)).up()
        assert other.client.fingerprint is not None
        one.store.bundles = {(other.client.fingerprint, bundle): cut}
        other.__exit__(None, None, None)
    two.sees(one.store)
    assert two.engine.lookup(range(COUNT)) == [MISS] * COUNT
    assert two.figure("remote_bundles") == 0
    assert one.store.bundles == {}, "it is deleted"


def test_a_bundle_of_a_later_version_is_left_alone(make: Callable[..., Machine]) -> None:
    one, two = make(), make()
    one.engine.store(range(COUNT))
    one.idle()
    [(print, bundle)] = one.store.bundles
    data = bytearray(one.store.bundles[print, bundle][:PAGE])
    data[8] = 2
    data[12:16] = crc32c(bytes(data[:12]) + bytes(4) + bytes(data[16:])).to_bytes(4, "little")
    size = PAGE + COUNT * RECORD
    assert two.store.door.bundled(print, bundle, bytes(data), size) == 0
    assert two.engine.lookup(range(COUNT)) == [MISS] * COUNT


def crc32c(data: bytes) -> int:
    """Bit by bit: CRC-32C, Castagnoli's polynomial reflected (RFC 3720, B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_a_store_that_is_away_costs_no_block(pair: tuple[Machine, Machine]) -> None:
    _, two = pair
    two.store.away = True
    assert two.load([0, 1]) == [16, 16]
    assert (two.figure("remote_failed"), two.figure("remote_fetches")) == (2, 1)
    two.store.away = False
    assert two.load([0, 1]) == [0, 0]
