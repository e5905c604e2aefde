"""What is found of one request on its way to an engine by its prompt: slots for the prompt and pick
phases, read by the receipt, the log and the record.

Invariant: `None` in its place (`Context.kv`) means that the request goes another way; a request
without a prompt has a reason, from a closed set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import Group
    from gateway.kv.token_source import TokenSource
    from gateway.load.goodput import Slo
    from native._core import Choice, Prompt, Scan, Ticket

TIERS = ("device", "host", "disk", "remote", "predicted")
# Where the ids of a prompt come from.
SOURCES = ("local", "render", "tokenize", "given", "bytes")
# Why a prompt is not known, or only by its bytes. Words of a metric: a closed set.
REASONS = (
    "no_prompt",  # an endpoint without one, or no JSON
    "off",  # `tokenizer off`
    "loading",  # the tokenizer is not there yet
    "no_tokenizer",  # neither here nor at an engine
    "media",  # images, sound: only the engine knows their tokens
    "elsewhere",  # the engine renders this model by code of its own
    "state",  # part of the prompt lies in an engine's memory
    "template",  # the request brings its own, or there is none
    "odd",  # a shape whose reading depends on the engine
    "other",  # an endpoint or field that is not understood
    "refused",  # the engine will refuse it, or has refused to tokenise it
    "unreachable",  # no engine tokenised it in time
    "failed",  # the tokenizer could not
)
# Why a request is served by two engines or by one. Likewise.
WHYS = (
    "cheaper", "slo", "forced",  # two
    "short", "hit", "cheaper_one", "slo_one", "no_prefill", "never",  # one
    "endpoint", "choices", "prompts", "field", "media", "unread", "pinned",  # it cannot be two
    "barred",  # the two cannot reach each other of late
    "prefill_failed", "prefill_refused", "not_handed", "expired",  # it was to be two
)  # fmt: skip


class Routed:
    __slots__ = (
        "alone", "authorization", "body", "choice", "computed", "decide_s", "force", "found",
        "group", "lora", "path", "prediction", "prefill", "prompt", "reason", "salt", "scan",
        "sent", "session", "slo", "source", "spared", "ticket", "tokenize_s", "tokens", "trust",
        "why", "wishes",
    )  # fmt: skip

    def __init__(self, path: bytes, group: Group, tokens: TokenSource) -> None:
        self.path = path  # as the engine sees it
        self.group = group
        self.tokens = tokens  # what reads prompts of its upstream
        self.body: bytes | None = None  # as the client sent it, and what `scan` found in it
        self.scan: Scan | None = None
        self.sent: bytes | None = None  # as the engine will get it
        self.authorization = ""  # the client's, for an engine that is asked for token ids
        self.lora: str | None = None  # the adapter that the request is for
        self.salt: str | None = None  # the scope in which the engine shares its blocks
        self.found: object = None  # what was read so far, while the rest is waited for
        self.prompt: Prompt | None = None
        self.source: str = ""  # one of SOURCES, "" = there is no prompt
        self.reason: str = ""  # one of REASONS, "" = the prompt is exact
        self.alone = True  # the request has this one prompt
        self.tokenize_s: float = 0.0
        self.decide_s: float = 0.0
        self.session = b""  # the key of its session, b"" = none
        self.wishes: Mapping[str, str | float] = {}  # policy headers
        self.slo: Slo | None = None  # of its route
        self.choice: Choice | None = None
        # Where the upstream is disaggregated:
        self.force: int | None = None  # 0 by cost, 1 two engines, -1 one; None = it is not
        self.why: str = ""  # of WHYS: why there are two engines, or one
        self.prefill: Choice | None = None  # who computes the prompt; None = who answers
        self.spared: tuple[Engine, ...] = ()  # engines that are not asked for its prefill again
        self.computed: Choice | None = None  # `prefill`, once that has handed it over
        self.prediction = -1  # its number in the index, while a leg runs
        self.ticket: Ticket | None = None  # its charge in the ledger, while a leg runs
        self.trust: str = ""  # of the chosen engine, at the pick

    @property
    def reader(self) -> Choice | None:
        """The engine that looked the prompt up in its cache."""
        return self.computed or self.choice

    @property
    def matched(self) -> int:
        """Prompt tokens expected in that engine's cache, all tiers."""
        choice = self.reader
        return 0 if choice is None else choice.matched

    @property
    def comparable(self) -> bool:
        """Whether what was expected can be held against what the engine says it found."""
        prompt = self.prompt
        return self.choice is not None and prompt is not None and prompt.exact and self.alone

    @property
    def tiers(self) -> str:
        """`device=96,host=32`, those with something; "none"."""
        choice = self.reader
        if choice is None:
            return "none"
        row = choice.row
        return ",".join(f"{tier}={n}" for tier in TIERS if (n := getattr(row, tier))) or "none"

    def receipt(self) -> bytes:
        """Header lines of what is known at the pick."""
        lines = "x-kvgate-prompt: %s\r\n" % (self.source or self.reason)
        if self.prompt is not None:
            lines += f"x-kvgate-prompt-tokens: {self.prompt.tokens}\r\n"
        if self.choice is not None:
            lines += (
                f"x-kvgate-matched-tokens: {self.matched}\r\n"
                f"x-kvgate-tier: {self.tiers}\r\n"
                f"x-kvgate-cost-ms: {self.choice.cost_ms:.1f}\r\n"
                f"x-kvgate-trust: {self.trust}\r\n"
            )
        if self.force is not None:
            lines += f"x-kvgate-disaggregate: {self.why}\r\n"
        return lines.encode()

    def over(self, now: float, tokens: int) -> None:
        """A leg has ended; `tokens` of its answer, -1 = not known."""
        if self.ticket is not None:
            self.ticket.end(now, tokens if tokens >= 0 else None)
            self.ticket = None

    def give_up(self, reason: str) -> None:
        """There is no prompt."""
        self.prompt, self.source, self.reason = None, "", reason
