"""What resolving needs besides the tree, and the names that blocks refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.conf.errors import Report
from gateway.conf.model import LimitZone, LogFormat, Map, Upstream
from gateway.conf.variables import Known


@dataclass(frozen=True, slots=True)
class Setting:
    """Relative paths: logs, pid and secrets lie under `prefix`, certificates in `directory`, the
    main file's, as in nginx."""

    report: Report
    prefix: str
    directory: str
    environment: Mapping[str, str]
    known: Known


@dataclass(frozen=True, slots=True)
class Names:
    """What was declared in `http`. The flags: some declaration was wrong, so a name that is missing
    here may be that one and is not reported."""

    upstreams: dict[str, Upstream]
    upstreams_broken: bool
    maps: dict[str, Map]
    formats: dict[str, LogFormat]
    formats_broken: bool
    conn_zones: dict[str, LimitZone]
    conn_zones_broken: bool
    req_zones: dict[str, LimitZone]
    req_zones_broken: bool
    recorded: dict[str, int] = field(default_factory=dict)  # files of `record` -> their blocks
