"""Text with `$name` and `${name}` -> `model.Template`, every name checked against
`variables.py`.
"""

from __future__ import annotations

import re

from gateway.conf.model import Template, Var
from gateway.conf.suggest import did_you_mean
from gateway.conf.units import BadValue
from gateway.conf.variables import BUILT_IN, Known

PARTS_MAX = 256

_DOLLAR = re.compile(r"\$(?:\{([A-Za-z0-9_]+)\}|([A-Za-z0-9_]+))?")


class BadVariable(BadValue):
    """A `$` without a name, or an unknown name; `written` is that piece of the text."""

    def __init__(self, message: str, written: str, guess: str = "") -> None:
        hint = "" if written != "$" else "a plain dollar sign cannot be written here"
        super().__init__(message, hint, guess)
        self.written = written


def parse(text: str, known: Known = BUILT_IN) -> Template:
    """The template of a text. Raises BadVariable; BadValue for one of too many parts."""
    parts: list[str | Var] = []
    at = 0
    for match in _DOLLAR.finditer(text):
        name = match[1] or match[2]
        if not name:
            raise BadVariable('"$" without a variable name', "$")
        if known.when(name) is None:
            guess = did_you_mean(name, known.names(), mark="$")
            raise BadVariable(f'unknown variable "${name}"', match[0], guess)
        if match.start() > at:
            parts.append(text[at : match.start()])
        parts.append(Var(name))
        at = match.end()
    if at < len(text):
        parts.append(text[at:])
    if len(parts) > PARTS_MAX:
        raise BadValue(f"at most {PARTS_MAX} parts in one text")
    return Template(tuple(parts))


def variables_of(template: Template) -> tuple[str, ...]:
    return tuple(part.name for part in template.parts if isinstance(part, Var))
