"""Numbers of things as people write them: 1 engine, 2 engines."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """`thing`: in the singular; its plural has an s."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
