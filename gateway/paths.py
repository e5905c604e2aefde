"""What a request's path names, once written plainly; and which paths are an engine's inference API.

Invariant: matching and the gate against engine-control paths look at the plain form only, and
what is forwarded is what the client sent. The plain form is what a server behind us would see at
most: percent signs decoded once, fragments cut, slashes merged, dot segments resolved.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

# Outside /v1/ only what answers inference or says that it is there (vLLM 0.32, facts/vllm.md §4).
OPEN = frozenset(
    b"/tokenize /detokenize /pooling /score /rerank /v2/rerank /classify /generative_scoring "
    b"/invocations /cohere/v2/chat /v2/embed /ping /version /health".split()
)
# Under /v1/ everything but what changes the engine or dumps its state.
CLOSED_V1 = frozenset(
    b"load_lora_adapter unload_lora_adapter sleep wake_up is_sleeping reset_prefix_cache "
    b"reset_mm_cache reset_encoder_cache release_kv_cache_memory collective_rpc metrics docs redoc "
    b"openapi.json server_info pause resume is_paused abort_requests start_profile stop_profile "
    b"update_weights start_weight_update finish_weight_update init_weight_transfer_engine "
    b"fault_tolerance scale_elastic_ep is_scaling_elastic_ep kv_event_sources load "
    b"tokenizer_info".split()
)

# Endpoints whose prompt can be cached by an engine; each takes `cache_salt`.
PROMPTED = frozenset(
    b"/v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/embeddings /pooling "
    b"/classify /score /v1/score /rerank /v1/rerank /v2/rerank".split()
)


def plain(path: bytes) -> bytes | None:
    """The plain form of a request path, or None where it cannot have one.

    None: not starting with a slash, a NUL or control byte, a broken escape, or dots above the root
    (nginx answers all of them 400).
    """
    if path.startswith((b"http://", b"https://")):
        path = _origin_form(path)
    if not path.startswith(b"/"):
        return None
    if b"%" not in path and b"//" not in path and b"/." not in path and b"#" not in path:
        return path if _clean(path) else None
    path = path.partition(b"#")[0]
    if not _escapes_valid(path):
        return None
    path = unquote_to_bytes(path)
    if not _clean(path):
        return None
    return _resolve(path)


def _origin_form(path: bytes) -> bytes:
    rest = path.partition(b"://")[2]
    slash = rest.find(b"/")
    return b"/" if slash < 0 else rest[slash:]


def _clean(path: bytes) -> bool:
    return (path.isascii() and path.decode("ascii").isprintable()) or not any(
        byte < 0x20 or byte == 0x7F for byte in path
    )


def _escapes_valid(path: bytes) -> bool:
    at = path.find(b"%")
    while at >= 0:
        digits = path[at + 1 : at + 3]
        if len(digits) != 2 or not all(d in b"0123456789abcdefABCDEF" for d in digits):
            return False
        at = path.find(b"%", at + 3)
    return True


def _resolve(path: bytes) -> bytes | None:
    out: list[bytes] = []
    segments = path.split(b"/")[1:]
    for segment in segments:
        if segment == b"..":
            if not out:
                return None
            out.pop()
        elif segment not in (b"", b"."):
            out.append(segment)
    slash = b"/" if segments[-1] in (b"", b".", b"..") and out else b""
    return b"/" + b"/".join(out) + slash


def is_inference(path: bytes) -> bool:
    """Whether a plain path may reach an engine from a stranger."""
    if path.startswith(b"/v1/"):
        return path[4:].partition(b"/")[0] not in CLOSED_V1
    return path in OPEN
