"""Directives of what a request itself may choose."""

from __future__ import annotations

from gateway.conf.spec import Arg, Directive, Param

EVERYWHERE = ("http", "server", "location")

DIRECTIVES = (
    Directive(
        "policy_header",
        EVERYWHERE,
        (Arg("header", "header"),),
        (
            Param("allow", Arg("words")),
            Param("min", Arg("bound")),
            Param("max", Arg("bound")),
        ),
        repeat=True,
        doc="Lets requests choose a policy by a header, within bounds.",
        note="A policy header that is not allowed is removed from the request and counted; one "
        "that is allowed but has another word or lies outside the bounds is answered 400. What "
        "each may say, and which of `allow`, `min` and `max` it has, is in the table at the end. "
        "Without them, all of it may be asked for. Words of `allow` have commas between; "
        "durations are written as here, `500ms` or `2s`. One line in a block drops all from "
        "outside.",
        wrong="X-KVGate-Priority for strangers without `min`: each one is first.",
        example="policy_header X-KVGate-TTFT-SLO min=100ms max=10s;",
        see=("policy_header_alias", "trusted_from", "expose_receipt"),
    ),
    Directive(
        "policy_header_alias",
        EVERYWHERE,
        (Arg("header", "header"), Arg("policy", "header")),
        repeat=True,
        doc="Reads another header, which clients already send, as a policy header.",
        note="The policy header itself counts first, then the aliases in their order. The policy "
        "header must be allowed in the same place. The other header goes on to the engine as any "
        "header does; `proxy_set_header HEADER \"\";` keeps it back.",
        wrong="An id that is new for each request, such as x-request-id, as a session.",
        example="policy_header_alias X-Session-Id X-KVGate-Session;",
        see=("policy_header",),
    ),
    Directive(
        "trusted_from",
        EVERYWHERE,
        (Arg("network", "network", many=True),),
        doc="Addresses and networks whose callers may name an engine (`X-KVGate-Engine`).",
        note="The address of the connection counts, never X-Forwarded-For. `unix:`: unix sockets.",
        wrong="127.0.0.1 behind a local proxy: everybody comes from there.",
        example="trusted_from 10.0.0.0/8 unix:;",
        see=("policy_header", "allow"),
    ),
)
