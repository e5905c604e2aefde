"""What an upstream says about KV caches: whether requests follow them, where the gateway's
knowledge of them comes from, and how it is weighed. Frozen data only.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.conf.model_text import Template

QUIET_S = 60.0
INDEX_BYTES = 1 << 30
# Built-in profiles of step times, and the constants of one, as `native` has them.
PROFILES = (
    "neutral", "h100-8b-tp1", "h200-8b-tp1", "a100-8b-tp1", "h100-70b-tp4", "h100-70b-tp8",
    "a100-70b-tp4",
)  # fmt: skip
FIT = ("base", "a0", "b", "c", "hb", "hk", "ovh")


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """`kind`: auto | remote | off | files | name. `path`: of a tokenizer.json, for `files`;
    `name`: of a model in the cache of models."""

    kind: str = "auto"
    path: str = ""
    name: str = ""
    chat_template: str = ""  # file, "" = the tokenizer's own


@dataclass(frozen=True, slots=True)
class KvSettings:
    """Of one upstream; without `aware` nothing but the SLO has an effect."""

    aware: bool = False  # kv_aware: requests go where their prefix lies
    events: str = "auto"  # auto: KV events of every engine that has any | off: by decisions alone
    quiet_s: float = QUIET_S  # no event for so long under traffic is reported; 0 = never
    tokenizer: TokenizerSource = TokenizerSource()
    block_size: int = 0  # tokens; 0 = learnt from events, 16 until then
    capacity_tokens: int = 0  # KV tokens of an engine where no events tell; 0 = asked, or assumed
    profile: str = PROFILES[0]  # of step times
    fit: tuple[tuple[str, float], ...] = ()  # constants in place of the profile's, by name in FIT
    chunk_tokens: int = 0  # prompt tokens of a step, 0 = the profile's
    ttft_s: float = 0.0  # slo ttft=; 0 = none
    tpot_s: float = 0.0  # slo tpot=; 0 = none
    e2el_s: float = 0.0  # slo e2el=; 0 = none
    overlap_weight: float = 1.0
    session: Template | None = None  # what holds requests of one session together

    @property
    def listens(self) -> bool:
        """Whether KV events are followed."""
        return self.aware and self.events != "off"


NO_KV = KvSettings()


@dataclass(frozen=True, slots=True)
class ServiceLevels:
    """`slo` of a server or location, in place of that of its upstreams. Seconds, 0 = none."""

    ttft_s: float = 0.0
    tpot_s: float = 0.0
    e2el_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Disaggregation:
    """Whether and how prompts of an upstream are computed on one engine and answered by another."""

    mode: str = "off"  # off | auto: where it pays | always: wherever it can
    pending: int = 64  # prefills on their way at one engine; 0 = no limit
    connector: str = "pull"  # pull: the decode engine reads | push: the prefill engine writes
    lease_s: float = 30.0  # the engines' kv_lease_duration
    on_prefill_error: str = "retry"  # retry: elsewhere, then local | local | fail
    on_decode_error: str = "retry"  # retry: once, from the prefill on | fail
    roles: str = "fixed"  # fixed: as declared | elastic: engines of both roles follow the load
    dwell_s: float = 60.0  # an engine keeps a role for at least so long

    @property
    def wanted(self) -> bool:
        return self.mode != "off"


NOT_DISAGGREGATED = Disaggregation()
