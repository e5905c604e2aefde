"""Variables (`$name`) of log formats and headers, compiled once per configuration into plain
functions.

Invariant: what goes into a header can hold no CR, LF or NUL, and what goes into a log line cannot
end it. A variable that has no value is "-" in a log line (nothing with `escape=json`) and "" in a
header, as in nginx; `$upstream_*` list every engine that was tried, separated by ", ".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway import values
from gateway.conf import variables
from gateway.conf.model import Template

if TYPE_CHECKING:
    from gateway.context import Context

Getter = Callable[["Context"], "str | None"]

_FAMILIES: tuple[tuple[str, Callable[[str], Getter]], ...] = (
    ("http_", values.request_header),
    ("sent_http_", values.sent_header),
    ("upstream_http_", values.upstream_header),
    ("arg_", values.argument),
    ("cookie_", values.cookie),
)
# Of those that the table calls "reply": what is known as soon as an engine has been picked.
_KNOWN_BEFORE = ("attempts", "engine", "upstream_addr")


def getter(name: str) -> Getter:
    """The function that reads one variable. Raises KeyError for a name that does not exist."""
    found = values.TABLE.get(name)
    if found is not None:
        return found
    for prefix, make in _FAMILIES:
        if name.startswith(prefix) and len(name) > len(prefix):
            return make(name[len(prefix) :])
    raise KeyError(name)


def needs_reply(template: Template) -> bool:
    """Whether a template reads something that only the reply's head tells."""
    for part in template.parts:
        if isinstance(part, str) or part.name in _KNOWN_BEFORE:
            continue
        found = variables.find(part.name)
        if found is not None and found.when in ("reply", "end"):
            return True
    return False


def compile_text(template: Template) -> Callable[[Context], str]:
    """A template as a function from context to text, unescaped; absent values are ""."""
    constant = template.constant
    if constant is not None:
        return lambda _ctx: constant
    form, getters = _form(template)
    if form == "%s":
        single = getters[0]
        return lambda ctx: single(ctx) or ""
    return lambda ctx: form % tuple([get(ctx) or "" for get in getters])


def compile_header(template: Template) -> Callable[[Context], bytes]:
    """A template as a header value: latin-1, control characters turned into spaces."""
    text = compile_text(template)

    def value(ctx: Context) -> bytes:
        return header_safe(text(ctx)).encode("latin-1", "replace")

    return value


def header_safe(text: str) -> str:
    return _CONTROL.sub(" ", text) if _CONTROL.search(text) else text


def compile_log(template: Template, escape: str) -> Callable[[Context], str]:
    """A log format as a function from context to one line. `escape`: default, json, none."""
    form, getters = _form(template)
    write, absent = _ESCAPES[escape]
    names = [part.name for part in template.parts if not isinstance(part, str)]
    # Most values are made here and need no escaping; to look at each would cost more than that.
    risky = tuple(at for at, name in enumerate(names) if name not in _PLAIN)

    def line(ctx: Context) -> str:
        found = [get(ctx) for get in getters]
        for at in risky:
            value = found[at]
            if value is not None:
                found[at] = write(value)
        return form % tuple([absent if value is None else value for value in found])

    return line


def _form(template: Template) -> tuple[str, tuple[Getter, ...]]:
    form = "".join(
        part.replace("%", "%%") if isinstance(part, str) else "%s" for part in template.parts
    )
    return form, tuple(getter(part.name) for part in template.parts if not isinstance(part, str))


_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_UNSAFE = re.compile(r"[^ !#-\[\]-~]")
_UNSAFE_JSON = re.compile(r'[\x00-\x1f"\\]')


def _default(text: str) -> str:
    return _UNSAFE.sub(_hex, text) if _UNSAFE.search(text) else text


def _hex(match: re.Match[str]) -> str:
    """nginx's `\\xXX`, of the bytes that came (values are latin-1 readings of them)."""
    return "".join(f"\\x{byte:02X}" for byte in match.group().encode("latin-1", "replace"))


def _json(text: str) -> str:
    if not text.isascii():
        try:
            text = text.encode("latin-1").decode()
        except (UnicodeEncodeError, UnicodeDecodeError):
            text = text.encode("ascii", "replace").decode()
    return _UNSAFE_JSON.sub(_json_escape, text) if _UNSAFE_JSON.search(text) else text


def _json_escape(match: re.Match[str]) -> str:
    char = match.group()
    return "\\" + char if char in '"\\' else f"\\u{ord(char):04x}"


def _bare(text: str) -> str:
    """`escape=none` writes values as they are, but for what would end the line."""
    return text.replace("\n", " ").replace("\r", " ") if "\n" in text or "\r" in text else text


# How a value is written, and what stands for one that is not there.
_ESCAPES: dict[str, tuple[Callable[[str], str], str]] = {
    "default": (_default, "-"),
    "json": (_json, ""),
    "none": (_bare, ""),
}
# Variables whose characters the gateway alone decides.
_PLAIN_NAMES = """
    attempts body_bytes_sent bytes_sent cached_tokens chunks completion_tokens connection
    connection_requests engine error_code itl_max lane msec nginx_version pid prompt_tokens
    proxy_host remote_addr remote_port request_completion request_id request_length
    request_time scheme server_addr server_port server_protocol status stream termination
    time_iso8601 time_local tpot ttft upstream_addr upstream_by_model
    upstream_bytes_received upstream_bytes_sent upstream_connect_time upstream_header_time
    upstream_name upstream_response_time upstream_status
"""
_PLAIN = frozenset(_PLAIN_NAMES.split())
