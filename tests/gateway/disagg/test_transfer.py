"""Parameters are given out once, in time, and come back only where nothing was sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.vllm.handoff import Handed, Peer, read
from gateway.disagg.transfer import Spent, Transfer, deadline

HANDED = Handed(b'{"do_remote_prefill":true}', Peer("e", "h", 1, 1), 9, -1, -1)
LEASE_S = 30.0
NEEDED = (
    b'{"do_remote_prefill":true,"remote_block_ids":[[1,2]],"remote_engine_id":"e",'
    b'"remote_request_id":"r","remote_host":"h","remote_port":5600 , "x":1.0}'
)


def transfer(asked: float = 0.0) -> Transfer:
    return Transfer(SimpleNamespace(), LEASE_S, asked)  # type: ignore[arg-type]


def leg(unsent: bool, started: float = 1.0) -> Any:
    return SimpleNamespace(unsent=unsent, t_start=started)


steps = st.lists(
    st.tuples(
        st.sampled_from(["hold", "take", "back_unsent", "back_sent", "used", "failed", "let_go"]),
        st.floats(0.0, 20.0),
    ),
    max_size=12,
)


@given(steps)
def test_nobody_gets_them_twice_or_too_late(steps: list[tuple[str, float]]) -> None:
    one, now = transfer(), 0.0
    out = sent = 0  # legs that hold the parameters, and that ever sent them
    gone = 0  # told to let go
    for what, wait in steps:
        now += wait
        try:
            if what == "hold" and one.state == "asked":
                one.hold(HANDED, now)
            elif what == "take":
                assert one.take(now) is HANDED
                out += 1
                assert now <= deadline(0.0, LEASE_S) < LEASE_S
            elif what.startswith("back"):
                one.give_back(leg(what == "back_unsent"))
                out -= 1
            elif what in ("used", "failed") and out:
                one.end("used" if what == "used" else "failed")
                out, sent = out - 1, sent + 1
            elif what == "let_go" and one.let_go() is not None:
                gone += 1
        except Spent:
            pass
        assert out in (0, 1) and sent + out + gone <= 1
    with pytest.raises(Spent):
        one.take(LEASE_S)


def test_a_lease_counts_from_when_the_prefill_was_asked_for() -> None:
    one = transfer(asked=100.0)
    one.hold(HANDED, 126.9)
    assert one.fresh(126.9)
    late = transfer(asked=100.0)
    late.hold(HANDED, 127.1)
    assert not late.fresh(127.1) and late.state == "expired"


def test_what_is_too_old_to_be_fetched_can_be_let_go_once() -> None:
    one = transfer()
    one.hold(HANDED, 1.0)
    assert not one.fresh(LEASE_S) and one.let_go() is HANDED
    assert one.let_go() is None and one.state == "released"
    with pytest.raises(Spent):
        one.take(2.0)


def test_a_leg_that_never_began_gives_them_back() -> None:
    one = transfer()
    one.hold(HANDED, 1.0)
    one.take(1.0)
    one.give_back(leg(False, started=0.0))
    assert one.take(2.0) is HANDED


def test_what_a_prefill_engine_answers_is_taken_as_it_is() -> None:
    found = read(b'{"usage":{},"kv_transfer_params" : %b}' % NEEDED, 4, -1)
    assert found is not None and found.raw == NEEDED
    assert (found.peer, found.tokens, found.cached_tokens) == (Peer("e", "h", 5600, 1), -1, 4)
    newer = NEEDED.replace(b'"x":1.0', b'"remote_prefill_cached_tokens":0,"remote_num_tokens":9')
    found = read(b'{"kv_transfer_params":%b}' % newer, 4, -1)
    assert found is not None and (found.tokens, found.cached_tokens) == (9, -1)


@pytest.mark.parametrize(
    "params",
    [b"null", b"1", b"{}", b'{"do_remote_prefill":false}', NEEDED.replace(b"remote_host", b"no"),
     NEEDED.replace(b"5600", b'"x"'), NEEDED.replace(b"[[1,2]]", b"null")],
)  # fmt: skip
def test_what_a_decode_engine_could_not_use_is_nothing(params: bytes) -> None:
    assert read(b'{"kv_transfer_params":%b}' % params, -1, -1) is None
    assert read(b"{}", -1, -1) is None and read(b"no json", -1, -1) is None
