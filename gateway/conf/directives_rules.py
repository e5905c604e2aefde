"""Directives of what happens to a request besides where it goes: variables, access, limits."""

from __future__ import annotations

from gateway.conf.spec import Arg, Directive, Param

EVERYWHERE = ("http", "server", "location")
LEVELS = ("info", "notice", "warn", "error")

DIRECTIVES = (
    Directive(
        "map",
        ("http",),
        (Arg("source", "template"), Arg("variable", "variable")),
        block=True,
        free=True,
        repeat=True,
        doc="Makes a variable whose value depends on another text: `KEY VALUE;` lines.",
        note="Keys are exact texts of any case, `~regex` or `~*regex` (any case), and `default` "
        "for the rest. With `hostnames;`, `*.example.org`, `.example.org` and `api.*` are "
        "names with wildcards. Exact keys are tried first, then the longest wildcard, then "
        "regexes in file order. Values may hold variables, groups of the regex too. "
        "`include FILE;` reads lines from a file. A key named like one of these words is "
        "written with a backslash. The value is worked out when it is first used; "
        "`volatile;`: at each use.",
        wrong="A map of a variable that has no value yet where the result is used: a warning says "
        "so.",
        example="map $http_x_tier $plan { default basic; gold premium; ~^team- shared; }",
        see=("set",),
    ),
    Directive(
        "set",
        ("server", "location"),
        (Arg("variable", "variable"), Arg("value", "template")),
        repeat=True,
        doc="Gives a variable a value.",
        note="Lines run in their order, those of the server before those of the location; those "
        "of a location around it do not run, as in nginx. What stands behind `return` never runs. "
        "A variable that was not set is empty.",
        example="set $team research;",
        see=("map",),
    ),
    Directive(
        "error_page",
        EVERYWHERE,
        (Arg("code", "word", many=True),),
        repeat=True,
        doc="What answers instead of an error that the gateway makes: a location, a path or a URL.",
        note="`error_page 502 503 = @fallback`: a named location gets the request. `error_page 404 "
        "/x`: GET /x. A URL redirects. `=`: the status is that of what answers; `=200`: it is "
        "200; else it stays the error's. Replies of engines pass unchanged. One line in a block "
        "drops all from outside.",
        wrong="A page for people where clients expect OpenAI's error form.",
        example="error_page 404 =200 /;",
        see=("location", "return"),
    ),
    Directive(
        "allow",
        EVERYWHERE,
        (Arg("network", "network"),),
        repeat=True,
        doc="Lets clients from an address or network in.",
        note="`allow` and `deny` lines are tried in their order; the first that fits decides, and "
        "where none fits the client may come. An address, `10.0.0.0/8`, `fd00::/8`, `unix:` or "
        "`all`. One of either in a block drops all from outside.",
        wrong="`allow 127.0.0.1` behind a local proxy: everybody comes from there.",
        example="allow 10.0.0.0/8;",
        see=("deny", "trusted_from"),
    ),
    Directive(
        "deny",
        EVERYWHERE,
        (Arg("network", "network"),),
        repeat=True,
        doc="Keeps clients from an address or network out; they are answered 403.",
        example="deny all;",
        see=("allow",),
    ),
    Directive(
        "limit_conn_zone",
        ("http",),
        (Arg("key", "template"),),
        (Param("zone", Arg("name:size"), required=True),),
        repeat=True,
        reload="restart",
        doc="Memory for counting requests in flight by a key: `zone=NAME:SIZE`.",
        note="One key takes 64 bytes, so 1m holds 16384 keys. Workers share it. A request whose "
        "key is empty is not counted; where the zone is full it is refused, as in nginx.",
        example="limit_conn_zone $binary_remote_addr zone=per_client:10m;",
        see=("limit_conn",),
    ),
    Directive(
        "limit_conn",
        EVERYWHERE,
        (Arg("zone", "name"), Arg("number", "int", 1, 65535)),
        repeat=True,
        doc="How many requests of one key may be in flight; above, they are refused.",
        note="A stream counts until its last byte. Limits hold over all workers.",
        wrong="Too low for clients that open many streams on purpose, such as batch jobs.",
        example="limit_conn per_client 100;",
        see=("limit_conn_zone", "limit_conn_status", "limit_req"),
    ),
    Directive(
        "limit_conn_status",
        EVERYWHERE,
        (Arg("code", "int", 400, 599),),
        default="429",
        doc="Status of the refusal.",
        note="nginx's default is 503, which clients take for a fault of the server.",
        example="limit_conn_status 503;",
        see=("limit_conn",),
    ),
    Directive(
        "limit_conn_log_level",
        EVERYWHERE,
        (Arg("level", "choice", choices=LEVELS),),
        default="error",
        doc="Level at which refusals are logged.",
        example="limit_conn_log_level notice;",
        see=("limit_conn", "error_log"),
    ),
    Directive(
        "limit_req_zone",
        ("http",),
        (Arg("key", "template"),),
        (Param("zone", Arg("name:size"), required=True), Param("rate", Arg("rate"), required=True)),
        repeat=True,
        reload="restart",
        doc="Memory for measuring the rate of requests by a key, and the rate that is allowed.",
        note="`rate` is requests per second or minute, `10r/s` or `30r/m`. One key takes 128 "
        "bytes, so 1m holds 8192 keys; the one unused for longest makes room. Workers share it.",
        wrong="A rate in place of a limit of what is in flight: one long stream costs an engine "
        "more than a hundred short ones.",
        example="limit_req_zone $binary_remote_addr zone=rate_per_client:10m rate=10r/s;",
        see=("limit_req",),
    ),
    Directive(
        "limit_req",
        EVERYWHERE,
        (),
        (
            Param("zone", Arg("name", "name"), required=True),
            Param("burst", Arg("number", "int", 0, 1_000_000)),
            Param("nodelay"),
            Param("delay", Arg("number", "int", 0, 1_000_000)),
        ),
        repeat=True,
        doc="Holds requests of one key to the rate of a zone.",
        note="Up to `burst` (0) requests above the rate wait for their turn; more are refused. "
        "`delay`: so many of the burst pass at once; `nodelay`: all of it.",
        example="limit_req zone=rate_per_client burst=20 nodelay;",
        see=("limit_req_zone", "limit_req_status", "limit_conn"),
    ),
    Directive(
        "limit_req_status",
        EVERYWHERE,
        (Arg("code", "int", 400, 599),),
        default="429",
        doc="Status of the refusal.",
        note="nginx's default is 503.",
        example="limit_req_status 503;",
        see=("limit_req",),
    ),
    Directive(
        "limit_req_log_level",
        EVERYWHERE,
        (Arg("level", "choice", choices=LEVELS),),
        default="error",
        doc="Level at which refusals are logged; waits are logged one below.",
        example="limit_req_log_level warn;",
        see=("limit_req", "error_log"),
    ),
)
