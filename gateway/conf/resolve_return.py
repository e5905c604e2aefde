"""`return` and `error_page`: replies the gateway makes itself."""

from __future__ import annotations

import re

from gateway.conf.check_args import bad_variable
from gateway.conf.errors import quoted
from gateway.conf.model import ErrorPage, Return, Template
from gateway.conf.node import Node
from gateway.conf.resolve_parts import misplaced_variables
from gateway.conf.scope import Scope
from gateway.conf.setting import Setting
from gateway.conf.sources import Token
from gateway.conf.suggest import did_you_mean
from gateway.conf.templates import BadVariable, parse
from gateway.conf.units import BadValue

REDIRECTS = (301, 302, 303, 307, 308)
CLOSE = 444
_URL = re.compile(r"https?://|\$scheme|\$\{scheme\}", re.IGNORECASE)


def resolve_return(node: Node, setting: Setting) -> Return:
    code, text = node.get("code"), node.get("text")
    at, report = node.token("code"), setting.report
    if text is None and (_URL.match(code) or code.startswith("/")):
        try:
            return _checked(Return(302, parse(code, setting.known)), at, setting)
        except BadVariable as error:
            bad_variable(error, at, node, report)
            return Return(302, parse(""))
    if not re.fullmatch(r"[1-9][0-9]{2}", code) or not 200 <= int(code) <= 599:
        report.error(at, f'"return" must be a code from 200 to 599 or a URL, got {quoted(code)}')
        return Return(404, parse(""))
    status = int(code)
    if status in (204, 304, CLOSE) and text is not None:
        report.error(node.token("text"), f"a reply with code {status} has no text")
    if status in REDIRECTS and text is None:
        report.error(at, f'"return {status}" needs a URL')
    return _checked(Return(status, text or parse("")), node.token("text"), setting)


def _checked(value: Return, at: Token, setting: Setting) -> Return:
    misplaced_variables(value.text, at, "request", setting)
    if value.status in REDIRECTS:
        _check_url(value.text, at, setting)
    return value


def _check_url(url: Template, at: Token, setting: Setting) -> None:
    for part in url.parts:
        if isinstance(part, str) and any(c <= " " or c == "\x7f" for c in part):
            message = "a URL cannot hold line ends, blanks or control characters"
            setting.report.error(at, message)


def error_pages(scope: Scope, setting: Setting) -> tuple[ErrorPage, ...]:
    """In file order; the first line that names a code holds for it, as in nginx."""
    pages = [_error_page(node, setting) for node in scope.all("error_page")]
    return tuple(page for page in pages if page is not None)


def _error_page(node: Node, setting: Setting) -> ErrorPage | None:
    words = node.words
    if len(words) < 2:
        message = '"error_page" takes at least 2 arguments, not 1'
        setting.report.error(node.name, message, "syntax: error_page CODE ... [=[CODE]] TARGET;")
        return None
    status, codes = None, list(words[:-1])
    if len(codes) > 1 and codes[-1].text.startswith("="):
        status = _response(codes.pop(), setting)
    found = frozenset(code for code in (_code(token, setting) for token in codes) if code)
    page = _target(words[-1], node, setting)
    if page is None or not found:
        return None
    named, uri, url = page
    return ErrorPage(found, status, named, uri, url)


def _code(token: Token, setting: Setting) -> int:
    if re.fullmatch(r"[0-9]{3}", token.text) and 300 <= int(token.text) <= 599:
        return int(token.text)
    hint = "a code behind = stands last before the target" if token.text.startswith("=") else ""
    message = f'"error_page" must be a code from 300 to 599, got {quoted(token.text)}'
    setting.report.error(token, message, hint)
    return 0


def _response(token: Token, setting: Setting) -> int:
    if token.text == "=":
        return 0
    if re.fullmatch(r"=[2-5][0-9]{2}", token.text):
        return int(token.text[1:])
    message = f'"error_page" must be = or =CODE from 200 to 599, got {quoted(token.text)}'
    setting.report.error(token, message)
    return 0


def _target(
    token: Token, node: Node, setting: Setting
) -> tuple[str, Template | None, Template | None] | None:
    if token.text.startswith("@") and len(token.text) > 1:
        return token.text[1:], None, None
    try:
        template = parse(token.text, setting.known)
    except BadVariable as error:
        bad_variable(error, token, node, setting.report)
        return None
    except BadValue as error:
        setting.report.error(token, f'"error_page" must be {error.expected}')
        return None
    misplaced_variables(template, token, "request", setting)
    _check_url(template, token, setting)
    if _URL.match(token.text):
        return "", None, template
    if token.text.startswith(("/", "$")):
        return "", template, None
    message = f'"error_page" must end in /PATH, @NAME or a URL, got {quoted(token.text)}'
    setting.report.error(token, message)
    return None


def check_named(
    nodes: list[Node], named: list[str], setting: Setting, *, outer: bool = False
) -> None:
    """Every `@name` of these error_page lines must be a location of their server; `outer` lines
    hold for several servers, and those without it are answered the plain error."""
    for node in nodes:
        token = node.words[-1] if node.words else node.name
        name = token.text[1:]
        if token.text.startswith("@") and name not in named:
            guess = did_you_mean(name, named, mark="@")
            hint = f"add location @{name} {{ ... }} to the server"
            message = f"unknown location {quoted(token.text)}{guess}"
            if outer:
                setting.report.warn(token, f"a server has no location {quoted(token.text)}", hint)
            else:
                setting.report.error(token, message, hint)
