"""`location` blocks -> `model.Location`."""

from __future__ import annotations

import re

from gateway.conf import units
from gateway.conf.check import Node, bad_variable
from gateway.conf.errors import Report, quoted
from gateway.conf.model import Location, Proxy, Return
from gateway.conf.patterns import compile_regex
from gateway.conf.resolve_headers import add_headers, hidden_headers, set_headers
from gateway.conf.resolve_log import access_logs
from gateway.conf.resolve_parts import misplaced_variables, secret
from gateway.conf.resolve_proxy import next_upstream, resolve_proxy
from gateway.conf.scope import Scope
from gateway.conf.setting import Names, Setting
from gateway.conf.sources import Token
from gateway.conf.templates import BadVariable, parse

HANDLERS = ("proxy_pass", "return", "admin", "metrics")
_MODIFIERS = ("^~", "~*", "~", "=")  # longest first


def resolve_location(node: Node, outer: Scope, names: Names, setting: Setting) -> Location | None:
    """None where the location's own pattern is wrong; what is inside is looked at all the same."""
    scope = outer.inner(node)
    pattern = _pattern(node, setting.report)
    modifier = pattern[0] if pattern else ""
    handler = _handler(node, modifier, names, setting)
    location = _settings(scope, names, setting, handler, pattern or ("", "/"))
    return location if pattern else None


def resolve_return(
    server: Node, node: Node, outer: Scope, names: Names, setting: Setting
) -> Location:
    """The one location a server with its own `return` has."""
    return _settings(outer, names, setting, _return(node, setting.report), ("", "/"))


def _settings(
    scope: Scope,
    names: Names,
    setting: Setting,
    handler: Proxy | Return | str,
    pattern: tuple[str, str],
) -> Location:
    value, report = scope.value, setting.report
    return Location(
        modifier=pattern[0],
        pattern=pattern[1],
        handler=handler,
        connect_timeout_s=value("proxy_connect_timeout"),
        send_timeout_s=value("proxy_send_timeout"),
        first_byte_timeout_s=value("proxy_first_byte_timeout"),
        read_timeout_s=value("proxy_read_timeout"),
        total_timeout_s=value("proxy_total_timeout"),
        client_max_body_size=value("client_max_body_size"),
        set_headers=set_headers(scope, report),
        add_headers=add_headers(scope, report),
        hide_headers=hidden_headers(scope),
        pass_headers=frozenset(n.get("name").lower() for n in scope.all("proxy_pass_header")),
        next_upstream=next_upstream(scope, report),
        next_upstream_tries=value("proxy_next_upstream_tries"),
        next_upstream_timeout_s=value("proxy_next_upstream_timeout"),
        engine_admin=value("engine_admin"),
        trust_client=value("trust_client"),
        express=value("express"),
        expose_receipt=value("expose_receipt"),
        admin_token=secret(scope.one("admin_token"), "token", setting),
        access_logs=access_logs(scope, names, setting),
        place=scope.blocks[0].place,
    )


def check_shared(scope: Scope, names: Names, setting: Setting) -> None:
    """Looks at what a block around locations sets, which none of them may inherit."""
    own = Scope(scope.blocks[:1])
    set_headers(own, setting.report)
    add_headers(own, setting.report)
    next_upstream(own, setting.report)
    access_logs(own, names, setting)
    secret(own.one("admin_token"), "token", setting)


def _pattern(node: Node, report: Report) -> tuple[str, str] | None:
    words = node.words
    if len(words) > 2:
        message = f'"location" takes 1 to 2 arguments, not {len(words)}'
        report.error(words[2], message, "a pattern with blanks is written in quotes")
        return None
    if len(words) == 2:
        modifier, pattern = words[0].text, words[1].text
        if modifier not in _MODIFIERS:
            hint = "it is one of = ^~ ~ ~*"
            report.error(words[0], f"invalid location modifier {quoted(modifier)}", hint)
            return None
    else:
        # nginx takes the modifier also without a blank behind it.
        text = words[0].text
        modifier = next((m for m in _MODIFIERS if text.startswith(m)), "")
        pattern = text[len(modifier) :]
    if not modifier and pattern.startswith("@"):
        modifier, pattern = "@", pattern[1:]
    return (modifier, pattern) if _pattern_is_good(modifier, pattern, words[-1], report) else None


def _pattern_is_good(modifier: str, pattern: str, at: Token, report: Report) -> bool:
    if modifier in ("~", "~*"):
        try:
            compile_regex(pattern, ignore_case=modifier == "~*")
        except units.BadValue as error:
            report.error(at, f'"location" must be {error.expected}', error.hint)
            return False
        if pattern:
            return True
    elif (modifier == "@" and re.fullmatch(r"[A-Za-z0-9_.-]+", pattern)) or (
        modifier != "@" and pattern.startswith("/")
    ):
        return True
    expected = 'a path that begins with "/"'
    if modifier not in ("", "=", "^~"):
        expected = "@NAME" if modifier == "@" else "a regular expression that is not empty"
    hint = "a regular expression needs ~ before it" if re.search(r"[\\^$*(]", pattern) else ""
    report.error(at, f'"location" must be {expected}, got {quoted(at.text)}', hint)
    return False


def _handler(node: Node, modifier: str, names: Names, setting: Setting) -> Proxy | Return | str:
    report = setting.report
    written = [child for child in node.children if child.spec.name in HANDLERS]
    for extra in written[1:]:
        first = written[0]
        message = f"{quoted(extra.spec.name)} does not go with {quoted(first.spec.name)}"
        report.error(
            extra.name, message, f"{quoted(first.spec.name)} is in line {first.place.line}"
        )
    if not written:
        if not node.broken:
            message = '"location" has none of proxy_pass, return, admin, metrics, so it answers 404'
            report.warn(node.name, message)
        return "none"
    handler = written[0]
    if handler.spec.name == "proxy_pass":
        return resolve_proxy(handler, modifier, names, report) or "none"
    if handler.spec.name == "return":
        return _return(handler, report)
    return handler.spec.name


def _return(node: Node, report: Report) -> Return:
    code, text = node.get("code"), node.get("text")
    at = node.token("code")
    if text is None and re.match(r"https?://|\$scheme|/", code):
        try:
            return _checked(Return(302, parse(code)), at, report)
        except BadVariable as error:
            bad_variable(error, at, node, report)
            return Return(302, parse(""))
    if not re.fullmatch(r"[1-9][0-9]{2}", code) or not 200 <= int(code) <= 599:
        report.error(at, f'"return" must be a code from 200 to 599 or a URL, got {quoted(code)}')
        return Return(404, parse(""))
    if code == "444":
        report.error(at, '"return 444" is not available', "choose a code that is sent, such as 403")
    status = int(code)
    if status in (204, 304) and text is not None:
        report.error(node.token("text"), f"a reply with code {status} has no text")
    if status in (301, 302, 303, 307, 308) and text is None:
        report.error(at, f'"return {status}" needs a URL')
    return _checked(Return(status, text or parse("")), node.token("text"), report)


def _checked(value: Return, at: Token, report: Report) -> Return:
    misplaced_variables(value.text, at, "request", report)
    if 300 <= value.status < 400:
        for part in value.text.parts:
            if isinstance(part, str) and _is_bad_url(part):
                report.error(at, "a URL cannot hold line ends, blanks or control characters")
    return value


def _is_bad_url(text: str) -> bool:
    return any(c <= " " or c == "\x7f" for c in text)
