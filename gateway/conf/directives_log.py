"""Directives of the access log."""

from __future__ import annotations

from gateway.conf.spec import Arg, Directive, Param

EVERYWHERE = ("http", "server", "location")

DIRECTIVES = (
    Directive(
        "log_format",
        ("http",),
        (Arg("name", "name"), Arg("text", "text", many=True)),
        (Param("escape", Arg("how", "choice", choices=("default", "json", "none"))),),
        repeat=True,
        doc="Names the form of a line of the access log.",
        note="The texts are joined. Predefined: `combined` (nginx's), `kvgate` (adds upstream, "
        "engine, times, "
        "tokens and who ended the exchange) and `json`. `escape` stands before the texts.",
        example="log_format short '$remote_addr \"$request\" $status $request_time';",
        see=("access_log",),
    ),
    Directive(
        "access_log",
        EVERYWHERE,
        (Arg("path", "path", choices=("off",)), Arg("format", "name", optional=True)),
        (
            Param("if", Arg("condition", "template")),
            Param("buffer", Arg("size", "size", 1, 16 << 20)),
            Param("flush", Arg("time", "time", 0.001)),
        ),
        repeat=True,
        default="off",
        doc="Writes one line per request to a file, or to `stdout` or `stderr`; `off` writes none.",
        note="The format is `kvgate` where none is named; nginx's is `combined`. Several may "
        "stand in one block; "
        "one in a block drops those from outside. Prompts are never written. Relative to the "
        "prefix. `if`: a request is not written where the text is empty or `0`. `buffer`: lines "
        "are kept until so much is full, or `flush` has passed since the first of them. Without it "
        "each worker writes its lines within a second, and in pieces of 1m; a worker "
        "that is killed loses what it had not written yet.",
        wrong="A buffer without flush on a quiet server: lines appear hours later. One of some "
        "kilobytes on a busy server: each time it is full a thread is woken to write it.",
        example="access_log logs/access.log json;",
        see=("log_format", "error_log"),
    ),
    Directive(
        "record",
        EVERYWHERE,
        (Arg("path", "path", choices=("off",)),),
        (
            Param("secret", Arg("secret", "secret")),
            Param("block", Arg("tokens", "int", 1, 1 << 16)),
            Param("client", Arg("who", "template")),
            Param("session", Arg("key", "template")),
        ),
        default="off",
        doc="Records when requests came and how long they were, for `kvgate workload`, `plan` and "
        "`load`.",
        note="One line of JSON for each request whose tokens were counted: time, lengths, hashes "
        "of the prompt's blocks (of `block` tokens, 512 unless said), of the `client` "
        "(`$remote_addr`) and of the `session` (none). Never text: hashes are keyed with "
        "`secret`, without which nobody can try what a block was; the same secret makes files of "
        "several gateways comparable. Blocks are known where the upstream is `kv_aware` and the "
        "prompt was read exactly. USR1 opens the file anew. What cannot be written in time is "
        "dropped and counted.",
        wrong="A secret that others have, too: they can find out whether a text they guess was "
        "asked.",
        example="record logs/requests.trace secret=env:KVGATE_TRACE_SECRET "
        "client=$http_authorization;",
        see=("access_log", "kv_aware"),
    ),
)
