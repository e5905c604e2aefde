"""Directives of `server` and `location`: listening, limits of clients, what a path does."""

from __future__ import annotations

from gateway.conf.spec import Arg, Directive, Param

EVERYWHERE = ("http", "server", "location")

DIRECTIVES = (
    Directive(
        "server",
        ("http",),
        block=True,
        repeat=True,
        doc="A virtual server: addresses, names and locations.",
        note="The Host header chooses among servers that share an address, by server_name; the "
        "default server "
        "of the address takes the rest.",
        example="server { listen 8080; location / { proxy_pass http://llama; } }",
        see=("listen", "server_name", "location"),
    ),
    Directive(
        "listen",
        ("server",),
        (Arg("address"),),
        (
            Param("default_server"),
            Param("ssl"),
            Param("reuseport"),
            Param("backlog", Arg("number", "int", 1, 65535)),
        ),
        repeat=True,
        doc="An address to accept connections on: PORT, HOST:PORT, [IPv6]:PORT or unix:/path.",
        note="Required, unlike in nginx. `ssl`: TLS; who speaks plain HTTP there is told so with a "
        "400. `default_server`: takes requests whose Host "
        "matches no "
        "name; otherwise the first server of the address does. `backlog` (2048): queue of "
        "connections "
        "not yet accepted. `reuseport`: each worker has a socket of its own, and the system "
        "spreads connections over them. Port 0 lets the system choose, for tests.",
        wrong="`allow`-like trust in 127.0.0.1: behind a local proxy everybody comes from there.",
        example="listen 443 ssl default_server;",
        see=("server_name", "ssl_certificate"),
    ),
    Directive(
        "server_name",
        ("server",),
        (Arg("name", "text", many=True),),
        repeat=True,
        default='""',
        doc="Names in the Host header that this server answers to.",
        note="Exact, `*.example.org`, `.example.org`, `api.*`, `~regex`; tried in this order. "
        "Groups of a regex are variables: `$1`, `$name` for `(?<name>...)`.",
        example="server_name api.example.org *.llm.example.org;",
        see=("listen",),
    ),
    Directive(
        "client_header_timeout",
        ("http", "server"),
        (Arg("time", "time", 0.01),),
        default="60s",
        doc="How long a client may take to send the head of a request; then 408.",
        example="client_header_timeout 10s;",
        see=("client_body_timeout",),
    ),
    Directive(
        "client_body_timeout",
        ("http", "server"),
        (Arg("time", "time", 0.01),),
        default="60s",
        doc="How long a client may pause while it sends a body; then 408.",
        example="client_body_timeout 30s;",
        see=("client_header_timeout",),
    ),
    Directive(
        "send_timeout",
        ("http", "server"),
        (Arg("time", "time", 0.01),),
        default="60s",
        doc="How long a client may take nothing of a reply; then the connection is closed.",
        note="A stream that waits for its engine does not count. nginx has it in `location` too.",
        example="send_timeout 30s;",
        see=("client_body_timeout",),
    ),
    Directive(
        "client_max_body_size",
        EVERYWHERE,
        (Arg("size", "size"),),
        default="64m",
        doc="Largest request body; a larger one is answered 413. 0 = no limit.",
        note="nginx's default is 1m, too small for long prompts and images.",
        wrong="0 with strangers as clients: one request may take the whole body budget.",
        example="client_max_body_size 20m;",
        see=("client_body_buffers_total",),
    ),
    Directive(
        "large_client_header_buffers",
        ("http", "server"),
        (Arg("number", "int", 1, 1024), Arg("size", "size", 1024, 1 << 20)),
        default="4 16k",
        doc="Number times size is the most bytes the head of a request may have; then 414 or 431.",
        note="nginx's default is 4 8k.",
        example="large_client_header_buffers 4 8k;",
        see=("client_header_timeout",),
    ),
    Directive(
        "keepalive_timeout",
        ("http", "server"),
        (Arg("time", "time"),),
        default="75s",
        doc="How long an idle connection of a client is kept; 0 closes after each reply.",
        example="keepalive_timeout 30s;",
        see=("keepalive_requests",),
    ),
    Directive(
        "keepalive_requests",
        ("http", "server"),
        (Arg("number", "int", 0, 10**9),),
        default="1000",
        doc="How many requests one client connection carries before it is closed; 0 = no limit.",
        example="keepalive_requests 10000;",
        see=("keepalive_timeout",),
    ),
    Directive(
        "location",
        ("server", "location"),
        (Arg("pattern", "text", many=True),),
        block=True,
        repeat=True,
        doc="What happens to requests whose path matches.",
        note="`location = /x` exactly; `location ^~ /x` prefix, no regex is tried; `location ~ "
        "re` and `~* re` "
        "(any case) regexes in file order; `location /x` prefix, the longest wins where no regex "
        "matches; `location @name` is reached by error_page only. Groups of a regex are variables: "
        "`$1`, `$name` for `(?<name>...)`. Locations may stand in prefix and regex locations; "
        "those in the chosen prefix are looked at before the regexes around it, as in nginx.",
        wrong="A regex where a prefix would do: it beats every longer plain prefix.",
        example="location /v1/ { proxy_pass http://llama; }",
        see=("proxy_pass", "return", "error_page", "admin", "metrics"),
    ),
    Directive(
        "return",
        ("server", "location"),
        (Arg("code"), Arg("text", "template", optional=True)),
        doc="Answers at once: `return CODE [TEXT]`, `return 30x URL`, or `return URL` (302).",
        note="In `server` it answers every request of that server. `return 444` closes the "
        "connection without an answer.",
        example="return 301 https://$host$request_uri;",
        see=("location",),
    ),
    Directive(
        "engine_admin",
        EVERYWHERE,
        (Arg("on", "flag"),),
        default="off",
        doc="Passes paths that control an engine: adapters, sleep, cache reset, metrics, docs.",
        note="Off, such a path is answered 404, however it is spelt.",
        wrong="On for strangers: anybody can empty the cache or put the engine to sleep.",
        example="engine_admin on;",
        see=("trust_client",),
    ),
    Directive(
        "trust_client",
        EVERYWHERE,
        (Arg("on", "flag"),),
        default="off",
        doc="Keeps request fields and headers that can mislead or stop a stock engine.",
        note="Off, kv_transfer_params, ec_transfer_params, kv_cache_report_mode, "
        "X-data-parallel-rank and "
        "X-Vllm-Priority are removed.",
        wrong="On for anybody but your own programs.",
        example="trust_client on;",
        see=("engine_admin",),
    ),
    Directive(
        "express",
        EVERYWHERE,
        (Arg("on", "flag"),),
        default="on",
        doc="Answers requests that need no waiting without starting an ASGI task.",
        note="Off is for comparison and for finding faults; replies are the same.",
        example="express off;",
    ),
    Directive(
        "expose_receipt",
        EVERYWHERE,
        (Arg("on", "flag"),),
        default="off",
        doc="Adds reply headers that say which engine answered and why.",
        wrong="On for strangers: it shows the inside of the installation.",
        example="expose_receipt on;",
        see=("add_header",),
    ),
    Directive(
        "slo",
        EVERYWHERE,
        (Arg("what", "choice", choices=("off",), optional=True),),
        tuple(Param(name, Arg("time", "time", 0.001)) for name in ("ttft", "tpot", "e2el")),
        doc="What requests should get here, in place of the `slo` of the upstream they come to; "
        "`off`: nothing is set.",
        note="One line drops all of those around it and all of the upstream's: times that it does "
        "not name are not set. What counts as good is counted for each route by its own, and "
        "where prompts decide, engines are weighed by it. `roles elastic` and `kvgate plan` go by "
        "the upstream's.",
        wrong="`e2el` for answers whose length the client chooses: who asks for much breaks it.",
        example="slo ttft=500ms tpot=30ms;",
        see=("slo", "policy_header"),
    ),
    Directive(
        "admin",
        ("location",),
        doc="Serves status and administration.",
        note="Only on a unix socket, or with admin_token.",
        wrong="A TCP address without a token is refused, 127.0.0.1 too: every local process and "
        "every page in "
        "a local browser reaches it.",
        example="admin;",
        see=("admin_token", "metrics"),
    ),
    Directive(
        "admin_token",
        EVERYWHERE,
        (Arg("token", "secret"),),
        doc="Token that a caller of `admin` must send as `Authorization: Bearer TOKEN`.",
        note="Written as `file:PATH` or `env:NAME`; the value itself is possible, with a warning.",
        example="admin_token env:KVGATE_ADMIN_TOKEN;",
        see=("admin",),
    ),
    Directive(
        "metrics",
        ("location",),
        doc="Serves the gateway's metrics in the Prometheus format, read-only.",
        example="metrics;",
        see=("admin",),
    ),
)
