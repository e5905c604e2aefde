"""The configuration as read, for `-T`: every file with its name, inline secrets hidden."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.conf.directives import TABLE
from gateway.conf.render import mask_secrets
from gateway.conf.sources import Source
from gateway.conf.spec import Table


def dump(sources: Iterable[Source], table: Table = TABLE) -> str:
    """All files, each once, in nginx's form of -T. Ends without a line end."""
    seen: set[str] = set()
    parts: list[str] = []
    for source in sources:
        if source.name in seen:
            continue
        seen.add(source.name)
        text = mask_secrets(source.text.rstrip("\n"), table)
        parts.append(f"# configuration file {source.name}:\n{text}\n")
    return "\n".join(parts).rstrip("\n")
