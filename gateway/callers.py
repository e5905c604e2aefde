"""Who asks an admin endpoint, as its headers say: another site's page, or who has the token.

One rule for the gateway's admin listener and for other daemons of ours. Pure.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

FOREIGN = "admin endpoints are not for other sites' pages"


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a browser sends this for another site. `headers`: by lower-case name."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        return True
    return headers.get("sec-fetch-site") in ("cross-site", "same-site")


def has_token(headers: Mapping[str, str], token: str) -> bool:
    """Whether it comes with the token; never where there is none."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if not token or scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.encode(), token.encode())
