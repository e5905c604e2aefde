"""Variables (`$name`) of log formats and headers, compiled once per configuration into plain
functions.

Invariant: what goes into a header can hold no CR, LF or NUL, and what goes into a log line cannot
end it. A variable that has no value is "-" in a log line (nothing with `escape=json`) and "" in a
header, as in nginx; `$upstream_*` list every engine that was tried, separated by ", ".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from gateway.conf import variables
from gateway.conf.model import Template, Var
from gateway.kv import values as values_kv
from gateway.site import peer, values
from gateway.site.addresses import packed
from native.relay import HeaderLines, LogLine, Lookup

if TYPE_CHECKING:
    from gateway.context import Context

Getter = Callable[["Context"], "str | None"]
Maps = Mapping[str, Lookup]  # the maps of a configuration, by name
_NO_MAPS: Maps = {}

TABLE: dict[str, Getter] = {
    **values.TABLE,
    **values_kv.TABLE,
    "ssl_client_s_dn": peer.subject,
    "ssl_client_verify": peer.verified,
}
_FAMILIES: tuple[tuple[str, Callable[[str], Getter]], ...] = (
    ("http_", values.request_header),
    ("sent_http_", values.sent_header),
    ("upstream_http_", values.upstream_header),
    ("arg_", values.argument),
    ("cookie_", values.cookie),
)
# Of those that the table calls "reply": what is known as soon as an engine has been picked.
_KNOWN_BEFORE = ("attempts", "engine", "upstream_addr")


def getter(name: str, maps: Maps = _NO_MAPS) -> Getter:
    """The function that reads one variable. A name that is not in the table is one that the
    configuration makes. Raises KeyError for what is no name.
    """
    if name in maps:
        return maps[name]
    found = TABLE.get(name)
    if found is not None:
        return found
    for prefix, make in _FAMILIES:
        if name.startswith(prefix) and len(name) > len(prefix):
            return make(name[len(prefix) :])
    if not name or name.endswith("_"):
        raise KeyError(name)
    return lambda ctx: ctx.plan.made.read(ctx, name)


def needs_reply(names: Iterable[str]) -> bool:
    """Whether one of these variables tells something that only the reply's head does."""
    for name in names:
        found = None if name in _KNOWN_BEFORE else variables.find(name)
        if found is not None and found.when in ("reply", "end"):
            return True
    return False


def compile_text(template: Template, maps: Maps = _NO_MAPS) -> Callable[[Context], str]:
    """A template as a function from context to text, unescaped; absent values are "". `maps`: those
    of its configuration, which are found by name without.
    """
    constant = template.constant
    if constant is not None:
        return lambda _ctx: constant
    form, getters = _form(template, maps)
    if form == "%s":
        single = getters[0]
        return single if isinstance(single, Lookup) else lambda ctx: single(ctx) or ""
    return lambda ctx: form % tuple([get(ctx) or "" for get in getters])


def compile_key(template: Template, maps: Maps = _NO_MAPS) -> Callable[[Context], bytes]:
    """A template as the key of a limit: latin-1."""
    if template.parts == (Var("binary_remote_addr"),):
        return packed
    text = compile_text(template, maps)
    return lambda ctx: text(ctx).encode("latin-1", "replace")


def compile_header(template: Template, maps: Maps = _NO_MAPS) -> Callable[[Context], bytes]:
    """A template as a header value: latin-1, control characters turned into spaces."""
    text = compile_text(template, maps)

    def value(ctx: Context) -> bytes:
        return header_safe(text(ctx)).encode("latin-1", "replace")

    return value


def header_lines(headers: Iterable[tuple[str, Template]], maps: Maps = _NO_MAPS) -> HeaderLines:
    """Header lines to add: constant ones as one piece, the others evaluated per request."""
    constant = []
    dynamic = []
    for name, template in headers:
        if template.constant is None:
            dynamic.append((f"{name}: ".encode(), compile_text(template, maps)))
        elif template.constant:
            constant.append(f"{name}: {template.constant}\r\n".encode("latin-1"))
    return HeaderLines(b"".join(constant), dynamic)


def header_safe(text: str) -> str:
    return _CONTROL.sub(" ", text) if _CONTROL.search(text) else text


def compile_log(
    template: Template, escape: str, native: bool = True, maps: Maps = _NO_MAPS
) -> LogLine:
    """A log format; `escape`: default, json, none. `native` False reads every value by its
    function here: what the quick way is tested against.
    """
    parts = [
        part.encode() if isinstance(part, str) else (part.name, getter(part.name, maps))
        for part in template.parts
    ]
    return LogLine(parts, escape, values.wall, native)


def _form(template: Template, maps: Maps) -> tuple[str, tuple[Getter, ...]]:
    form = "".join(
        part.replace("%", "%%") if isinstance(part, str) else "%s" for part in template.parts
    )
    return form, tuple(
        getter(part.name, maps) for part in template.parts if not isinstance(part, str)
    )


_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
