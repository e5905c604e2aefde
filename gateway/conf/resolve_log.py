"""`log_format`, `access_log` and `record`."""

from __future__ import annotations

from gateway.conf import templates
from gateway.conf.check_args import bad_variable
from gateway.conf.errors import quoted
from gateway.conf.model import AccessLog, LogFormat, Recording, Template, Var
from gateway.conf.node import Node
from gateway.conf.places import written_file
from gateway.conf.resolve_parts import secret
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
BLOCK = 512  # tokens, as in Mooncake's traces


def log_formats(http: Node, setting: Setting) -> dict[str, LogFormat]:
    """All formats by name, predefined ones included."""
    formats = dict(PREDEFINED)
    for node in http.all("log_format"):
        name = node.get("name")
        if name in formats:
            what = "is predefined" if name in PREDEFINED else "is duplicate"
            setting.report.error(node.token("name"), f"log format {quoted(name)} {what}")
            continue
        formats[name] = _log_format(node, setting)
    return formats


def _log_format(node: Node, setting: Setting) -> LogFormat:
    report = setting.report
    parts: list[str | Var] = []
    words = [word for word in node.words[1:] if word is not node.tokens.get("escape")]
    for word in words:
        try:
            parts.extend(templates.parse(word.text, setting.known).parts)
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
        if node.get("path") == "off" and len(node.words) > 1:
            what = "format" if node.get("format") else "parameters"
            setting.report.error(node.words[1], f'"access_log off" takes no {what}')
    logs = [_access_log(node, names, setting) for node in nodes if node.get("path") != "off"]
    return tuple(log for log in logs if log is not None)


def _access_log(node: Node, names: Names, setting: Setting) -> AccessLog | None:
    path, name = node.get("path"), node.get("format", "kvgate")
    if not _path_is_good(node, path, setting):
        return None
    format_ = names.formats.get(name)
    if format_ is None:
        if not names.formats_broken:
            guess = did_you_mean(name, names.formats)
            message = f"unknown log format {quoted(name)}{guess}"
            setting.report.error(node.token("format"), message)
        return None
    flush = node.get("flush", 0.0)
    if flush and not node.get("buffer"):
        setting.report.error(node.token("flush"), '"flush" needs "buffer"', "add buffer=64k")
    return AccessLog(
        path=written_file(node, setting, STREAMS),
        format=format_,
        condition=node.get("if"),
        buffer=node.get("buffer", 0),
        flush_s=flush,
    )


def _path_is_good(node: Node, path: str, setting: Setting) -> bool:
    token, name = node.token("path"), node.spec.name
    if path.startswith("syslog:"):
        hint = "write to stdout or stderr and let the service manager pass it on"
        setting.report.error(token, f"{name} to syslog is not available", hint)
        return False
    if "$" in path:
        hint = "write one file, with the variable in its log_format"
        setting.report.error(
            token, f"the path of {name} cannot have variables", hint * (name == "access_log")
        )
        return False
    return True


def recording(scope: Scope, names: Names, setting: Setting) -> Recording | None:
    """Where requests of this block are recorded; None for `off` and where nothing is said."""
    node = scope.one("record")
    if node is None:
        return None
    path = node.get("path")
    if path == "off":
        if len(node.words) > 1:
            setting.report.error(node.words[1], '"record off" takes no parameters')
        return None
    if not _path_is_good(node, path, setting):
        return None
    if not node.get("secret"):
        hint = "secret=file:PATH, with any long text that nobody else knows"
        setting.report.error(node.name, '"record" needs a secret', hint)
        return None
    made = Recording(
        path=written_file(node, setting, STREAMS),
        secret=secret(node, "secret", setting),
        block=int(node.get("block", BLOCK)),
        client=node.get("client") or templates.parse("$remote_addr"),
        session=node.get("session") or Template(()),
    )
    if names.recorded.setdefault(made.path, made.block) != made.block:
        message = f"{quoted(path)} is recorded in blocks of another size elsewhere"
        setting.report.error(node.token("path"), message, "one file has blocks of one size")
    return made
