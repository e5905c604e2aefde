"""Content parts of a message: which ones vLLM takes, and the text they stand for."""

from __future__ import annotations

from typing import Any

from engines.vllm.chat.outcome import Json, NotKnown, Why, refused

TEXT_FIELD = {"text": "text", "input_text": "text", "output_text": "text",
              "refusal": "refusal", "thinking": "thinking"}
MEDIA_TYPES = (
    "image_url", "input_image", "image_embeds", "image_pil", "audio_url", "input_audio",
    "audio_embeds", "video_url", "video_embeds", "prompt_embeds",
)  # fmt: skip
_MEDIA_FIELDS = frozenset(MEDIA_TYPES)
# Fields that belong to some kind of part; others are handed on to the template.
_KNOWN = _MEDIA_FIELDS | {
    "type", "text", "refusal", "thinking", "closed", "name", "uuid", "file", "data",
    "prompt_cache_breakpoint",
}  # fmt: skip


def part_text(part: Json, as_parts: bool) -> Any:
    """What a part gives to the template: a part or a string, or something false for nothing.

    Raises NotKnown for media, and for what vLLM refuses.
    """
    if type(part) is str:
        return {"type": "text", "text": part} if as_parts else part
    kind = part.get("type")
    if kind in MEDIA_TYPES or not _MEDIA_FIELDS.isdisjoint(part):
        raise NotKnown(Why.MEDIA, f"a content part holds {kind or 'media'}")
    if part.get("uuid") is not None:
        raise refused("messages: a part with a uuid holds no media")
    if type(kind) is not str:
        raise refused("messages: a content part has no type")
    if kind == "tool_reference":
        name = part.get("name")
        if type(name) not in (str, type(None)):
            raise refused("messages: the name of a tool reference is not a string")
        return {"type": kind, "name": name} if as_parts else name
    field = TEXT_FIELD.get(kind)
    if field is None:
        raise refused(f"messages: content parts of type {kind!r} are not taken")
    text = part.get(field)
    if text is None and kind in ("text", "refusal"):
        return None
    if type(text) not in (str, type(None)):
        raise refused(f"messages: a part of type {kind!r} holds no text")
    if not as_parts:
        return text
    read = {"type": "text", "text": text}
    if len(part) > 2:
        read |= {key: value for key, value in part.items() if key not in _KNOWN}
    return read


def own_form_takes(role: str, part: Json) -> bool:
    """Whether the form of a role takes this part; media are said to be taken, see `part_text`."""
    if type(part) is not dict:
        return False
    if _is_text(part):
        return True
    kind = part.get("type")
    if role == "user":
        return kind in MEDIA_TYPES or kind == "file"
    return role == "assistant" and kind == "refusal" and type(part.get("refusal")) is str


def general_count(parts: list[Json]) -> int | None:
    """How many fields the general form recognises in all parts; None: it does not take them."""
    count = 0
    for part in parts:
        if type(part) is str:
            continue
        if type(part) is not dict:
            return None
        count += _recognised(part)
    return count


def _recognised(part: dict[str, Json]) -> int:
    kind = part.get("type")
    if not _MEDIA_FIELDS.isdisjoint(part) or kind in MEDIA_TYPES:
        return 9  # whatever form is taken, media end the reading
    if _is_text(part):
        mark = part.get("prompt_cache_breakpoint")
        return 2 + (0 if mark is None else 1 + len(mark.keys() & {"mode", "ttl"}))
    best = int("uuid" in part and type(part["uuid"]) in (str, type(None)))
    if kind == "refusal" and type(part.get("refusal")) is str:
        best = max(best, 2)
    if kind == "thinking" and type(part.get("thinking")) is str:
        closed = part.get("closed")
        if "closed" not in part or type(closed) is bool:
            best = max(best, 2 + ("closed" in part))
    if ("type" not in part or kind == "tool_reference") and (
        "name" not in part or type(part["name"]) is str
    ):
        best = max(best, ("type" in part) + ("name" in part))
    if kind == "file" and type(part.get("file")) is dict:
        best = max(best, 2 + len(part["file"].keys() & {"file_data", "file_id", "filename"}))
    return best


def _is_text(part: dict[str, Json]) -> bool:
    if part.get("type") != "text" or type(part.get("text")) is not str:
        return False
    if "prompt_cache_breakpoint" not in part:
        return True
    mark = part["prompt_cache_breakpoint"]
    return (
        type(mark) is dict
        and mark.get("mode") == "explicit"
        and mark.get("ttl", "30m") in ("30m", "12h")
    )
