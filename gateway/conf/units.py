"""Written values -> numbers and names: times, sizes, addresses, header names. Pure functions.

Each raises `BadValue` with what was expected; the caller adds the place and the directive.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

TIME_MAX_S = 365 * 86400.0
SIZE_MAX = 1 << 50
UNIX_PATH_MAX = 107  # sun_path of Linux, less the NUL

_TIME_UNITS = {"y": 31536000.0, "M": 2592000.0, "w": 604800.0, "d": 86400.0, "h": 3600.0}
_TIME_UNITS |= {"m": 60.0, "s": 1.0, "ms": 0.001}
_TIME_ORDER = tuple(_TIME_UNITS)
_TIME_PART = re.compile(r"([0-9]{1,12})(ms|[yMwdhms])? *")
_SIZE = re.compile(r"([0-9]{1,18})([kKmMgG]?)")
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]{0,63}")
_DIGITS = re.compile(r"[0-9]{1,18}")


class BadValue(ValueError):
    """`expected` says what would be right, `hint` what to do, `guess` what may have been meant."""

    def __init__(self, expected: str, hint: str = "", guess: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.hint = hint
        self.guess = guess


def seconds(text: str) -> float:
    """nginx's times: parts in falling order (`1h30m`, `500ms`), a plain number is seconds."""
    expected = "a time such as 10s, 500ms or 1m30s"
    total, at, last = 0.0, 0, -1
    while at < len(text):
        part = _TIME_PART.match(text, at)
        if part is None:
            raise BadValue(expected, _time_hint(text))
        unit = part[2] or "s"
        rank = _TIME_ORDER.index(unit)
        # A number without unit is seconds, and only the last part may be one.
        if rank <= last or (part[2] is None and part.end() < len(text)):
            raise BadValue(expected, _time_hint(text))
        total, at, last = total + int(part[1]) * _TIME_UNITS[unit], part.end(), rank
    if last < 0 or text != text.strip():
        raise BadValue(expected)
    if total > TIME_MAX_S:
        raise BadValue("a time of at most a year")
    return round(total, 3)


def _time_hint(text: str) -> str:
    fraction = re.fullmatch(r"([0-9]{1,6}\.[0-9]{1,6})(ms|s|m|h)?", text)
    if fraction:
        value = float(fraction[1]) * _TIME_UNITS[fraction[2] or "s"] * 1000
        return f"fractions are not written; use {value:.0f}ms"
    if re.fullmatch(r"[0-9]+(sec|secs|seconds?)", text):
        return "the unit of seconds is s"
    if re.fullmatch(r"[0-9]+(min|mins|minutes?)", text):
        return "the unit of minutes is m"
    return ""


def octets(text: str) -> int:
    """nginx's sizes: `512`, `64k`, `64m`, `1g`."""
    match = _SIZE.fullmatch(text)
    if match is None:
        lower = re.fullmatch(r"([0-9]+)([kmg])i?b", text.lower())
        hint = f"write {lower[1]}{lower[2]}" if lower else ""
        raise BadValue("a size such as 512, 64k, 64m or 1g", hint)
    value = int(match[1]) * _SIZE_UNITS[match[2].lower()]
    if value > SIZE_MAX:
        raise BadValue("a size of at most 1048576g")
    return value


def integer(text: str) -> int:
    if not _DIGITS.fullmatch(text):
        raise BadValue("a whole number")
    return int(text)


def flag(text: str) -> bool:
    if text not in ("on", "off"):
        raise BadValue('"on" or "off"')
    return text == "on"


def header_name(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise BadValue("an HTTP header name", "leave out the colon" if text.endswith(":") else "")
    return text


def name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise BadValue("a name of letters, digits, '_', '-' and '.'")
    return text


def visible(text: str) -> str:
    """Text that may stand in a header line: no control characters but the tab."""
    if any((c < " " and c != "\t") or c == "\x7f" for c in text):
        raise BadValue("text without line ends and control characters")
    return text


def variable(text: str) -> str:
    """The name in `$name`."""
    if not _VARIABLE.fullmatch(text):
        hint = f"write ${text}" if _VARIABLE.fullmatch(f"${text}") else ""
        raise BadValue("a variable such as $name", hint)
    return text[1:]


def network(text: str) -> str:
    """`all`, `unix:`, or an address or network in CIDR form, bits behind the prefix cut."""
    if text in ("all", "unix:"):
        return text
    try:
        plain = text if "/" in text else text.strip("[]")
        return str(ipaddress.ip_network(plain, strict=False))
    except ValueError:
        expected = "an address, a network such as 10.0.0.0/8 or fd00::/8, unix: or all"
        hint = "names are not looked up" if _HOST.fullmatch(text) else ""
        raise BadValue(expected, hint) from None


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect or listen: TCP (`host`, `port`) or a unix socket (`unix_path`). `port` is
    -1 where none was written."""

    host: str = ""
    port: int = -1
    unix_path: str = ""


def address(text: str) -> Address:
    """`host`, `host:port`, `[v6]:port`, `unix:/path`. Syntax only: no name is looked up."""
    if text.startswith("unix:"):
        path = text[5:]
        if not path.startswith("/") or path.endswith("/"):
            raise BadValue("unix: and an absolute path of a socket")
        if len(path.encode("utf-8", "surrogatepass")) > UNIX_PATH_MAX:
            raise BadValue(f"a socket path of at most {UNIX_PATH_MAX} bytes")
        return Address(unix_path=path)
    if "://" in text:
        raise BadValue("host:port, [IPv6]:port or unix:/path", "leave out the scheme")
    if text.startswith("["):
        inside, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadValue("an IPv6 address in brackets, such as [::1]:8000")
        return Address(_ipv6(inside), _port(rest[1:]) if rest else -1)
    if text.count(":") > 1:
        raise BadValue("host:port", "an IPv6 address is in brackets: [::1]:8000")
    host, colon, rest = text.partition(":")
    return Address(_host(host), _port(rest) if colon else -1)


def _ipv6(text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        raise BadValue("an IPv6 address in brackets, such as [::1]:8000") from None


def _host(text: str) -> str:
    if re.fullmatch(r"[0-9.]+", text):
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            raise BadValue("an IPv4 address of four numbers up to 255, or a host name") from None
    if len(text) > 253 or not _HOST.fullmatch(text):
        raise BadValue("a host name or an address")
    return text


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise BadValue("a port from 1 to 65535")
    return int(text)
