"""Directives of the tier that several machines share: `remote`."""

from __future__ import annotations

from gateway.conf.spec import Arg, Directive, Param

DIRECTIVES = (
    Directive(
        "remote",
        ("main",),
        block=True,
        doc="An object store that several machines share.",
        note="It needs `disk` or `host`: blocks are sent from there. Whatever becomes of it, the "
        "tiers on this machine go on.",
        example="remote { url s3://kv-cache/blocks; region eu-central-1; }",
        see=("url",),
    ),
    Directive(
        "url",
        ("remote",),
        (Arg("url"),),
        reload="restart",
        doc="Where blocks are kept: `s3://BUCKET/PREFIX`, `gs://`, `az://` or `file:///PATH`.",
        note="Required. Credentials come from the directives below, else from the environment "
        "(AWS_ACCESS_KEY_ID, ...) or the machine's role.",
        wrong="A bucket without a lifecycle rule: what no machine drops stays for ever.",
        example="url s3://kv-cache/blocks;",
        see=("endpoint", "region"),
    ),
    Directive(
        "endpoint",
        ("remote",),
        (Arg("url"),),
        reload="restart",
        doc="Address of a store that is not Amazon's, such as MinIO or SeaweedFS.",
        note="Objects are then addressed by path. `http://` is allowed and not encrypted.",
        example="endpoint http://10.0.0.9:8333;",
        see=("url",),
    ),
    Directive(
        "region",
        ("remote",),
        (Arg("name", "name"),),
        reload="restart",
        doc="Region of the bucket, where the environment does not say it.",
        example="region eu-central-1;",
    ),
    Directive(
        "access_key",
        ("remote",),
        (Arg("key", "secret"),),
        reload="restart",
        doc="Access key id, where the environment has none.",
        example="access_key env:KVBM_ACCESS_KEY;",
        see=("secret_key",),
    ),
    Directive(
        "secret_key",
        ("remote",),
        (Arg("key", "secret"),),
        reload="restart",
        doc="Secret access key, where the environment has none.",
        example="secret_key env:KVBM_SECRET_KEY;",
        see=("access_key",),
    ),
    Directive(
        "upload",
        ("remote",),
        (Arg("policy", "choice", choices=("all", "reuse", "off")),),
        default="reuse",
        reload="restart",
        doc="Which blocks of the disk are sent: all, those that were loaded once, or none.",
        note="`off`: what others sent is still loaded.",
        example="upload all;",
    ),
    Directive(
        "bundle",
        ("remote",),
        (Arg("size", "size", 64 << 10, 64 << 20, choices=("off",)),),
        (Param("below", Arg("size", "size", 1)), Param("wait", Arg("time", "time", 0.001, 60))),
        default="4m below=256k wait=200ms",
        reload="restart",
        doc="Small blocks are sent as one object of at most this size, up to 124 of them.",
        note="What is no larger than `below` waits at most `wait` for others. What of a bundle is "
        "wanted at the same time is fetched at once. Machines that bundle the same blocks in "
        "another way store them twice. `off`: each block is an object; bundles of others are still "
        "read.",
        example="bundle 8m below=512k;",
        see=("upload", "concurrency"),
    ),
    Directive(
        "timeout",
        ("remote",),
        (Arg("time", "time", 0.05, 300),),
        default="2s",
        reload="restart",
        doc="A request to the store that takes longer has failed.",
        note="Loads end with the engine's own deadline, whichever comes first.",
        example="timeout 1s;",
        see=("breaker",),
    ),
    Directive(
        "concurrency",
        ("remote",),
        (Arg("number", "int", 1, 256),),
        default="16",
        reload="restart",
        doc="Requests to the store at once; half as many for sending.",
        note="Each holds a block, or a bundle of small ones, in memory, and so do as many that are "
        "being verified.",
        example="concurrency 32;",
    ),
    Directive(
        "breaker",
        ("remote",),
        (Arg("failures", "int", 1, 1000),),
        (Param("pause", Arg("time", "time", 0.1, 3600)), Param("slow", Arg("time", "time", 0.01))),
        default="5 pause=10s",
        reload="restart",
        doc="After so many failures in a row the store is left alone for a while.",
        note="The `pause` doubles up to eight times its length while the store goes on failing. "
        "`slow`: when loads take longer (the slowest of twenty), it counts as failing, too. "
        "Meanwhile its blocks are misses.",
        example="breaker 3 pause=30s slow=500ms;",
        see=("timeout",),
    ),
    Directive(
        "refresh",
        ("remote",),
        (Arg("time", "time", 1, choices=("off",)),),
        default="60s",
        reload="restart",
        doc="How often it is asked what other machines have sent.",
        note="A listing of a thousand objects is one request; each bundle that is new is one more.",
        example="refresh 5m;",
    ),
    Directive(
        "known_blocks",
        ("remote",),
        (Arg("number", "int", 1024, 1 << 27),),
        default="4194304",
        reload="restart",
        doc="How many blocks of the store are known at most; the rest are misses.",
        note="60 to 110 bytes each, and 32 more where it lies in a bundle.",
        example="known_blocks 1000000;",
    ),
)
