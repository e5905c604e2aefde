"""The one table of kvbm's directives, put together from its groups."""

from __future__ import annotations

from gateway.conf.spec import Foreign, Table
from kvbm.conf import directives_main, directives_remote, directives_tiers

GROUPS = (
    ("Process", directives_main.DIRECTIVES),
    ("Host memory and disk", directives_tiers.DIRECTIVES),
    ("Remote store", directives_remote.DIRECTIVES),
)
CONTEXTS = ("main", "host", "disk", "remote")

_KVGATE = "it belongs in kvgate.conf: the gateway and kvbm are configured apart"
_HINTS = {
    "http server upstream location listen proxy_pass": ("kvgate's", _KVGATE),
    "max_local_cpu_size local_cpu": ("LMCache's", "use host { size ...; }"),
    "max_local_disk_size local_disk": ("LMCache's", "use disk { path ...; size ...; }"),
    "remote_url": ("LMCache's", "use remote { url ...; }"),
    "cpu_bytes_to_use": ("vLLM's", "use host { size ...; }"),
    "root_dir": ("vLLM's", "use disk { path ...; }"),
    "g2": ("Dynamo's", "use host { ... }"),
    "g3": ("Dynamo's", "use disk { ... }"),
    "g4": ("Dynamo's", "use remote { ... }"),
}
FOREIGN = tuple(
    Foreign(name, hint, whose) for names, (whose, hint) in _HINTS.items() for name in names.split()
)

TABLE = Table((entry for _, entries in GROUPS for entry in entries), FOREIGN)
