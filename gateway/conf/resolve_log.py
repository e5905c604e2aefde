"""`log_format` and `access_log`."""

from __future__ import annotations

import os

from gateway.conf import templates
from gateway.conf.check import Node, bad_variable
from gateway.conf.errors import Report, quoted
from gateway.conf.model import AccessLog, LogFormat, Template, Var
from gateway.conf.scope import Scope
from gateway.conf.setting import Names, Setting
from gateway.conf.suggest import did_you_mean
from gateway.conf.templates import BadVariable
from gateway.conf.units import BadValue

_PREDEFINED = {
    "combined": (
        "default",
        '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
        '"$http_referer" "$http_user_agent"',
    ),
    "kvgate": (
        "default",
        '$remote_addr [$time_iso8601] "$request" $status $body_bytes_sent rt=$request_time '
        'model="$model" up=$upstream_name engine=$engine attempts=$attempts ttft=$ttft tpot=$tpot '
        "itl_max=$itl_max in=$prompt_tokens cached=$cached_tokens out=$completion_tokens "
        "end=$termination err=$error_code id=$request_id client_id=$client_request_id",
    ),
    "json": (
        "json",
        '{"time":"$time_iso8601","id":"$request_id","client_id":"$client_request_id",'
        '"client":"$remote_addr","method":"$request_method","uri":"$request_uri",'
        '"status":$status,"bytes":$body_bytes_sent,"request_time":$request_time,'
        '"model":"$model","upstream":"$upstream_name","engine":"$engine",'
        '"upstream_status":"$upstream_status","attempts":"$attempts","stream":"$stream",'
        '"ttft":"$ttft","tpot":"$tpot","itl_max":"$itl_max","chunks":"$chunks",'
        '"prompt_tokens":"$prompt_tokens","cached_tokens":"$cached_tokens",'
        '"completion_tokens":"$completion_tokens","termination":"$termination",'
        '"error":"$error_code"}',
    ),
}

PREDEFINED: dict[str, LogFormat] = {
    name: LogFormat(name, templates.parse(text), escape)
    for name, (escape, text) in _PREDEFINED.items()
}
STREAMS = ("stdout", "stderr")


def log_formats(http: Node, report: Report) -> dict[str, LogFormat]:
    """All formats by name, predefined ones included."""
    formats = dict(PREDEFINED)
    for node in http.all("log_format"):
        name = node.get("name")
        if name in formats:
            what = "is predefined" if name in PREDEFINED else "is duplicate"
            report.error(node.token("name"), f"log format {quoted(name)} {what}")
            continue
        formats[name] = _log_format(node, report)
    return formats


def _log_format(node: Node, report: Report) -> LogFormat:
    parts: list[str | Var] = []
    words = [word for word in node.words[1:] if word is not node.tokens.get("escape")]
    for word in words:
        try:
            parts.extend(templates.parse(word.text).parts)
        except BadVariable as error:
            bad_variable(error, word, node, report)
        except BadValue as error:
            report.error(word, f'"log_format" must be {error.expected}', error.hint)
    template = Template(tuple(parts))
    return LogFormat(node.get("name"), template, node.get("escape", "default"))


def access_logs(scope: Scope, names: Names, setting: Setting) -> tuple[AccessLog, ...]:
    """Where requests of this block are logged; () for `off` and where nothing is said."""
    nodes = scope.all("access_log")
    for node in nodes:
        if node.get("path") == "off" and len(nodes) > 1:
            setting.report.error(node.name, '"access_log off" stands beside another access_log')
        if node.get("path") == "off" and node.get("format"):
            setting.report.error(node.token("format"), '"access_log off" takes no format')
    logs = [_access_log(node, names, setting) for node in nodes if node.get("path") != "off"]
    return tuple(log for log in logs if log is not None)


def _access_log(node: Node, names: Names, setting: Setting) -> AccessLog | None:
    path, name = node.get("path"), node.get("format", "kvgate")
    if path.startswith("syslog:"):
        hint = "write to stdout or stderr and let the service manager pass it on"
        setting.report.error(node.token("path"), "access_log to syslog is not available", hint)
        return None
    format_ = names.formats.get(name)
    if format_ is None:
        if not names.formats_broken:
            guess = did_you_mean(name, names.formats)
            message = f"unknown log format {quoted(name)}{guess}"
            setting.report.error(node.token("format"), message)
        return None
    return AccessLog(path if path in STREAMS else os.path.join(setting.prefix, path), format_)
