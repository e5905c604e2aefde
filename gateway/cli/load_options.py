"""The options of `kvgate load`, and the mix that they describe."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from gateway.cli import amounts
from gateway.cli.amounts import number
from gateway.cli.companion import USAGE, Failed, Parser
from gateway.load.offer import REQUESTS_MAX, Lengths, Mix
from gateway.load.run import CONCURRENCY_MAX

LONGEST = 1 << 20  # tokens
MIX_REQUESTS = 200


def parser() -> Parser:
    made = Parser(
        prog="kvgate load",
        description="Sends traffic to an OpenAI endpoint when it is due, and measures the answers.",
        epilog="lengths: 512, 100-1000 (each as likely), 1000~0.8 (lognormal, mean and CV); traces "
        "as kvgate workload reads them",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("url", metavar="URL", help="such as http://127.0.0.1:8000")
    add("--trace", type=Path, metavar="FILE", help="recorded requests")
    add("--speed", type=_positive, default=1.0, metavar="X", help="a trace so much faster")
    add("--rate", type=_positive, default=0.0, metavar="R", help="requests a second, in the mean")
    add("--requests", type=amounts.some, default=0, metavar="N",
        help=f"so many (a trace: all; without one: {MIX_REQUESTS})")  # fmt: skip
    add("--input", type=_lengths, default=Lengths(512, 512), metavar="N", help="tokens (512)")
    add("--output", type=_lengths, default=Lengths(64, 64), metavar="N", help="tokens (64)")
    add("--cv", type=_cv, default=1.0, metavar="CV", help="of gaps between arrivals (1: Poisson)")
    add("--prefix", type=amounts.count, default=0, metavar="N", help="shared tokens of prompts")
    add("--prefixes", type=amounts.some, default=1, metavar="N", help="different ones (1)")
    add("--block", type=amounts.count, default=0, metavar="N", help="tokens of a trace's block")
    add("--model", default="", metavar="NAME", help="(the endpoint's first)")
    add("--endpoint", choices=("completions", "chat"), default="completions",
        help="completions: prompts are token ids (default); chat: words")  # fmt: skip
    add("--plain", action="store_true", help="no ignore_eos and min_tokens: answers may end early")
    add("--slo", type=_slo, default={}, metavar="ttft=2s,tpot=50ms,e2el=30s")
    add("--find", action="store_true", help="look for the highest rate within the SLO")
    add("--target", type=amounts.share, default=0.9, metavar="SHARE", help="in time (0.9)")
    add("--concurrency", type=amounts.some, default=CONCURRENCY_MAX, metavar="N",
        help=f"requests at once ({CONCURRENCY_MAX})")  # fmt: skip
    add("--timeout", type=amounts.time, default=600.0, metavar="TIME", help="of a request (10m)")
    add("--seed", type=amounts.count, default=0, metavar="N", help="of times, lengths and text (0)")
    add("--header", type=_header, action="append", default=[], metavar="'NAME: VALUE'")
    add("--key-from", metavar="VARIABLE", help="environment variable with an API key")
    add("--out", type=Path, metavar="FILE", help="a JSON line for each request")
    add("--json", action="store_true", help="the report, as one JSON line")
    return made


def check(options: argparse.Namespace) -> None:
    """What no single option can say. Raises Failed."""
    if options.find and not options.slo:
        raise Failed("--find needs --slo", "--slo ttft=2s,tpot=50ms", USAGE)
    if options.find and options.out:
        raise Failed("--find and --out do not go together", "--out is of one run", USAGE)
    if options.trace is None and not options.rate:
        raise Failed("nothing says how much to send", "--trace FILE, or --rate R", USAGE)
    if options.rate and options.speed != 1.0:
        raise Failed("--rate and --speed do not go together", status=USAGE)
    if not options.requests:
        options.requests = MIX_REQUESTS if options.trace is None else REQUESTS_MAX


def mix(options: argparse.Namespace) -> Mix:
    return Mix(
        rate=options.rate,
        requests=options.requests,
        input=options.input,
        output=options.output,
        cv=options.cv,
        prefix=options.prefix,
        prefixes=options.prefixes,
    )


def _slo(text: str) -> dict[str, float]:
    return {f"{name}_s": value for name, value in amounts.slos(text, ("ttft", "tpot", "e2el"))}


def _lengths(text: str) -> Lengths:
    found = re.fullmatch(r"(\d+)(?:-(\d+)|~([0-9.]+))?", text)
    try:
        assert found is not None
        low = int(found[1])
        cv = float(found[3] or 0)
        high = int(found[2] or (LONGEST if cv else low))
        assert 0 < low <= high <= LONGEST and cv <= 10
    except (AssertionError, ValueError):
        raise argparse.ArgumentTypeError(
            f'"{text}" is not a number of tokens, 100-1000, or 1000~0.8 (mean and CV)'
        ) from None
    return Lengths(low, high, cv)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or "\n" in value:
        raise argparse.ArgumentTypeError(f'"{text}" is not a header such as "X-Tenant: a"')
    return name, value.strip()


def _positive(text: str) -> float:
    found = number(text)
    if not 1e-6 <= found <= 1e6:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number above 0')
    return found


def _cv(text: str) -> float:
    found = number(text)
    if not 0 <= found <= 100:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number from 0 to 100')
    return found
