"""Directives of the top level and of `events`: the process, its logs, its files."""

from __future__ import annotations

from gateway.conf.spec import Arg, Directive

LEVELS = ("debug", "info", "notice", "warn", "error", "crit", "alert", "emerg")

DIRECTIVES = (
    Directive(
        "worker_processes",
        ("main",),
        (Arg("number", "int", 1, 64, choices=("auto",)),),
        default="1",
        reload="restart",
        doc="How many worker processes serve requests; `auto`: one per CPU, at most 64.",
        note="Workers share the listening sockets; limits hold over all of them. One worker holds "
        "thousands of streams, since a token costs it no Python.",
        wrong="More than there are CPUs: they only take turns.",
        example="worker_processes auto;",
        see=("worker_connections",),
    ),
    Directive(
        "worker_connections",
        ("events", "main"),
        (Arg("number", "int", 16, 1_000_000),),
        default="8192",
        reload="restart",
        doc="How many client connections one worker holds at most.",
        note="Each stream also holds one connection to an engine, so the limit of open files must "
        "be at "
        "least twice this. nginx has it in `events` only; here the top level will do.",
        wrong="Too low: clients get 429 although engines are idle.",
        example="worker_connections 16384;",
        see=("worker_processes",),
    ),
    Directive(
        "worker_shutdown_timeout",
        ("main",),
        (Arg("time", "time"),),
        default="30s",
        doc="How long a graceful stop waits for running exchanges before it cuts them.",
        note="Long generations need minutes; choose it from the longest answer you want to finish.",
        wrong="Longer than the grace period of the supervisor: it kills the process first.",
        example="worker_shutdown_timeout 5m;",
        see=("shutdown_delay",),
    ),
    Directive(
        "shutdown_delay",
        ("main",),
        (Arg("time", "time"),),
        default="0s",
        doc="How long readiness answers 503, with listeners still open, before a graceful stop "
        "begins.",
        note="A load balancer in front learns of the stop only by its next check; give it that "
        "long.",
        wrong="0 behind a load balancer that polls readiness: it still sends requests to a closed "
        "port.",
        example="shutdown_delay 10s;",
        see=("worker_shutdown_timeout",),
    ),
    Directive(
        "error_log",
        ("main", "http"),
        (Arg("path", "path"), Arg("level", "choice", choices=LEVELS, optional=True)),
        default="stderr notice",
        doc="Where messages about the gateway itself go, and from which level on.",
        note="There is one for the whole gateway: in `http` it holds before that of the top level, "
        "and a server has none of its own, unlike in nginx. "
        "The path is relative to the prefix; `stderr` is the standard error. Secrets and "
        "prompts are "
        "never logged, at no level.",
        wrong="`debug` under load: one line per phase of every request.",
        example="error_log logs/error.log warn;",
        see=("access_log",),
    ),
    Directive(
        "pid",
        ("main",),
        (Arg("path", "path"),),
        reload="restart",
        doc="File that holds the process id while the gateway runs.",
        note="Relative to the prefix. Not written by default. `kvgate -s` finds the process by it.",
        example="pid run/kvgate.pid;",
    ),
    Directive(
        "user",
        ("main",),
        (Arg("name"), Arg("group", optional=True)),
        reload="restart",
        doc="Who the workers run as, where root starts the gateway.",
        note="Without a group: the group of that name, or else the user's own. Nothing by default, "
        "where nginx takes nobody.",
        wrong="The user cannot read certificates' keys or write logs: give them to it, or open "
        "them to its group.",
        example="user nobody;",
    ),
    Directive(
        "worker_rlimit_nofile",
        ("main",),
        (Arg("number", "int", 64, 10_000_000),),
        reload="restart",
        doc="The limit of open files of a worker.",
        note="A stream holds two: the client's connection and the engine's.",
        wrong="Above the hard limit of the one who starts the gateway, unless that is root.",
        example="worker_rlimit_nofile 65536;",
        see=("worker_connections",),
    ),
    Directive(
        "env",
        ("main",),
        (Arg("variable", "word"),),
        repeat=True,
        reload="restart",
        doc="Sets an environment variable for the workers: `env NAME=VALUE`.",
        note="The whole environment is kept, unlike in nginx, so `env NAME` changes nothing.",
        wrong="A secret here: it is shown by -T and in /proc; use file:PATH.",
        example="env TZ=UTC;",
    ),
    Directive(
        "daemon",
        ("main",),
        (Arg("on", "flag"),),
        default="off",
        reload="restart",
        doc="Whether the gateway leaves the terminal; it never does.",
        note="`daemon off` is accepted since files and command lines have it. `daemon on` is "
        "refused: a service manager keeps the gateway in the background.",
        example="daemon off;",
    ),
    Directive(
        "include",
        ("main", "events", "http", "upstream", "server", "location"),
        (Arg("file", "path"),),
        repeat=True,
        doc="Reads another file, or all files that match a pattern, in this place.",
        note="Relative to the directory of the main configuration file, as in nginx. Files of a "
        "pattern are "
        "read in the order of their names; a pattern may match nothing, a plain name must exist. "
        "Each file must close the blocks that it opens.",
        wrong="A pattern that also matches editors' backup files.",
        example="include upstreams/*.conf;",
    ),
    Directive(
        "events",
        ("main",),
        block=True,
        doc="A block nginx files have; it may be empty or absent.",
        note="Only `worker_connections` may stand in it.",
        example="events { }",
        see=("worker_connections",),
    ),
    Directive(
        "http",
        ("main",),
        block=True,
        doc="Holds upstreams, servers and the settings they share.",
        example="http { include upstreams/*.conf; server { listen 80; return 404; } }",
        see=("upstream", "server"),
    ),
    Directive(
        "client_body_buffers_total",
        ("http",),
        (Arg("size", "size", 1 << 20),),
        default="512m",
        doc="How much memory request bodies may hold in one worker, all clients together.",
        note="Bodies that must be read (chat requests) are buffered; a request that finds the "
        "budget used up gets 503.",
        wrong="Smaller than client_max_body_size: one large request could never be read.",
        example="client_body_buffers_total 2g;",
        see=("client_max_body_size",),
    ),
)
