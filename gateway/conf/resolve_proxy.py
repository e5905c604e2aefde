"""`proxy_pass` and `proxy_next_upstream`."""

from __future__ import annotations

import re
from urllib.parse import quote

from gateway.conf.check_args import bad_variable
from gateway.conf.errors import Report, quoted
from gateway.conf.model import Proxy, Template, Var
from gateway.conf.node import Node
from gateway.conf.resolve_parts import misplaced_variables
from gateway.conf.scope import Scope
from gateway.conf.setting import Names, Setting
from gateway.conf.sources import Token
from gateway.conf.suggest import did_you_mean
from gateway.conf.templates import BadVariable, parse, variables_of
from gateway.conf.units import BadValue

BY_MODEL = ("$upstream_by_model", "${upstream_by_model}")
_NAME = re.compile(r"[A-Za-z0-9_.-]+(/.*)?|\$\{?upstream_by_model\}?")
_BREAKING = re.compile(r"[\x00-\x20\x7f#]")
_TARGET = re.compile(r"([^/?]*)(.*)", re.DOTALL)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)


def resolve_proxy(node: Node, modifier: str, names: Names, setting: Setting) -> Proxy | None:
    token, report = node.token("url"), setting.report
    match = _URL.fullmatch(token.text)
    if match is None:
        hint = f"write http://{token.text}" if _NAME.fullmatch(token.text) else ""
        message = f'"proxy_pass" must be http://NAME or https://NAME, got {quoted(token.text)}'
        report.error(token, message, hint)
        return None
    scheme, target, uri = match[1].lower(), match[2], match[3] or None
    if scheme not in ("http", "https"):
        report.error(token, f'"proxy_pass" must be http:// or https://, got "{scheme}://"')
        return None
    if target in BY_MODEL:
        return _by_model(scheme, uri, token, report)
    if "$" in match[2] + match[3]:
        return _variable(scheme, match[2], match[3], node, (names, setting))
    if not _uri_is_good(uri, modifier, token, report):
        return None
    return _declared(scheme, target, uri, token, names, report)


def _uri_is_good(uri: str | None, modifier: str, token: Token, report: Report) -> bool:
    if uri is None:
        return True
    if modifier in ("~", "~*", "@"):
        where = "a named location" if modifier == "@" else "a location with a regular expression"
        message = f'"proxy_pass" cannot have a path in {where}'
        report.error(token, message, f"remove {quoted(uri)}: there is no prefix to replace")
        return False
    if not uri.startswith("/") or "#" in uri or any(c <= " " or c == "\x7f" for c in uri):
        report.error(token, f'"proxy_pass" has a bad path {quoted(uri)}', 'it begins with "/"')
        return False
    return True


def _by_model(scheme: str, uri: str | None, at: Token, report: Report) -> Proxy | None:
    if uri is not None:
        report.error(at, '"proxy_pass" cannot have a path behind $upstream_by_model')
        return None
    return Proxy(scheme, "", None)


def _variable(
    scheme: str, target: str, rest: str, node: Node, around: tuple[Names, Setting]
) -> Proxy | None:
    """Variables in the name, the path, or both. The path is then the whole target, as in nginx."""
    names, setting = around
    token = node.token("url")
    try:
        template = parse(target + rest, setting.known)
    except BadVariable as error:
        bad_variable(error, token, node, setting.report)
        return None
    except BadValue as error:
        setting.report.error(token, f'"proxy_pass" must be {error.expected}')
        return None
    texts = [part for part in template.parts if isinstance(part, str)]
    if any("#" in text or any(c <= " " or c == "\x7f" for c in text) for text in texts):
        setting.report.error(token, f'"proxy_pass" has a bad path {quoted(rest)}')
        return None
    misplaced_variables(template, token, "route", setting)
    if "upstream_by_model" in variables_of(template):
        message = '"proxy_pass" takes $upstream_by_model alone'
        setting.report.error(token, message, f"write {scheme}://$upstream_by_model")
        return None
    if "$" in target:
        _check_mapped(template, token, names, setting.report)
        return Proxy(scheme, "", None, template)
    declared = _declared(scheme, target, None, token, names, setting.report)
    return declared and Proxy(scheme, target, None, template)


def _check_mapped(template: Template, at: Token, names: Names, report: Report) -> None:
    """Where a map gives the name, what it gives is known here."""
    first = template.parts[0]
    source = names.maps.get(first.name) if isinstance(first, Var) else None
    rest = template.parts[1] if len(template.parts) > 1 else ""
    if source is None or names.upstreams_broken:
        return
    if isinstance(rest, Var) or (rest and rest[0] not in "/?"):
        return  # the name is put together of several pieces
    for value in (*(entry.value for entry in source.entries), source.default):
        name = split_target(value.constant or "")[0]
        if name and name not in names.upstreams:
            guess = did_you_mean(name, names.upstreams)
            message = f"{quoted('$' + source.name)} may be {quoted(name)}, which is no upstream"
            report.warn(at, message + guess, "such a request is answered 502")


def _declared(
    scheme: str, target: str, uri: str | None, at: Token, names: Names, report: Report
) -> Proxy | None:
    if target in names.upstreams:
        return Proxy(scheme, target, uri)
    if names.upstreams_broken:
        return None
    if not target:
        report.error(at, '"proxy_pass" names no upstream', 'write http://NAME of an "upstream"')
        return None
    if target == "unix:":
        hint = "declare it: upstream NAME { server unix:/PATH; } and write http://NAME"
        report.error(at, "a socket is not a declared upstream", hint)
        return None
    if _is_address(target):
        hint = f"declare it: upstream NAME {{ server {target}; }} and write {scheme}://NAME"
        report.error(at, f"{quoted(target)} is an address, not a declared upstream", hint)
        return None
    guess = did_you_mean(target, names.upstreams)
    hint = "" if guess else f"declare it: upstream {target} {{ server HOST:PORT; }}"
    report.error(at, f"unknown upstream {quoted(target)}{guess}", hint)
    return None


def _is_address(target: str) -> bool:
    return bool(re.fullmatch(r"[0-9.]+|.*:[0-9]*|\[.*|unix:.*|localhost", target))


def split_target(text: str) -> tuple[str, str | None]:
    """An evaluated `Proxy.target` -> (upstream's name, request target or None: as sent).

    What would end a target is escaped, where nginx sends a broken request line."""
    match = _TARGET.fullmatch(text)
    assert match is not None
    rest = _BREAKING.sub(lambda m: quote(m[0], safe="", encoding="latin-1"), match[2])
    return match[1], None if not rest else f"/{rest}" if rest.startswith("?") else rest


def next_upstream(scope: Scope, report: Report) -> frozenset[str]:
    node = scope.one("proxy_next_upstream")
    if node is None:
        return frozenset({"error", "timeout"})
    cases = frozenset(node.get("case"))
    if "off" in cases and len(cases) > 1:
        report.error(node.name, '"off" stands beside other cases')
    return cases
