"""The load that workers share, through deaths of workers: what is charged is taken back."""

from __future__ import annotations

import random

from harness.mapped import Writer

from native._core import Fit, Ledger, Prompt, Scorer

BUSY = """
import random
from native._core import Ask, Fit, Ledger, Prompt, Scorer
ledger = Ledger(4, 8, fd)
ledger.bind(worker)
engines = [handle for handle, _ in ledger.inflight_all()]
count = len(engines)
columns = [-1] * count, [1] * count, [0] * count, [Fit()] * count, [0] * count
scorer = Scorer(ledger, None, engines, *columns)
prompts = [Prompt.of_list(list(range(n))) for n in (16, 500, 9000)]
ask = Ask(ttft_slo_ms=30.0, tpot_slo_ms=20.0)
rnd = random.Random(worker)
open_ = []
def step(i):
    now = 1000.0 + i * 0.001
    if len(open_) > 30 or (open_ and rnd.random() < 0.4):
        ticket = open_.pop(rnd.randrange(len(open_)))
        if rnd.random() < 0.7:
            ticket.first(now)
        ticket.end(now, rnd.randrange(100))
    choice = scorer.select(rnd.choice(prompts), b"\\1" * count, now, i, ask)
    open_.append(choice.start(now))
"""


def test_killed_workers_leave_no_load_behind() -> None:
    rnd = random.Random(8)
    ledger = Ledger(4, 8)
    ledger.bind(3)
    engines = [ledger.add_engine() for _ in range(3)]
    columns = [-1] * 3, [1] * 3, [0] * 3, [Fit()] * 3, [0] * 3
    scorer = Scorer(ledger, None, engines, *columns)
    prompt = Prompt.of_list(list(range(700)))
    held = [scorer.at(place, prompt, 1000.0).start(1000.0) for place in range(3)]
    alone = [(row.waiting, row.running, row.late, row.kv_tokens) for row in look(scorer)]
    for _ in range(5):
        with Writer(BUSY, ledger.fd, 0) as one, Writer(BUSY, ledger.fd, 1) as two:
            for writer in (one, two):
                writer.done(rnd.randint(1, 6))
            for writer in (one, two):
                writer.kill()
        busy = look(scorer)
        assert sum(row.waiting + row.running for row in busy) > 3
        assert ledger.retire(0) and ledger.retire(1)
        after = look(scorer)
        assert [(r.waiting, r.running, r.late, r.kv_tokens) for r in after] == alone
        assert all(row.queue_ms <= 700 for row in after)
    for ticket in held:
        assert ticket.end(1001.0)
    after = look(scorer)
    assert all((r.waiting, r.running, r.kv_tokens, r.queue_ms) == (0, 0, 0, 0) for r in after)
    assert ledger.ignored() == (0, 0)


def look(scorer: Scorer) -> list:
    return scorer.explain(Prompt.of_list([1, 2, 3]), b"\1\1\1", 1000.0)


def test_every_worker_sees_what_the_others_sent() -> None:
    first = Ledger(2, 4)
    second = Ledger(2, 4, first.fd)
    first.bind(0)
    second.bind(1)
    engines = [first.add_engine() for _ in range(2)]
    columns = [-1] * 2, [1] * 2, [0] * 2, [Fit("h100-8b-tp1")] * 2, [0] * 2
    here, there = Scorer(first, None, engines, *columns), Scorer(second, None, engines, *columns)
    prompt = Prompt.of_list(list(range(20_000)))
    ticket = here.at(0, prompt, 50.0).start(50.0)
    row = there.explain(prompt, b"\1\1", 50.1)[0]
    assert row.waiting == 1 and row.queue_ms > 300
    assert {there.select(prompt, b"\1\1", 50.1, seed).place for seed in range(20)} == {1}
    # It shrinks as time goes, and is gone at the first token.
    assert there.explain(prompt, b"\1\1", 50.3)[0].queue_ms < row.queue_ms - 190
    ticket.first(50.5)
    assert there.explain(prompt, b"\1\1", 50.5)[0].queue_ms == 0.0
    ticket.end(51.0, 30)
    assert there.explain(prompt, b"\1\1", 51.0)[0].kv_tokens == 0
