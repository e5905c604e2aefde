"""`slo` of a server or location -> `model_kv.ServiceLevels`."""

from __future__ import annotations

from gateway.conf.model_kv import ServiceLevels
from gateway.conf.scope import Scope
from gateway.conf.setting import Setting

LEVELS = ("ttft", "tpot", "e2el")


def service_levels(scope: Scope, setting: Setting) -> ServiceLevels | None:
    """What the innermost block says, as a whole; None = nothing: that of the upstream holds."""
    node = scope.one("slo")
    if node is None:
        return None
    written = [name for name in LEVELS if node.get(name)]
    if node.get("what") == "off":
        if written:
            setting.report.error(node.token(written[0]), '"slo off" takes no times')
        return ServiceLevels()
    if not node.words:
        hint = 'write "slo ttft=2s tpot=50ms;", or "slo off;" for none'
        setting.report.error(node.name, '"slo" says nothing', hint)
    return ServiceLevels(*(node.get(name, 0.0) for name in LEVELS))
