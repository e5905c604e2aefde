"""Names of objects. Pure.

Below the configured address: `v1/NAMESPACE/KK/KEY` holds one record (a header page and a payload,
as on disk) and `v1/NAMESPACE/namespace.json` what the namespace is. Names are made of contents, so
machines that store the same block write the same object, and only the first one does.
"""

from __future__ import annotations

ROOT = "v1"
PROBE = f"{ROOT}/probe"
_HEX = frozenset("0123456789abcdef")


def folder(fingerprint: bytes) -> str:
    return f"{ROOT}/{fingerprint.hex()}"


def block(fingerprint: bytes, key: bytes) -> str:
    name = key.hex()
    return f"{folder(fingerprint)}/{name[:2]}/{name}"


def description(fingerprint: bytes) -> str:
    return f"{folder(fingerprint)}/namespace.json"


def key(path: str) -> bytes | None:
    """The key of an object's name; None: it is no block."""
    parent, _, name = path.rpartition("/")
    if len(name) != 64 or not _HEX.issuperset(name) or not parent.endswith(f"/{name[:2]}"):
        return None
    return bytes.fromhex(name)
