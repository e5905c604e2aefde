"""What stands behind `location`: its modifier and pattern, and what may be inside what."""

from __future__ import annotations

import re

from gateway.conf import units
from gateway.conf.errors import Report, quoted
from gateway.conf.node import Node
from gateway.conf.patterns import captures, compile_regex
from gateway.conf.resolve_parts import check_captures
from gateway.conf.setting import Setting
from gateway.conf.sources import Token

_MODIFIERS = ("^~", "~*", "~", "=")  # longest first
_REGEX = ("~", "~*")


def location_pattern(node: Node, setting: Setting) -> tuple[str, str] | None:
    """(modifier, pattern), or None where they are wrong, which is reported."""
    report = setting.report
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
    return (modifier, pattern) if _pattern_is_good(modifier, pattern, words[-1], setting) else None


def _pattern_is_good(modifier: str, pattern: str, at: Token, setting: Setting) -> bool:
    report = setting.report
    if modifier in ("~", "~*"):
        try:
            compile_regex(pattern, ignore_case=modifier == "~*")
            check_captures(captures(pattern), at, setting)
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


def check_nesting(
    node: Node, pattern: tuple[str, str], outer: tuple[str, str], report: Report
) -> None:
    """nginx's rules: nothing in exact and named locations, no named one inside, a prefix must be
    inside its outer prefix. `outer` is ("", "") on the level of the server."""
    modifier, path = pattern
    around, prefix = outer
    if not prefix:
        return
    at, shown = node.words[-1], quoted(prefix)
    if around in ("=", "@"):
        kind = "exact" if around == "=" else "named"
        report.error(node.name, f"a location cannot be inside the {kind} location {shown}")
    elif modifier == "@":
        report.error(at, "a named location stands directly in its server", "move it out")
    elif modifier not in _REGEX and around in _REGEX:
        hint = "only a regular expression can be inside one"
        report.error(at, f"location {quoted(path)} is inside a regular expression", hint)
    elif modifier not in _REGEX and not path.startswith(prefix):
        hint = f"begin it with {shown}, or move it out"
        report.error(at, f"location {quoted(path)} is outside location {shown}", hint)
