"""The one table of directives, put together from its groups. Everything that knows a name asks
here.
"""

from __future__ import annotations

from gateway.conf import (
    directives_disagg,
    directives_kv,
    directives_log,
    directives_main,
    directives_policy,
    directives_proxy,
    directives_rules,
    directives_server,
    directives_tls,
    directives_upstream,
)
from gateway.conf.foreign import FOREIGN
from gateway.conf.spec import Table

GROUPS = (
    ("Process", directives_main.DIRECTIVES),
    ("Upstreams", directives_upstream.DIRECTIVES),
    ("KV caches", directives_kv.DIRECTIVES),
    ("Disaggregated serving", directives_disagg.DIRECTIVES),
    ("Servers and locations", directives_server.DIRECTIVES),
    ("TLS", directives_tls.DIRECTIVES),
    ("Variables, access, limits", directives_rules.DIRECTIVES),
    ("Policy headers", directives_policy.DIRECTIVES),
    ("Proxying", directives_proxy.DIRECTIVES),
    ("Access log", directives_log.DIRECTIVES),
)

TABLE = Table((entry for _, entries in GROUPS for entry in entries), FOREIGN)
