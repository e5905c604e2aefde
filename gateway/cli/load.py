"""`kvgate load`: sends recorded or made-up traffic to an endpoint and measures what comes back.

Exit status: 0 done, 1 the endpoint or the trace cannot be or no request was answered, 2 wrong
usage. The report goes to stdout. The first Ctrl-C ends the run and prints what there is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TextIO

import uvloop

from gateway.cli import load_options
from gateway.cli.companion import USAGE, Failed, faults_of, status_of, under_way
from gateway.load import report
from gateway.load.client import Target
from gateway.load.goodput import Slo
from gateway.load.inquiry import CannotAsk, model_of, scale_of
from gateway.load.offer import Offer, Offers, spread
from gateway.load.prompts import Asking, Scale, Writer
from gateway.load.run import Limits, Run, Sender
from gateway.load.search import Search
from gateway.load.summary import measured, summarise
from gateway.planner.trace_files import rows
from gateway.planner.trace_formats import Told


def main(argv: Sequence[str]) -> int:
    return status_of(lambda: _run(argv))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What each run of this call has in common."""

    target: Target
    path: str
    asking: Asking
    scale: Scale
    limits: Limits
    slo: Slo
    seed: int


def _run(argv: Sequence[str]) -> None:
    options = load_options.parser().parse_args(argv)
    load_options.check(options)
    offers = _offers(options)
    plan = _plan(options)
    if options.find:
        _find(options, plan, offers)
        return
    found = uvloop.run(_once(plan, offers, str(plan.seed)))
    under_way("")
    if options.out:
        with faults_of(options.out), options.out.open("w") as out:
            _each(found, out)
    summary = summarise(found, plan.slo)
    if options.json:
        print(json.dumps(report.as_json(summary)))
    else:
        print(report.as_text(summary))
    if not summary.completed:
        _unanswered(summary.failed)


def _unanswered(failed: Mapping[str, int]) -> None:
    """A run without an answer has measured nothing, which scripts are to see. Raises Failed."""
    if failed:
        causes = ", ".join(f"{count} {cause}" for cause, count in failed.items())
        raise Failed(f"no request was answered: {causes}")


def _find(options: argparse.Namespace, plan: _Plan, offers: Offers) -> None:
    if not offers.rate:
        raise Failed("one request has no rate", "--requests N, at least 2", USAGE)
    search = Search(options.target, options.rate or offers.rate)
    failed: Counter[str] = Counter()
    while (rate := search.next()) is not None:
        # Other text each time: nothing is to be found cached that another rate has asked for.
        salt = f"{plan.seed} {len(search.probes)}"
        run = uvloop.run(_once(plan, offers.at_rate(rate), salt))
        if run.stopped:
            break
        summary = summarise(run, plan.slo)
        assert summary.goodput is not None
        failed.update(summary.failed)
        search.take(rate, summary.goodput)
    under_way("")
    if options.json:
        print(json.dumps(report.search_json(search)))
    else:
        print(report.search_text(search))
    if not any(probe.found.throughput for probe in search.probes):
        _unanswered(failed)


def _offers(options: argparse.Namespace) -> Offers:
    if options.trace is None:
        return load_options.mix(options).offers(options.seed)
    with faults_of(options.trace):
        found = rows(options.trace, options.requests, Told(options.block, 0.0))
    for line in found.hashed.assumed:
        print(f"assumed: {line}", file=sys.stderr)
    times = spread([row.at_s for row in found.rows], found.tick_s, options.seed)
    order = sorted(range(len(times)), key=times.__getitem__)
    first_s = times[order[0]]
    offers = Offers(
        [
            Offer(times[at] - first_s, row.input, row.output, row.blocks or ())
            for at in order
            for row in (found.rows[at],)
        ],
        found.block,
    )
    return offers.at_rate(options.rate) if options.rate else offers.by(options.speed)


def _plan(options: argparse.Namespace) -> _Plan:
    chat = options.endpoint == "chat"
    key = os.environ.get(options.key_from, "") if options.key_from else ""
    headers = (*options.header, *((("Authorization", f"Bearer {key}"),) if key else ()))
    try:
        target = Target.of(options.url, headers)
        model = options.model or model_of(target)
        asking = Asking(model, chat, not options.plain)
        scale = scale_of(target, asking) if chat else Scale()
    except ValueError as error:
        raise Failed(str(error), status=USAGE) from None
    except CannotAsk as error:
        raise Failed(str(error), error.hint) from None
    path = "/v1/chat/completions" if chat else "/v1/completions"
    limits = Limits(options.concurrency, options.timeout)
    return _Plan(target, path, asking, scale, limits, Slo(**options.slo), options.seed)


async def _once(plan: _Plan, offers: Offers, salt: str) -> Run:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    writer = Writer(plan.asking, offers.block, salt, plan.scale)
    sender = Sender(plan.target, plan.path, writer, plan.limits)
    try:
        return await sender.run(offers, stop, _told)
    except OSError as error:
        raise Failed(f"{plan.target.host}: {error.strerror or error}") from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _told(run: Run, at_once: int) -> None:
    sent, all_ = len(run.replies), len(run.offers.requests)
    under_way(f"{run.offers.rate:.2f}/s: {sent} of {all_} sent, {at_once} under way")


def _each(run: Run, out: TextIO) -> None:
    """One JSON line for each request; times in seconds since the start of the run."""
    for offer, reply in zip(run.offers.requests, run.replies, strict=False):
        one = asdict(replace(measured(reply, reply.due_s), itl_s=()))
        del one["itl_s"]
        line = {
            "due_s": offer.at_s,
            "sent_s": reply.sent_s - run.start_s if reply.sent_s >= 0 else None,
            "held_s": reply.held_s,
            "input": offer.input,
            "output": offer.output,
            "cause": reply.cause,
            "prompt_tokens": reply.prompt_tokens,
            "cached_tokens": reply.cached_tokens,
            **one,
        }
        out.write(json.dumps(line) + "\n")
