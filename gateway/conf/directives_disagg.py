"""Directives of disaggregated serving: one engine computes a prompt, another answers it."""

from __future__ import annotations

from gateway.conf.spec import Arg, Directive, Param

DIRECTIVES = (
    Directive(
        "disaggregate",
        ("upstream",),
        (Arg("mode", "choice", choices=("off", "auto", "always")),),
        (Param("pending", Arg("number", "int", 0, 65536)),),
        default="off pending=64",
        doc="Whether prompts are computed on engines of role prefill and answered by engines of "
        "role decode.",
        note="`auto`: for each request, where that costs less than computing the prompt where it "
        "is answered. `always`: wherever the request allows it; one with several prompts "
        "or answers, "
        "of less than a block, or whose prompt cannot be read, is answered by one engine alone. "
        "Needs `kv_aware`, and engines with a KV connector (`vllm serve --kv-transfer-config`). "
        "`pending` (64): prefills that are under way or wait for their decode engine at an engine, "
        "of all workers: they hold its memory; 0 = no limit. X-KVGate-Disaggregate changes it for "
        "one request.",
        wrong="Short prompts on a slow network: `always` moves what is quicker to compute.",
        example="disaggregate auto;",
        see=("server", "kv_aware", "kv_connector", "kv_lease", "on_prefill_error"),
    ),
    Directive(
        "kv_connector",
        ("upstream",),
        (Arg("kind", "choice", choices=("pull", "push")),),
        default="pull",
        doc="How the engines hand over: `pull` for NixlConnector, `push` for NixlPushConnector.",
        note="`push` asks both engines at once, as soon as it knows the prefill engine, which it "
        "does from its first reply on.",
        wrong="Another than the engines have: they refuse each other.",
        example="kv_connector push;",
        see=("disaggregate",),
    ),
    Directive(
        "roles",
        ("upstream",),
        (Arg("mode", "choice", choices=("fixed", "elastic")),),
        (Param("dwell", Arg("time", "time", 1, 86400)),),
        default="fixed dwell=60s",
        doc="Whether engines that do both kinds of work are kept for one of them as the load asks.",
        note="`elastic`: engines declared role=both move one at a time, when prompts or answers "
        "are predicted to overload the others for half of `dwell`, and back when they are not. "
        "A role is kept for `dwell` at least, and the next move waits until the last engine is "
        "rid of what it gave up. Needs `disaggregate` and both times of `slo`. `kvgate roles` "
        "shows and sets roles.",
        wrong="Engines started as kv_producer or kv_consumer declared role=both: blocks of the "
        "wrong kind of transfer corrupt answers.",
        example="roles elastic dwell=2m;",
        see=("disaggregate", "server", "slo"),
    ),
    Directive(
        "kv_lease",
        ("upstream",),
        (Arg("time", "time", 0.1, 86400),),
        default="30s",
        doc="How long a prefill engine keeps the blocks of a prompt for a decode engine: its "
        "`kv_lease_duration`.",
        note="Counted from when the prefill was asked for, less a tenth: after that what it "
        "left is "
        "not used, but the prompt computed again.",
        wrong="Longer than the engines have it: blocks that hold something else are read, and the "
        "answer is wrong.",
        example="kv_lease 60s;",
        see=("disaggregate",),
    ),
    Directive(
        "on_prefill_error",
        ("upstream",),
        (Arg("what", "choice", choices=("retry", "local", "fail")),),
        default="retry",
        doc="What follows when a prefill engine fails.",
        note="`retry`: another one, then as `local`. `local`: the decode engine computes the "
        "prompt "
        "itself. `fail`: the client gets the error.",
        example="on_prefill_error local;",
        see=("disaggregate", "on_decode_error"),
    ),
    Directive(
        "on_decode_error",
        ("upstream",),
        (Arg("what", "choice", choices=("retry", "fail")),),
        default="retry",
        doc="What follows when a decode engine fails before anything of its answer came.",
        note="`retry`: once more, from the prefill on, on another decode engine, whatever "
        "proxy_next_upstream says. `fail`: the client gets the error.",
        example="on_decode_error fail;",
        see=("disaggregate", "on_prefill_error", "proxy_next_upstream"),
    ),
)
