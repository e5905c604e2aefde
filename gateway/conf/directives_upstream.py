"""Directives of `upstream`: engines, models, balancing, health, connections to engines."""

from __future__ import annotations

from gateway.conf.spec import Arg, Directive, Param

DIRECTIVES = (
    Directive(
        "upstream",
        ("http",),
        (Arg("name", "name"),),
        block=True,
        repeat=True,
        doc="A named set of engines that serve the same model.",
        note="An engine's in-flight counts, failure marks and caches are kept over a reload by "
        "upstream name "
        "and address.",
        example="upstream llama { model meta-llama/Llama-3.1-8B-Instruct; server 10.0.0.11:8000; }",
        see=("model", "server", "proxy_pass"),
    ),
    Directive(
        "server",
        ("upstream",),
        (Arg("address"),),
        (
            Param("weight", Arg("number", "int", 1, 65535)),
            Param("max_fails", Arg("number", "int", 0, 65535)),
            Param("fail_timeout", Arg("time", "time")),
            Param("max_conns", Arg("number", "int", 0, 1_000_000)),
            Param("backup"),
            Param("down"),
            Param("role", Arg("role", "choice", choices=("both", "prefill", "decode"))),
            Param("events", Arg("endpoint")),
            Param("replay", Arg("endpoint")),
            Param("ranks", Arg("number", "int", 1, 256)),
            Param("kvbm", Arg("endpoint")),
            Param("kvbm_replay", Arg("endpoint")),
        ),
        repeat=True,
        doc="One engine: a vLLM server, by host:port, [IPv6]:port or unix:/path.",
        note="`weight` (1): its share. `max_fails` (1) failures within `fail_timeout` (10s) take "
        "it out for as "
        "long; 0 switches that off. `max_conns` (0 = no limit): requests at once. `backup`: only "
        "when "
        "no other is available. `down`: never. `role` (both): prefill, decode or both. `events`: "
        "ZMQ "
        "endpoint of its KV events, `replay`: the one that sends past events again; without "
        "`events` the engine is asked. `ranks` (1): its data-parallel ranks (`vllm serve "
        "--data-parallel-size`); each becomes an engine of its own, ADDRESS#0, ADDRESS#1, ..., "
        "to which the other parameters apply, and requests carry X-data-parallel-rank. Where "
        "the ranks are spread over nodes with a server each (`--data-parallel-hybrid-lb`), "
        "`ranks` counts those of that node; rank r's events are r ports behind the ones written. "
        "`kvbm`: `events` of the kvbm daemon that the engine loads from, `kvbm_replay`: its "
        "`replay`; what lies there is credited to every engine whose line names it. "
        "A port is 80 where none is written, as in nginx; vLLM listens on 8000.",
        wrong="A scheme does not belong here: `https` is chosen in proxy_pass.",
        example="server 10.0.0.12:8000 weight=2 max_fails=3 fail_timeout=10s;",
        see=("upstream", "health_check", "kv_events"),
    ),
    Directive(
        "model",
        ("upstream",),
        (Arg("name"),),
        (Param("alias", Arg("name"), many=True),),
        repeat=True,
        doc="A model that the engines of this upstream serve, and other names clients may use for "
        "it.",
        note="Needed for `proxy_pass http://$upstream_by_model`. A request for an alias is sent "
        "on with the real "
        "name, and the reply carries the alias again; nothing else of the body changes.",
        wrong="The name must be what the engine lists in /v1/models (`--served-model-name`).",
        example="model meta-llama/Llama-3.1-8B-Instruct alias=llama alias=gpt-4o-mini;",
        see=("proxy_pass", "upstream"),
    ),
    Directive(
        "round_robin",
        ("upstream",),
        doc="Engines in turn, smoothly by weight. This is the default method; naming it is "
        "allowed.",
        wrong="Prompts of very different length: turns are equal, work is not; use least_conn.",
        example="round_robin;",
        see=("least_conn", "hash"),
    ),
    Directive(
        "least_conn",
        ("upstream",),
        doc="The engine with the fewest requests in flight for its weight.",
        note="A good choice where prompts share little; in-flight counts are the gateway's own.",
        wrong="Long shared prefixes: they are spread over all engines and computed everywhere.",
        example="least_conn;",
        see=("round_robin", "hash"),
    ),
    Directive(
        "hash",
        ("upstream",),
        (Arg("key", "template"), Arg("mode", "choice", choices=("consistent",), optional=True)),
        doc="The engine is chosen by a key, so that requests with the same key meet the same "
        "cache.",
        note="`consistent` moves few keys when engines come and go. A request whose key is empty "
        "goes to the "
        "engine with the fewest requests.",
        wrong="A key that differs for every request, such as $request_id: it is a slow random "
        "choice.",
        example="hash $http_x_session_id consistent;",
        see=("least_conn",),
    ),
    Directive(
        "random",
        ("upstream",),
        (
            Arg("two", "choice", choices=("two",), optional=True),
            Arg("by", "choice", choices=("least_conn", "least_time"), optional=True),
        ),
        doc="An engine drawn by weight; `two`: of two drawn, the one with fewer requests.",
        note="`random two` is what several gateways in front of the same engines should use: each "
        "knows its own requests only, and the one idle engine is not hit by all at once. "
        "`least_time` is not available.",
        wrong="Engines marked backup: random has none.",
        example="random two least_conn;",
        see=("least_conn",),
    ),
    Directive(
        "ip_hash",
        ("upstream",),
        doc="The engine is chosen by the client's address, so that a client meets its own cache.",
        note="The first three bytes of an IPv4 address count, and all of an IPv6 address.",
        wrong="Clients behind one proxy: all go to one engine; use hash with a header.",
        example="ip_hash;",
        see=("hash",),
    ),
    Directive(
        "keepalive",
        ("upstream",),
        (Arg("connections", "int", 1, 65536),),
        default="256",
        doc="How many idle connections to each engine a worker keeps.",
        note="nginx counts per upstream, kvgate per engine.",
        wrong="Far below the usual number of requests at once: each burst opens new connections.",
        example="keepalive 64;",
        see=("keepalive_timeout",),
    ),
    Directive(
        "keepalive_timeout",
        ("upstream",),
        (Arg("time", "time", 0.1),),
        default="4s",
        doc="How long an idle connection to an engine is kept.",
        note="vLLM closes idle connections after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE); the gateway "
        "must be "
        "first, or a request meets a connection that is just being closed. nginx's default is 60s.",
        wrong="5s or more with engines at their default: a warning says so.",
        example="keepalive_timeout 4s;",
        see=("keepalive", "keepalive_requests"),
    ),
    Directive(
        "keepalive_requests",
        ("upstream",),
        (Arg("number", "int", 0, 10**9),),
        default="0",
        doc="How many requests one connection to an engine carries before it is closed; 0 = no "
        "limit.",
        note="nginx's default is 1000.",
        example="keepalive_requests 10000;",
        see=("keepalive",),
    ),
    Directive(
        "health_check",
        ("upstream",),
        (Arg("off", "choice", choices=("off",), optional=True),),
        (
            Param("interval", Arg("time", "time", 0.1)),
            Param("timeout", Arg("time", "time", 0.01)),
            Param("fails", Arg("number", "int", 1, 1000)),
            Param("passes", Arg("number", "int", 1, 1000)),
            Param("uri", Arg("path", "uri")),
        ),
        default="interval=5s timeout=2s fails=3 passes=1 uri=/health",
        doc="Asks each engine regularly whether it works; `off` relies on requests alone.",
        note="`fails` failures in a row take an engine out, `passes` successes bring it back. Over "
        "https an engine is checked as the `proxy_ssl_*` lines of the locations that proxy to it "
        "say, those first that verify it; a name with variables is not checked here.",
        wrong="A `timeout` shorter than the engine needs to answer under full load: it is taken "
        "out when it "
        "is needed most.",
        example="health_check interval=2s fails=2;",
        see=("server",),
    ),
    Directive(
        "api_key",
        ("upstream",),
        (Arg("key", "secret"),),
        doc="Key for the gateway's own calls to the engines (health, models), for `vllm serve "
        "--api-key`.",
        note="Written as `file:PATH` or `env:NAME`; the value itself is possible, with a warning. "
        "Requests of "
        "clients keep their own Authorization header.",
        wrong="Meant to give clients access: it does not; see proxy_set_header.",
        example="api_key env:KVGATE_ENGINE_KEY;",
        see=("admin_token", "proxy_set_header"),
    ),
    Directive(
        "plan_report",
        ("upstream",),
        (Arg("path", "path"),),
        doc="Where `kvgate plan fit --live` keeps its last report of this upstream, for the "
        "dashboard.",
        note="Written whole or not at all, by whoever runs the planner (once a night, say); the "
        "gateway reads it while somebody watches the dashboard, and shows how old it is. Relative "
        "to the prefix.",
        wrong="A file that the gateway's `user` may not read: the dashboard says so.",
        example="plan_report logs/llama.plan;",
        see=("record", "slo", "profile"),
    ),
)
