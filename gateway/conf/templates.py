"""Text with `$name` and `${name}` -> `model.Template`, every name checked against
`variables.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.conf import variables
from gateway.conf.model import Template, Var
from gateway.conf.suggest import did_you_mean
from gateway.conf.units import BadValue

PARTS_MAX = 256

_DOLLAR = re.compile(r"\$(?:\{([A-Za-z0-9_]+)\}|([A-Za-z0-9_]+))?")


def is_known(name: str) -> bool:
    return variables.find(name) is not None


def parse(text: str, known: Callable[[str], bool] = is_known) -> Template:
    """The template of a text. Raises BadValue: a `$` without a name, an unknown variable."""
    parts: list[str | Var] = []
    at = 0
    for match in _DOLLAR.finditer(text):
        name = match[1] or match[2]
        if not name:
            raise BadValue(
                'a variable name after "$"', "a plain dollar sign cannot be written here"
            )
        if not known(name):
            guess = did_you_mean(name, variables.names(), mark="$")
            raise BadValue(f'a known variable, not "${name}"{guess}')
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
