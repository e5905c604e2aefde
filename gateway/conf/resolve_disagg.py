"""What an `upstream` block says about disaggregated serving -> `model_kv.Disaggregation`."""

from __future__ import annotations

from gateway.conf.errors import Report, quoted
from gateway.conf.model import EngineLine
from gateway.conf.model_kv import NOT_DISAGGREGATED, Disaggregation
from gateway.conf.node import Node

_WORDS = {"kv_connector": "kind", "on_prefill_error": "what", "on_decode_error": "what"}


def resolve_disagg(node: Node) -> Disaggregation:
    line, standard = node.one("disaggregate"), NOT_DISAGGREGATED
    lease, roles = node.one("kv_lease"), node.one("roles")
    words = {
        name: getattr(standard, name.removeprefix("kv_")) if at is None else at.get(arg)
        for name, arg in _WORDS.items()
        for at in (node.one(name),)
    }
    return Disaggregation(
        mode=standard.mode if line is None else line.get("mode"),
        pending=standard.pending if line is None else line.get("pending", standard.pending),
        connector=words["kv_connector"],
        roles=standard.roles if roles is None else roles.get("mode"),
        dwell_s=standard.dwell_s if roles is None else roles.get("dwell", standard.dwell_s),
        lease_s=standard.lease_s if lease is None else lease.get("time"),
        on_prefill_error=words["on_prefill_error"],
        on_decode_error=words["on_decode_error"],
    )


def check_roles(
    node: Node, conf: Disaggregation, engines: tuple[EngineLine, ...], report: Report
) -> None:
    """The engines, taken together, can do what is asked of them."""
    line = node.one("disaggregate")
    if line is None or not conf.wanted:
        at = node.one("roles")
        if at is not None and conf.roles == "elastic":
            hint = 'write "disaggregate auto;"'
            report.error(at.name, '"roles elastic" needs "disaggregate"', hint)
        if any(engine.role != "prefill" for engine in engines):  # else nothing can answer
            _check_idle(node, report)
        return
    name = quoted(node.get("name"))
    if not node.has("kv_aware"):
        report.error(line.name, '"disaggregate" needs "kv_aware"', 'add "kv_aware;"')
    _check_elastic(node, conf, engines, report)
    roles = {engine.role for engine in engines}
    if engines and not roles & {"prefill", "both"}:
        hint = "declare one with role=prefill or role=both"
        report.error(line.name, f"no server of upstream {name} can prefill", hint)
    if engines and len(engines) < 2:
        hint = "a prompt is computed on one engine and answered by another"
        report.error(line.name, f"upstream {name} has one server only", hint)


def _check_elastic(
    node: Node, conf: Disaggregation, engines: tuple[EngineLine, ...], report: Report
) -> None:
    line = node.one("roles")
    if line is None or conf.roles != "elastic":
        return
    slo = node.one("slo")
    if slo is None or not slo.get("ttft", 0.0) or not slo.get("tpot", 0.0):
        hint = 'write "slo ttft=2s tpot=50ms;"'
        report.error(line.name, '"roles elastic" follows two SLOs', hint)
    if engines and not any(engine.role == "both" for engine in engines):
        report.error(line.name, "no server may change its role", "declare some with role=both")


def _check_idle(node: Node, report: Report) -> None:
    for line in node.all("server"):
        if line.get("role", "both") == "prefill":
            message = '"role=prefill" gets no requests without "disaggregate"'
            report.warn(line.token("role"), message, 'write "disaggregate auto;"')
