"""`upstream` blocks -> `model.Upstream`."""

from __future__ import annotations

import os

from gateway.conf.errors import Report, quoted
from gateway.conf.model import Balance, EngineLine, HealthCheck, Upstream
from gateway.conf.node import Node
from gateway.conf.resolve_disagg import check_roles, resolve_disagg
from gateway.conf.resolve_engine import ranks_of, resolve_engine
from gateway.conf.resolve_kv import resolve_kv
from gateway.conf.resolve_parts import misplaced_variables, secret
from gateway.conf.scope import Scope
from gateway.conf.setting import Setting

METHODS = ("round_robin", "least_conn", "hash", "random", "ip_hash", "kv_aware")
NO_BACKUP = ("hash", "random", "ip_hash")
ENGINE_KEEPALIVE_S = 5.0  # VLLM_HTTP_TIMEOUT_KEEP_ALIVE


def resolve_upstream(node: Node, setting: Setting) -> Upstream:
    report, scope = setting.report, Scope((node,))
    balance = _balance(node, setting)
    engines = _engines(node, balance, report)
    models, aliases = _models(node, report)
    idle = scope.value("keepalive_timeout")
    at = node.one("keepalive_timeout")
    if at is not None and idle >= ENGINE_KEEPALIVE_S:
        message = (
            f'"keepalive_timeout" {at.words[0].text} is not below the 5s after which vLLM closes'
        )
        report.warn(at.words[0], message, "write 4s, or raise VLLM_HTTP_TIMEOUT_KEEP_ALIVE")
    disaggregation = resolve_disagg(node)
    check_roles(node, disaggregation, engines, report)
    return Upstream(
        name=node.get("name"),
        engines=engines,
        models=models,
        aliases=aliases,
        balance=balance,
        keepalive=scope.value("keepalive"),
        keepalive_timeout_s=idle,
        keepalive_requests=scope.value("keepalive_requests"),
        health_check=_health_check(node, report),
        kv=resolve_kv(node, setting),
        disaggregation=disaggregation,
        api_key=secret(node.one("api_key"), "key", setting),
        plan_report=_report(node, setting),
        place=node.place,
    )


def _report(node: Node, setting: Setting) -> str:
    line = node.one("plan_report")
    return "" if line is None else os.path.join(setting.prefix, line.get("path"))


def _balance(node: Node, setting: Setting) -> Balance:
    report = setting.report
    written = [child for child in node.children if child.spec.name in METHODS]
    for extra in written[1:]:
        message = f"{quoted(extra.spec.name)} is a second balancing method"
        first = written[0]
        report.error(
            extra.name, message, f"{quoted(first.spec.name)} is in line {first.place.line}"
        )
    if not written:
        return Balance()
    method = written[0]
    if method.spec.name == "kv_aware":
        return Balance("kv")
    if method.spec.name == "random":
        return _random(method, report)
    if method.spec.name != "hash":
        return Balance(method.spec.name)
    key = method.get("key")
    if key.constant is not None:
        report.warn(method.token("key"), 'the key of "hash" is the same for all requests')
    misplaced_variables(key, method.token("key"), "route", setting)
    return Balance("hash", key, method.get("mode") == "consistent")


def _random(method: Node, report: Report) -> Balance:
    if method.get("by") == "least_time":
        message = '"random two least_time" is not available'
        report.error(method.token("by"), message, "write least_conn")
    return Balance("random", two=method.get("two") is not None)


def _engines(node: Node, balance: Balance, report: Report) -> tuple[EngineLine, ...]:
    engines: list[EngineLine] = []
    seen: dict[tuple[str, int, str], Node] = {}
    failed = node.has("server") and not node.all("server")
    for line in node.all("server"):
        engine = resolve_engine(line, report)
        if engine is None:
            failed = True
            continue
        key = (engine.host.lower(), engine.port, engine.unix_path)
        if key in seen:
            hint = f"first in line {seen[key].place.line}"
            report.error(line.token("address"), f"duplicate server {quoted(engine.server)}", hint)
            continue
        seen[key] = line
        engines += ranks_of(engine)
        if engine.backup and balance.method in NO_BACKUP:
            message = f'"backup" does not go with {quoted(balance.method)}'
            report.error(line.token("backup"), message)
    if not failed:
        _check_engines(node, engines, report)
    return tuple(engines)


def _check_engines(node: Node, engines: list[EngineLine], report: Report) -> None:
    name = quoted(node.get("name"))
    if not engines:
        hint = 'add a line such as "server 127.0.0.1:8000;"'
        report.error(node.name, f"upstream {name} has no server", hint)
    elif all(engine.backup for engine in engines):
        report.error(node.name, f"all servers of upstream {name} are backups")
    elif all(engine.role == "prefill" for engine in engines):
        hint = "declare one with role=decode or role=both"
        report.error(node.name, f"no server of upstream {name} can decode", hint)


def _models(node: Node, report: Report) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    models: list[str] = []
    aliases: list[tuple[str, str]] = []
    seen: set[str] = set()
    for line in node.all("model"):
        model = line.get("name")
        for name, token in ((model, line.token("name")), *line.get("alias", ())):
            if name in seen:
                report.error(token, f"model name {quoted(name)} is duplicate in this upstream")
                continue
            seen.add(name)
            if token is line.token("name"):
                models.append(name)
            else:
                aliases.append((name, model))
    return tuple(models), tuple(aliases)


def check_models(upstreams: list[Node], by_model: list[Node], report: Report) -> None:
    """Where the model chooses the upstream, each name must lead to one upstream, and there must be
    one."""
    if not by_model:
        return
    if not any(node.has("model") for node in upstreams):
        message = "no upstream declares a model, so $upstream_by_model never has a value"
        report.error(by_model[0].token("url"), message, 'add "model NAME;" to an upstream')
    owner: dict[str, Node] = {}
    for node in upstreams:
        for line in node.all("model"):
            named = ((line.get("name"), line.token("name")), *line.get("alias", ()))
            for name, token in named:
                other = owner.setdefault(name, node)
                if other is not node:
                    hint = "$upstream_by_model could not choose between them"
                    where = quoted(other.get("name"))
                    report.error(token, f"model {quoted(name)} is also in upstream {where}", hint)


def _health_check(node: Node, report: Report) -> HealthCheck | None:
    line = node.one("health_check")
    if line is None:
        return HealthCheck()
    if line.get("off"):
        if len(line.words) > 1:
            report.error(line.words[1], '"health_check off" takes no parameters')
        return None
    standard = HealthCheck()
    return HealthCheck(
        interval_s=line.get("interval", standard.interval_s),
        timeout_s=line.get("timeout", standard.timeout_s),
        fails=line.get("fails", standard.fails),
        passes=line.get("passes", standard.passes),
        uri=line.get("uri", standard.uri),
    )
