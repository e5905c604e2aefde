"""What an upstream says about KV caches: whether requests follow them, where the gateway's
knowledge of them comes from, and how it is weighed. Frozen data only.
"""

from __future__ import annotations

from dataclasses import dataclass

QUIET_S = 60.0
INDEX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class KvSettings:
    """Of one upstream; without `aware` nothing else has an effect."""

    aware: bool = False  # kv_aware: requests go where their prefix lies
    events: str = "auto"  # auto: KV events of every engine that has any | off: by decisions alone
    quiet_s: float = QUIET_S  # no event for so long under traffic is reported; 0 = never
    tokenizer: str = ""  # auto | remote | a folder, file or hub name; "" = nothing was said
    chat_template: str = ""  # file, "" = the tokenizer's own
    block_size: int = 0  # tokens; 0 = learnt from events, 16 until then
    capacity_tokens: int = 0  # KV tokens of an engine where no events tell; 0 = asked, or assumed
    profile: str = ""  # step-time profile, "" = the default one
    ttft_s: float = 0.0  # slo ttft=; 0 = none
    tpot_s: float = 0.0  # slo tpot=; 0 = none
    overlap_weight: float = 1.0
    session_key: str = ""  # what holds requests of one session together, "" = nothing

    @property
    def listens(self) -> bool:
        """Whether KV events are followed."""
        return self.aware and self.events != "off"


NO_KV = KvSettings()
