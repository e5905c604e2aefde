"""Random request bodies: JSON objects full of what is awkward for a gateway that edits in place.

Duplicates, odd spacing, keys written with escapes, forbidden members at every place, lone
surrogates. All of it valid; each body is a function of its seed.
"""

import json
import random

from hypothesis import strategies as st

KEYS = [
    "model", "stream", "stream_options", "include_usage", "n", "max_tokens", "user", "session_id",
    "max_completion_tokens", "max_output_tokens", "previous_response_id", "messages", "vllm_xargs",
    "kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "Model", "", "é", "kv",
]  # fmt: skip
SPACE = st.text(" \t\r\n", max_size=2)


def quoted(text: str, rnd: random.Random) -> str:
    """A JSON string of this text, each character written in one of the forms JSON has for it."""
    short = {
        "\n": "\\n",
        "\t": "\\t",
        '"': '\\"',
        "\\": "\\\\",
        "/": "\\/",
        "\b": "\\b",
        "\f": "\\f",
    }
    out = []
    for c in text:
        units = c.encode("utf-16-be", "surrogatepass")
        forms = ["".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2))]
        if c in short:
            forms.append(short[c])
        if c not in '"\\' and c >= " " and not "\ud800" <= c <= "\udfff":
            forms += [c] * 6
        out.append(rnd.choice(forms))
    return '"' + "".join(out) + '"'


NUMBERS = ["0", "-0", "1", "2", "1.0", "1e2", "-3.25E-2", "10000000000000000000000", "1e999"]
TEXTS = [
    "",
    "true",
    "ON",
    "1",
    "f",
    "7",
    "m",
    "a/b",
    "é漢",
    "\n\t\x00",
    '"\\',
    "😀\ud7ff\ue000\U0010ffff",
    "\ud800",
    "\udc00x",
]


def space(rnd: random.Random) -> str:
    return "".join(rnd.choices(" \t\r\n", k=rnd.choice((0, 0, 0, 1, 2))))


def value(rnd: random.Random, depth: int) -> str:
    """The text of a JSON value."""
    match rnd.randrange(6 if depth else 3):
        case 0:
            return rnd.choice(NUMBERS)
        case 1:
            return rnd.choice(("true", "false", "null"))
        case 2:
            return quoted(rnd.choice(TEXTS), rnd)
        case 3:
            items = [space(rnd) + value(rnd, depth - 1) for _ in range(rnd.randrange(4))]
            return "[" + ",".join(items) + space(rnd) + "]"
    return object_text(rnd, depth)


def object_text(rnd: random.Random, depth: int) -> str:
    """The text of an object: duplicates, odd spacing and escaped keys are common in it."""
    members = []
    names = rnd.sample(KEYS, k=rnd.randrange(1, 6)) if rnd.random() < 0.9 else TEXTS[:3]
    for key in rnd.choices(names, k=rnd.choice((0, 1, 2, 3, 4, 5, 6))):
        name = quoted(key, rnd) if rnd.random() < 0.5 else json.dumps(key)
        nested = key in ("vllm_xargs", "stream_options") and depth and rnd.random() < 0.8
        inside = object_text(rnd, depth - 1) if nested else value(rnd, max(0, depth - 1))
        members.append(f"{space(rnd)}{name}{space(rnd)}:{space(rnd)}{inside}{space(rnd)}")
    return "{" + ",".join(members) + ("" if members else space(rnd)) + "}"


def body_of(seed: int) -> bytes:
    rnd = random.Random(seed)
    return (space(rnd) + object_text(rnd, 3) + space(rnd)).encode("utf-8")


# Built from a seed rather than drawn piece by piece: twenty times as many bodies in the same time.
BODIES = st.integers(0, 2**32).map(body_of)
