"""What resolving needs besides the tree, and the names that blocks refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.conf.errors import Report
from gateway.conf.model import LogFormat, Upstream


@dataclass(frozen=True, slots=True)
class Setting:
    """Relative paths: logs, pid and secrets lie under `prefix`, certificates in `directory`, the
    main file's, as in nginx."""

    report: Report
    prefix: str
    directory: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Names:
    """What was declared in `http`. The flags: some declaration was wrong, so a name that is missing
    here may be that one and is not reported."""

    upstreams: dict[str, Upstream]
    upstreams_broken: bool
    formats: dict[str, LogFormat]
    formats_broken: bool
