"""What a scrape says of the processes: how many, what became of them, how late their loops are."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from harness import waiting

from gateway.process.delay import BOUNDS_S, Delays


def samples(one) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """By name and labels as they are written."""
    lines = [line for line in one.gateway.metrics().splitlines() if line and line[0] != "#"]
    rows = (line.rpartition(" ") for line in lines)
    return {name.removeprefix("kvgate_"): float(value) for name, _, value in rows}


def test_workers_and_reloads_are_counted(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree()
    begun = samples(one)
    assert begun['workers{state="serving"}'] == begun["workers_started_total"] == 2
    assert begun["workers_died_total"] == begun['reloads_total{result="taken"}'] == 0
    assert begun["last_reload_ok"] == begun["config_generation"] == 1
    assert 0 <= time.time() - begun["config_loaded_timestamp_seconds"] < 60

    victim = one.processes()[0]
    one.kill(victim)

    def replaced(status: Any) -> bool:
        workers = [p for p in status["processes"] if p["kind"] == "worker"]
        there = {p["pid"] for p in workers if p["state"] == "serving"}
        return len(there) == len(workers) == 2 and victim not in there

    one.gateway.wait_each(replaced, "the death and the successor")
    now = samples(one)
    assert (now["workers_died_total"], now["workers_started_total"]) == (1, 3)

    one.reload()
    one.gateway.wait_each(lambda status: status["generation"] == 2, "the reload")
    assert samples(one)['reloads_total{result="taken"}'] == 1
    one.more = "nonsense;"
    one.gateway.config_file.write_text(one.text())
    one.gateway.signal(signal.SIGHUP)
    one.gateway.wait_each(lambda status: status["reload_failed"] > 0, "the refusal")
    now = samples(one)
    assert now['reloads_total{result="refused"}'] == 1
    assert (now["last_reload_ok"], now["config_generation"]) == (0, 2)
    assert now['workers{state="serving"}'] == 2 and now['reloads_total{result="taken"}'] == 1


def test_a_loop_that_was_held_up_shows_in_its_workers_histogram(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree()

    def late(above_s: float) -> dict[str, float]:
        """By worker, how many timers were later than a bound."""
        now = samples(one)
        found = {}
        for name, count in now.items():
            if name.startswith("event_loop_delay_seconds_count"):
                worker = name.partition('worker="')[2].partition('"')[0]
                labels = f'le="{above_s!r}",worker="{worker}"'
                found[worker] = count - now[f"event_loop_delay_seconds_bucket{{{labels}}}"]
        return found

    waiting.until(lambda: len(late(0.2)) == 2, "both workers to have counted")
    before = late(0.2)
    held = one.processes()[0]
    os.kill(held, signal.SIGSTOP)
    waiting.until_clock(time.monotonic() + 0.4)
    os.kill(held, signal.SIGCONT)
    waiting.until(lambda: sum(late(0.2).values()) > sum(before.values()), "the delay to be counted")


def test_delays_are_counted_by_row_and_bound() -> None:
    delays = Delays(3)
    delays.bind(1)
    for late_s in (-0.5, 0.0, BOUNDS_S[0], 0.0015, BOUNDS_S[-1] + 1):
        delays.observe(late_s)
    counts, total_s = delays.read()[1]
    assert list(delays.read()) == [1]
    assert counts == [3, 1, *[0] * (len(BOUNDS_S) - 2), 1]
    assert abs(total_s - (BOUNDS_S[0] + 0.0015 + BOUNDS_S[-1] + 1)) < 1e-6
