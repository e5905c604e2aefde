"""Did you mean: the known name nearest to a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

_NAME_MAX = 64  # nothing longer is a typing mistake, and matching costs its square

_NAMES_MAX = 1000  # generated files declare thousands of upstreams; comparing all takes seconds


def nearest(word: str, names: Iterable[str]) -> str | None:
    return _nearest(word, tuple(names)) if len(word) <= _NAME_MAX else None


@lru_cache(maxsize=1024)
def _nearest(word: str, names: tuple[str, ...]) -> str | None:
    by_lower: dict[str, str] = {}
    for name in names:
        by_lower.setdefault(name.lower(), name)
    lower = word.lower()
    for form in (lower, lower.replace("-", "_")):
        if form in by_lower:
            return by_lower[form]
    if len(names) > _NAMES_MAX:
        return None
    found = get_close_matches(lower, by_lower, n=1, cutoff=0.72)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, names: Iterable[str], mark: str = "") -> str:
    """` (did you mean "x"?)`, or "" where nothing is near."""
    near = nearest(word, names)
    return f' (did you mean "{mark}{near}"?)' if near is not None and near != word else ""
