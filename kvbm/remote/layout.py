"""Names of objects. Pure.

Below the configured address, in `v1/NAMESPACE/`: `KK/KEY` is one record (a header page and a
payload, as on disk), `bundles/NAME` a bundle of small ones, `dropped/NAME/KEY` says that a block of
it was dropped, and `namespace.json` what the namespace is. Names are made of contents, so machines
that store the same write the same object, and only the first one does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ROOT = "v1"
PROBE = f"{ROOT}/probe"
BUNDLES = "bundles"
DROPPED = "dropped"
_HEX = frozenset("0123456789abcdef")


@dataclass(slots=True)
class Listed:
    """What some names stand for."""

    keys: list[bytes] = field(default_factory=list)  # of blocks that lie alone
    bundles: dict[bytes, int] = field(default_factory=dict)  # name: bytes of the object
    dropped: dict[bytes, list[bytes]] = field(default_factory=dict)  # bundle: keys


def folder(fingerprint: bytes) -> str:
    return f"{ROOT}/{fingerprint.hex()}"


def block(fingerprint: bytes, key: bytes) -> str:
    name = key.hex()
    return f"{folder(fingerprint)}/{name[:2]}/{name}"


def bundle(fingerprint: bytes, name: bytes) -> str:
    return f"{folder(fingerprint)}/{BUNDLES}/{name.hex()}"


def dropped(fingerprint: bytes, name: bytes | None = None, key: bytes | None = None) -> str:
    """The object that says that a block of a bundle was dropped, or the folder of such."""
    parts = [folder(fingerprint), DROPPED, *(part.hex() for part in (name, key) if part)]
    return "/".join(parts)


def fingerprint(name: str) -> bytes | None:
    """Of a namespace's folder."""
    return _bytes(name)


def description(fingerprint: bytes) -> str:
    return f"{folder(fingerprint)}/namespace.json"


def listed(rows: list[tuple[str, int]]) -> Listed:
    """Of (path, bytes); what is nothing of ours is left out."""
    found = Listed()
    for path, size in rows:
        *_, above, parent, name = ("", "", *path.split("/"))
        if (which := _bytes(name)) is None:
            continue
        if parent == BUNDLES:
            found.bundles[which] = size
        elif parent == name[:2]:
            found.keys.append(which)
        elif above == DROPPED and (of := _bytes(parent)) is not None:
            found.dropped.setdefault(of, []).append(which)
    return found


def _bytes(name: str) -> bytes | None:
    if len(name) != 64 or not _HEX.issuperset(name):
        return None
    return bytes.fromhex(name)
