"""Directives about KV caches: whether requests follow them, how prompts are read and engines
weighed, events of engines, the index of what lies where.
"""

from __future__ import annotations

from gateway.conf.model_kv import FIT, PROFILES
from gateway.conf.spec import Arg, Directive, Param

DIRECTIVES = (
    Directive(
        "kv_aware",
        ("upstream",),
        (),
        (Param("overlap_weight", Arg("number")), Param("session", Arg("key", "template"))),
        doc="A request goes where the beginning of its prompt lies in the KV cache, unless that "
        "costs others more than it saves.",
        note="The engine with the least cost in milliseconds is chosen: work queued there, what of "
        "this prompt it has to compute, and what both do to the requests beside it. What engines "
        "hold is known from their events (`kv_events`), the prompt's tokens by `tokenizer`. "
        "`overlap_weight` (1, from 0 to 100): how much a cached prefix counts; 0 = load alone. "
        "`session`: requests of the same key lean to one engine, where that costs little; an empty "
        "key leans nowhere. A request whose prompt cannot be read goes by `least_conn`.",
        wrong="Prompts that share nothing: least_conn does the same for less.",
        example="kv_aware session=$http_x_session_id;",
        see=("kv_events", "tokenizer", "slo", "profile", "expose_receipt"),
    ),
    Directive(
        "tokenizer",
        ("upstream",),
        (Arg("source", "word", choices=("auto", "remote", "off")),),
        (Param("chat_template", Arg("file", "path")),),
        default="auto",
        doc="Where the token ids of a prompt come from, which engines name their cached blocks by.",
        note="A folder with tokenizer.json (and the chat template beside it), or a model's name: "
        "its files are taken from the cache of models on this machine (HF_HOME), never fetched. "
        "`auto`: what /v1/models calls the model's root, as folder or name; where that is not "
        "here, as `remote`. `remote`: each prompt is sent to an engine to be tokenised. `off`: "
        "prompts are compared by their bytes. At start the ids are compared with the engine's "
        "own for a few conversations; where they differ, the engine tokenises, and "
        "`/kvgate/status` says so. `chat_template`: what `vllm serve --chat-template` was given. "
        "Paths are relative to the configuration file.",
        wrong="Another model's tokenizer: the comparison finds it, and every prompt is asked of "
        "an engine.",
        example="tokenizer remote;",
        see=("kv_aware", "model"),
    ),
    Directive(
        "slo",
        ("upstream",),
        (),
        tuple(Param(name, Arg("time", "time", 0.001)) for name in ("ttft", "tpot", "e2el")),
        doc="What a request should get: the time to its first token, per token after that, and to "
        "its last.",
        note="Requests that get it are counted as goodput, others by what broke it "
        "(docs/goodput.md). Where prompts decide, an engine on which a request would miss its "
        "`ttft` or `tpot`, or make others miss theirs, costs more. `slo` of a server or location "
        "stands in its place there, and X-KVGate-TTFT-SLO and X-KVGate-TPOT-SLO change it for one "
        "request. An answer that is no stream has to keep `e2el` only.",
        wrong="Times that no engine can keep: then all cost alike.",
        example="slo ttft=2s tpot=50ms;",
        see=("kv_aware", "policy_header"),
    ),
    Directive(
        "profile",
        ("upstream",),
        (Arg("name", "choice", choices=PROFILES),),
        tuple(Param(name, Arg("number")) for name in (*FIT, "chunk")),
        default="neutral",
        doc="How fast the engines compute, as a start: it is corrected by what is observed.",
        note="Step time in ms = max(base, a0 + b*N + c*sum n(p + n/2)) + hb*B + hk*KV + ovh, with "
        "N prompt tokens in the step, n of one prompt behind p that are there, B decoding "
        "requests that hold KV tokens. Numbers replace those of the named profile; `chunk`: "
        "prompt tokens of a step (`--max-num-batched-tokens`).",
        example="profile h100-8b-tp1 chunk=4096;",
        see=("kv_aware",),
    ),
    Directive(
        "kv_capacity",
        ("upstream",),
        (Arg("tokens", "int", 1, 10**12),),
        doc="How many tokens the KV cache of one engine holds, where the engine does not say.",
        note="Asked of the engine (`vllm:cache_config_info` of its metrics) where this is not "
        "written. An engine that is followed by decisions is taken to hold so much. With host "
        "memory as a second tier, both together.",
        wrong="More than there is: hits are expected that do not come.",
        example="kv_capacity 430000;",
        see=("kv_events", "block_size"),
    ),
    Directive(
        "block_size",
        ("upstream",),
        (Arg("tokens", "int", 1, 65536),),
        reload="restart",
        doc="Tokens of a KV block, where no event of the engine tells.",
        note="Learnt from events, 16 until then.",
        example="block_size 16;",
        see=("kv_capacity",),
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
