"""Regular expressions of the configuration, compiled the one way that `-t` and the gateway
share.
"""

from __future__ import annotations

import re
import warnings

from gateway.conf.units import BadValue

REGEX_MAX = 1024  # characters

_PCRE_NAME = re.compile(r"\(\?<(?![=!])")


def compile_regex(pattern: str, *, ignore_case: bool = False) -> re.Pattern[bytes]:
    """Compiles a pattern for matching bytes; PCRE's `(?<name>...)` is accepted. Raises BadValue.

    Matching is by `search`, as in nginx: anchors are written.
    """
    if len(pattern) > REGEX_MAX:
        raise BadValue(f"a regular expression of at most {REGEX_MAX} characters")
    raw = _PCRE_NAME.sub("(?P<", pattern).encode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(raw, re.IGNORECASE if ignore_case else 0)
    except (re.error, ValueError, RecursionError, OverflowError) as error:
        raise BadValue(f"a regular expression ({error})") from None


def captures(pattern: str) -> tuple[str, ...]:
    """The variables that a match gives: "1" to "9", and the names of groups. Raises BadValue."""
    regex = compile_regex(pattern)
    return (*map(str, range(1, min(regex.groups, 9) + 1)), *regex.groupindex)
