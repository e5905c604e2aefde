"""What an `upstream` block says about KV caches -> `model_kv.KvSettings`."""

from __future__ import annotations

from gateway.conf.model_kv import NO_KV, KvSettings
from gateway.conf.node import Node
from gateway.conf.setting import Setting


def resolve_kv(node: Node, setting: Setting) -> KvSettings:
    events = node.one("kv_events")
    return KvSettings(
        aware=node.has("kv_aware"),
        events=NO_KV.events if events is None else events.get("source"),
        quiet_s=NO_KV.quiet_s if events is None else events.get("quiet", NO_KV.quiet_s),
    )
