"""The `model` field of a multipart form: audio endpoints name their model there. Pure.

Only as much of RFC 7578 as is needed to find one small text field; anything else is "no model".
"""

from __future__ import annotations

VALUE_MAX = 512  # bytes of a model's name
PARTS_MAX = 256  # looked at; a form of more has no model for us
_DISPOSITION = b"content-disposition:"


def model_span(body: bytes, content_type: bytes) -> tuple[int, int] | None:
    """Span of the value of the last part named `model`, as form parsers take the last."""
    boundary = _boundary(content_type)
    if boundary is None:
        return None
    mark = b"--" + boundary
    found = None
    at = body.find(mark)
    for _ in range(PARTS_MAX):
        if at < 0:
            return found
        head = at + len(mark) + 2
        end = body.find(b"\r\n\r\n", head, head + 4096)
        following = body.find(b"\r\n" + mark, head)
        if end < 0 or following < 0:
            return found
        if end < following and _is_model(body[head:end]) and following - end - 4 <= VALUE_MAX:
            found = end + 4, following
        at = following + 2
    return None


def _boundary(content_type: bytes) -> bytes | None:
    if not content_type.lower().startswith(b"multipart/form-data"):
        return None
    at = content_type.lower().find(b"boundary=")
    if at < 0:
        return None
    value = content_type[at + 9 :].partition(b";")[0].strip().strip(b'"')
    return value if 0 < len(value) <= 70 else None


def _is_model(head: bytes) -> bool:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(_DISPOSITION):
            words = [word.strip() for word in line.split(b";")]
            named = b'name="model"' in words or b"name=model" in words
            return named and not any(word.startswith(b"filename") for word in words)
    return False
