"""Directives about KV caches: events of engines, the index of what lies where."""

from __future__ import annotations

from gateway.conf.spec import Arg, Directive, Param

DIRECTIVES = (
    Directive(
        "kv_aware",
        ("upstream",),
        doc="A request goes where the beginning of its prompt lies in the KV cache, unless that "
        "costs others more than it saves.",
        note="The gateway follows what each engine caches (kv_events).",
        wrong="Prompts that share nothing: least_conn does the same for less.",
        example="kv_aware;",
        see=("kv_events", "kv_index_size"),
    ),
    Directive(
        "kv_events",
        ("upstream",),
        (Arg("source", "choice", choices=("auto", "off")),),
        (Param("quiet", Arg("time", "time")),),
        default="auto quiet=60s",
        doc="Where the gateway learns what lies in an engine's KV cache: from the engine's own "
        "events, or (`off`) only from where requests were sent.",
        note="`auto` asks each engine (GET /kv_event_sources) and subscribes; `events=` on its "
        "server line says it without asking. An engine without events is followed by decisions, "
        "and `/kvgate/status` says why. `quiet` (60s): an engine that publishes nothing for so "
        "long under traffic is reported and followed by decisions; 0 switches that off.",
        wrong="`off` with engines that publish: evictions are then guessed.",
        example="kv_events auto quiet=2m;",
        see=("kv_aware", "server", "kv_index_size"),
    ),
    Directive(
        "kv_index_size",
        ("http",),
        (Arg("size", "size", 1 << 20, 1 << 38),),
        default="1g",
        reload="restart",
        doc="How much memory each worker's index of cached blocks may take.",
        note="About 64 bytes per block and engine: 1g holds 16 million blocks, 268 million tokens "
        "in blocks of 16. What does not fit is evicted, least recently used first, and counted.",
        wrong="Below what the engines hold together: hits are missed for want of memory.",
        example="kv_index_size 4g;",
        see=("kv_events",),
    ),
)
