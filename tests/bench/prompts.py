"""Chat prompts of about 2 kB, for proxies that route by them; a number says all of a prompt.

Three of four begin with one of `SHARED` documents of 1.6 kB, as a system message, and end in a
question of 0.4 kB that nobody asked before; the fourth is new from its first word on. So a proxy
that knows what the engines hold finds most of a prompt there, and none can live on having seen the
very same prompt. The text is that of this project's pages: prose with code in it. Both ends of the
bench make the same prompts.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SHARED = 128  # documents
PIECE = 400  # bytes of text, about
PIECES = 4  # of a document
NEW_EVERY = 4


@cache
def pieces() -> tuple[str, ...]:
    """The pages cut at blanks, each piece as the inside of a JSON string."""
    found = []
    for page in sorted(DOCS.glob("*.md")):
        text = re.sub(r"[ \t]+", " ", page.read_text(encoding="utf-8"))
        while len(text) > PIECE:
            end = text.find(" ", PIECE)
            if end < 0:
                break
            found.append(json.dumps(text[:end])[1:-1])
            text = text[end + 1 :]
    return tuple(found)


def shared(number: int) -> int:
    """Which document the prompt begins with; -1 = none that came before."""
    if number % NEW_EVERY == NEW_EVERY - 1:
        return -1
    return (number * 2_654_435_761 % 2**32 >> 9) % SHARED


@cache
def document(number: int) -> str:
    known = pieces()
    return f"Page {number}. " + " ".join(known[(number * PIECES + i) % len(known)] for i in range(PIECES))


def messages(number: int) -> bytes:
    """The `messages` of a chat request, as JSON."""
    known = pieces()
    at = number * 40_503
    if (found := shared(number)) >= 0:
        system = document(found)
    else:
        parts = (known[(at + i * 7) % len(known)] for i in range(1, 1 + PIECES))
        system = f"Case {number}. " + " ".join(parts)
    question = f"Question {number}: {known[at % len(known)]}"
    return (
        f'[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{question}"}}]'
    ).encode()
