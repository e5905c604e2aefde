"""What an `upstream` block says about disaggregated serving -> `model_kv.Disaggregation`."""

from __future__ import annotations

from gateway.conf.errors import Report, quoted
from gateway.conf.model import EngineLine
from gateway.conf.model_kv import NOT_DISAGGREGATED, Disaggregation
from gateway.conf.node import Node

_WORDS = {"kv_connector": "kind", "on_prefill_error": "what", "on_decode_error": "what"}


def resolve_disagg(node: Node) -> Disaggregation:
    line, standard = node.one("disaggregate"), NOT_DISAGGREGATED
    lease = node.one("kv_lease")
    words = {
        name: getattr(standard, name.removeprefix("kv_")) if at is None else at.get(arg)
        for name, arg in _WORDS.items()
        for at in (node.one(name),)
    }
    return Disaggregation(
        mode=standard.mode if line is None else line.get("mode"),
        pending=standard.pending if line is None else line.get("pending", standard.pending),
        connector=words["kv_connector"],
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
        if any(engine.role != "prefill" for engine in engines):  # else nothing can answer
            _check_idle(node, report)
        return
    name = quoted(node.get("name"))
    if not node.has("kv_aware"):
        report.error(line.name, '"disaggregate" needs "kv_aware"', 'add "kv_aware;"')
    roles = {engine.role for engine in engines}
    if engines and not roles & {"prefill", "both"}:
        hint = "declare one with role=prefill or role=both"
        report.error(line.name, f"no server of upstream {name} can prefill", hint)
    if engines and len(engines) < 2:
        hint = "a prompt is computed on one engine and answered by another"
        report.error(line.name, f"upstream {name} has one server only", hint)


def _check_idle(node: Node, report: Report) -> None:
    for line in node.all("server"):
        if line.get("role", "both") == "prefill":
            message = '"role=prefill" gets no requests without "disaggregate"'
            report.warn(line.token("role"), message, 'write "disaggregate auto;"')
