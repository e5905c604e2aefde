"""Directives of the top level: the process, its socket, its administration, its events."""

from __future__ import annotations

from gateway.conf.directives_main import LEVELS
from gateway.conf.spec import Arg, Directive, Param

DIRECTIVES = (
    Directive(
        "error_log",
        ("main",),
        (Arg("path", "path"), Arg("level", "choice", choices=LEVELS, optional=True)),
        default="stderr notice",
        doc="Where messages about the daemon go, and from which level on.",
        note="The path is relative to the prefix, its directory is made if it is missing; `stderr` "
        "is the standard error. A file that was moved away is opened anew.",
        example="error_log logs/kvbm.log warn;",
    ),
    Directive(
        "pid",
        ("main",),
        (Arg("path", "path"),),
        reload="restart",
        doc="File that holds the process id while the daemon runs.",
        note="Relative to the prefix; its directory is made if it is missing. Not written by "
        "default.",
        example="pid run/kvbm.pid;",
    ),
    Directive(
        "include",
        ("main", "host", "disk", "remote"),
        (Arg("file", "path"),),
        repeat=True,
        doc="Reads another file, or all files that match a pattern, in this place.",
        note="Relative to the directory of the main configuration file.",
        example="include tiers/*.conf;",
    ),
    Directive(
        "socket",
        ("main",),
        (Arg("path", "path"),),
        (Param("mode", Arg("mode", "choice", choices=("0600", "0660", "0666"))),),
        default="run/kvbm.sock mode=0600",
        reload="restart",
        doc="The unix socket that engines connect to.",
        note="Relative to the prefix; at most 107 bytes. Its directory is made if it is missing, "
        "for its owner alone. Whatever the mode, only the daemon's own user and those of "
        "`allow_user` are served.",
        wrong="A path in a directory that others may write to: they could put another socket "
        "there.",
        example="socket /run/kvbm/kvbm.sock mode=0660;",
        see=("allow_user",),
    ),
    Directive(
        "allow_user",
        ("main",),
        (Arg("user", many=True),),
        repeat=True,
        doc="Users whose engines may connect, beside the daemon's own: names or numbers.",
        example="allow_user vllm 1000;",
        see=("socket",),
    ),
    Directive(
        "socket_token",
        ("main",),
        (Arg("token", "secret"),),
        reload="restart",
        doc="What an engine must present when it connects, beside being an allowed user.",
        example="socket_token env:KVBM_SOCKET_TOKEN;",
        see=("socket",),
    ),
    Directive(
        "connections",
        ("main",),
        (Arg("number", "int", 1, 4096),),
        default="256",
        reload="restart",
        doc="How many engines may be connected at once.",
        example="connections 64;",
    ),
    Directive(
        "load_timeout",
        ("main",),
        (Arg("time", "time", 0.001, 3600),),
        default="2s",
        doc="A load that takes longer fails, and the engine computes; for jobs that bring no "
        "deadline.",
        note="No longer than computing the longest prompt would take.",
        example="load_timeout 1s;",
        see=("store_timeout",),
    ),
    Directive(
        "store_timeout",
        ("main",),
        (Arg("time", "time", 0.001, 3600),),
        default="10s",
        doc="A store that takes longer is given up; for jobs that bring no deadline.",
        note="An engine's host memory is held meanwhile.",
        example="store_timeout 5s;",
        see=("load_timeout",),
    ),
    Directive(
        "lookup_blocks",
        ("main",),
        (Arg("number", "int", 1024, 1 << 28, choices=("auto",)),),
        default="auto",
        reload="restart",
        doc="For how many blocks the shared table has room in which engines look things up.",
        note="About 12 bytes each. `auto`: as many blocks of 256 KiB as all tiers hold, at least "
        "65536; where it is full, engines ask the daemon instead.",
        example="lookup_blocks 4000000;",
    ),
    Directive(
        "admin",
        ("main",),
        (Arg("address"),),
        repeat=True,
        default="unix:run/kvbm-admin.sock",
        reload="restart",
        doc="Where `/status`, `/blocks`, verifying, dropping and prefetching are served.",
        note="`unix:PATH` (relative to the prefix, mode 0600) or HOST:PORT. Whoever reaches the "
        "unix socket may use it; TCP needs `admin_token`. `kvbm stat` and its siblings ask here.",
        wrong="TCP on an address of the outside: requests are not encrypted.",
        example="admin unix:/run/kvbm/admin.sock;",
        see=("admin_token", "metrics"),
    ),
    Directive(
        "admin_token",
        ("main",),
        (Arg("token", "secret"),),
        doc="What callers of `admin` over TCP send as `Authorization: Bearer`.",
        example="admin_token env:KVBM_ADMIN_TOKEN;",
        see=("admin",),
    ),
    Directive(
        "metrics",
        ("main",),
        (Arg("address"),),
        repeat=True,
        reload="restart",
        doc="Where `/metrics` (Prometheus' text format) is served, read-only and to everybody.",
        note="It is served at `admin`, too. None by default.",
        example="metrics 127.0.0.1:9465;",
        see=("admin",),
    ),
    Directive(
        "events",
        ("main",),
        (Arg("endpoint"),),
        (
            Param("replay", Arg("endpoint")),
            Param("topic", Arg("topic", "name")),
            Param("model", Arg("name")),
            Param("buffer", Arg("batches", "int", 1, 1_000_000)),
        ),
        repeat=True,
        reload="restart",
        doc="ZeroMQ endpoint at which blocks that come and go are told, in vLLM's format.",
        note="The gateway follows it like an engine's. `replay`: where missed batches, or all that "
        "is there, are asked for; `buffer` (10000): batches that are kept for that. `model`: only "
        "blocks of engines that serve it; hashes of different models can be equal, so that a "
        "daemon for several models needs one of these for each.",
        wrong="No `model` where engines of different models use the daemon: hits are expected "
        "that another model's block seems to promise.",
        example="events tcp://*:5600 replay=tcp://*:5601 model=llama;",
    ),
)
