"""Directives of proxying: where requests go, timeouts, retries, headers."""

from __future__ import annotations

from gateway.conf.spec import Arg, Directive, Param

EVERYWHERE = ("http", "server", "location")
NEXT_UPSTREAM = (
    "error",
    "timeout",
    "invalid_header",
    "http_403",
    "http_404",
    "http_429",
    "http_500",
    "http_502",
    "http_503",
    "http_504",
    "non_idempotent",
    "off",
)

DIRECTIVES = (
    Directive(
        "proxy_pass",
        ("location",),
        (Arg("url"),),
        doc="Sends requests to a declared upstream: `http://NAME`, `https://NAME`, with or "
        "without a path.",
        note="With a path, it replaces the part that the location matched; without, the target "
        "goes through "
        "as sent. `http://$upstream_by_model` chooses the upstream whose `model` or `alias` the "
        "request names. With other variables, `http://$name` or `http://NAME/path$is_args$args`, "
        "the text behind the name is the whole target, as in nginx. Only declared upstreams are "
        "reached, never an address from a request: where a variable names another, the answer is "
        "502.",
        wrong="`http://llama/` is not `http://llama`: the slash is a path and replaces the "
        "location's.",
        example="proxy_pass http://llama;",
        see=("upstream", "model", "location"),
    ),
    Directive(
        "proxy_connect_timeout",
        EVERYWHERE,
        (Arg("time", "time", 0.001),),
        default="5s",
        doc="How long connecting to an engine may take.",
        note="nginx's default is 60s. Connecting costs no engine anything, so trying the next one "
        "early is safe.",
        example="proxy_connect_timeout 1s;",
        see=("proxy_first_byte_timeout",),
    ),
    Directive(
        "proxy_send_timeout",
        EVERYWHERE,
        (Arg("time", "time", 0.001),),
        default="60s",
        doc="How long an engine may take nothing while a request is sent to it.",
        example="proxy_send_timeout 30s;",
    ),
    Directive(
        "proxy_first_byte_timeout",
        EVERYWHERE,
        (Arg("time", "time", 0.001),),
        default="600s",
        doc="How long an engine may take to begin its reply: its queue and the prefill.",
        note="For a reply that is not streamed this is the whole generation. nginx has "
        "proxy_read_timeout for "
        "this as well.",
        wrong="As short as a usual time to first token: long prompts fail, and are computed again "
        "elsewhere.",
        example="proxy_first_byte_timeout 2m;",
        see=("proxy_read_timeout", "proxy_total_timeout"),
    ),
    Directive(
        "proxy_read_timeout",
        EVERYWHERE,
        (Arg("time", "time", 0.001),),
        default="60s",
        doc="How long a reply that has begun may pause between two reads.",
        example="proxy_read_timeout 20s;",
        see=("proxy_first_byte_timeout",),
    ),
    Directive(
        "proxy_total_timeout",
        EVERYWHERE,
        (Arg("time", "time"),),
        default="0",
        doc="How long an exchange may take in all, retries included; 0 = no limit.",
        wrong="Shorter than long generations: streams are cut in the middle.",
        example="proxy_total_timeout 30m;",
        see=("proxy_read_timeout",),
    ),
    Directive(
        "proxy_next_upstream",
        EVERYWHERE,
        (Arg("case", "choice", choices=NEXT_UPSTREAM, many=True),),
        default="error timeout",
        doc="In which cases a request is tried on another engine.",
        note="Never after a byte of the reply went to the client. A request that an engine may "
        "have seen is "
        "repeated only with `non_idempotent`, since generating costs. A refused connection is "
        "always "
        "free to retry. `off`: never.",
        wrong="http_500 with a request that kills engines: it kills the next one as well.",
        example="proxy_next_upstream error timeout http_503 non_idempotent;",
        see=("proxy_next_upstream_tries", "proxy_next_upstream_timeout"),
    ),
    Directive(
        "proxy_next_upstream_tries",
        EVERYWHERE,
        (Arg("number", "int", 0, 1000),),
        default="0",
        doc="How many engines are tried at most, the first included; 0 = as many as there are.",
        example="proxy_next_upstream_tries 2;",
        see=("proxy_next_upstream",),
    ),
    Directive(
        "proxy_next_upstream_timeout",
        EVERYWHERE,
        (Arg("time", "time"),),
        default="0",
        doc="How long after its first try a request may still be passed to another engine; 0 = no "
        "limit.",
        example="proxy_next_upstream_timeout 10s;",
        see=("proxy_next_upstream",),
    ),
    Directive(
        "proxy_ssl_verify",
        EVERYWHERE,
        (Arg("on", "flag"),),
        default="off",
        doc="Whether an engine must show a certificate that is signed and has its name.",
        note="For `proxy_pass https://NAME`. It needs proxy_ssl_trusted_certificate.",
        wrong="Off over a network that others use: nobody says who answers.",
        example="proxy_ssl_verify off;",
        see=("proxy_ssl_trusted_certificate", "proxy_ssl_name"),
    ),
    Directive(
        "proxy_ssl_trusted_certificate",
        EVERYWHERE,
        (Arg("file", "path"),),
        doc="Certificates of the authorities that sign engines' certificates, in PEM.",
        note="Relative to the directory of the main configuration file.",
        example="proxy_ssl_trusted_certificate /etc/ssl/certs/ca-certificates.crt;",
        see=("proxy_ssl_verify",),
    ),
    Directive(
        "proxy_ssl_certificate",
        EVERYWHERE,
        (Arg("file", "path"),),
        doc="Certificate that the gateway shows to engines, in PEM.",
        example="proxy_ssl_certificate certs/gateway.pem;",
        see=("proxy_ssl_certificate_key",),
    ),
    Directive(
        "proxy_ssl_certificate_key",
        EVERYWHERE,
        (Arg("file", "path"),),
        doc="Private key of proxy_ssl_certificate, in PEM, without a passphrase.",
        example="proxy_ssl_certificate_key certs/gateway.key;",
        see=("proxy_ssl_certificate",),
    ),
    Directive(
        "proxy_ssl_name",
        EVERYWHERE,
        (Arg("name", "template"),),
        default="$proxy_host",
        doc="Name that an engine's certificate must have, and that is sent as SNI.",
        note="The default is the name of the upstream. A name that is checked is always sent.",
        example="proxy_ssl_name engines.example.org;",
        see=("proxy_ssl_verify", "proxy_ssl_server_name"),
    ),
    Directive(
        "proxy_ssl_server_name",
        EVERYWHERE,
        (Arg("on", "flag"),),
        default="off",
        doc="Whether the name is sent when a TLS connection to an engine is opened (SNI).",
        example="proxy_ssl_server_name on;",
        see=("proxy_ssl_name",),
    ),
    Directive(
        "proxy_set_header",
        EVERYWHERE,
        (Arg("name", "header"), Arg("value", "template")),
        repeat=True,
        doc="Sets a request header for the engine; an empty value removes it.",
        note="One in a block drops all inherited from outside, as in nginx. A header of that name "
        "from the "
        "client is replaced. Framing and connection headers are the gateway's own; X-Request-Id is "
        "always a fresh $request_id.",
        wrong="Set in `http` and one more in `location`: the first is not inherited there.",
        example="proxy_set_header Authorization $http_authorization;",
        see=("add_header", "proxy_hide_header"),
    ),
    Directive(
        "proxy_hide_header",
        EVERYWHERE,
        (Arg("name", "header"),),
        repeat=True,
        doc="Removes a header of the engine's reply.",
        example="proxy_hide_header X-Powered-By;",
        see=("proxy_pass_header", "add_header"),
    ),
    Directive(
        "proxy_pass_header",
        EVERYWHERE,
        (Arg("name", "header"),),
        repeat=True,
        doc="Lets through a header of the engine's reply that is otherwise replaced or hidden.",
        note="`Server` and `Date` are the gateway's own unless named here; it also undoes "
        "proxy_hide_header.",
        example="proxy_pass_header Server;",
        see=("proxy_hide_header",),
    ),
    Directive(
        "add_header",
        EVERYWHERE,
        (Arg("name", "header"), Arg("value", "template")),
        (Param("always"),),
        repeat=True,
        doc="Adds a header to replies with status 200, 201, 204, 206, 301, 302, 303, 304, 307 or "
        "308.",
        note="`always`: to every reply. One in a block drops all inherited from outside, as in "
        "nginx. An empty "
        "value adds nothing.",
        wrong="Without `always` it is missing from errors.",
        example='add_header X-Served-By "$hostname" always;',
        see=("proxy_hide_header",),
    ),
)
