"""Places and text with variables: what the rest of the model is made of. Frozen data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thing was written: for errors, `explain` and the status page."""

    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Var:
    """A variable inside a template: `$name` or `${name}`."""

    name: str


@dataclass(frozen=True, slots=True)
class Template:
    """Text with variables. `parts` holds `str` and `Var`; `constant`: the text, if it has none."""

    parts: tuple[str | Var, ...]

    @property
    def constant(self) -> str | None:
        if not self.parts:
            return ""
        if len(self.parts) == 1 and isinstance(self.parts[0], str):
            return self.parts[0]
        return None
