"""Prompts of an exact length, the same for the same block: what a trace shares is shared again.

A block's tokens follow from its number and the salt of the run alone, so that another salt is text
that no cache has seen. As token ids, lengths are exact; as words of a chat, as near as the engine's
own counts of two probes allow.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from gateway.load.offer import Offer

IDS = (100, 900)  # ids that every vocabulary has, and that mean nothing special
# Common words: one token each, blank included, in most vocabularies.
_WORD_TEXT = (
    "the of and to in is that it for was on are as with they at be this from have or by one had "
    "not but what all were when we there can an your which their said if do will each about how up "
    "out them then she many some so these would other into has more two like him see time could no "
    "make than first been its who now people my made over did down only way find use may water "
    "long little very after called just where most know get through back much before go good new "
    "write our used me man too any day same right look think also around another came come work "
    "three word must because does part even place well such here"
)
WORDS = tuple(_WORD_TEXT.split())

OWN_BLOCK = 512  # tokens of a piece of a prompt that shares nothing
# Of the prompt in a body, token ids and messages.
_FRAMES = {
    False: (b',"prompt":[', b"]}"),
    True: (b',"messages":[{"role":"user","content":"', b'"}]}'),
}


@dataclass(frozen=True, slots=True)
class Asking:
    """What every request of a run says. `chat`: messages, else token ids. `exact`: the answer is to
    be as long as planned, by fields that vLLM and SGLang know and OpenAI does not.
    """

    model: str
    chat: bool = False
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Scale:
    """How an engine counts words: `fixed` tokens of the template, and so many of each word."""

    fixed: float = 0.0
    each: float = 1.0

    @staticmethod
    def of(few: tuple[int, int], many: tuple[int, int]) -> Scale:
        """Of two (words, tokens that the engine counted)."""
        each = (many[1] - few[1]) / (many[0] - few[0])
        return Scale(few[1] - few[0] * each, each)

    def words(self, tokens: int) -> int:
        return max(1, round((tokens - self.fixed) / self.each))


class Writer:
    """Bodies of requests, ready to be sent."""

    def __init__(self, asking: Asking, block: int, salt: str, scale: Scale | None = None) -> None:
        self._asking, self._block, self._salt = asking, block, salt
        self._scale = scale or Scale()
        pieces = (
            [b" " + word.encode() for word in WORDS]
            if asking.chat
            else [b"%d" % number for number in range(*IDS)]
        )
        self._pieces = [pieces[at % len(pieces)] for at in range(1 << 16)]
        self._between = b"" if asking.chat else b","

    def parts(self, offer: Offer, number: int) -> Iterator[bytes]:
        """Of the body, a prompt's blocks one by one. `number` of the request: prompts without
        blocks are told apart by it."""
        asking = self._asking
        fields: dict[str, object] = {
            "model": asking.model,
            "max_tokens": offer.output,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if asking.exact:
            fields |= {"min_tokens": offer.output, "ignore_eos": True}
        start, end = _FRAMES[asking.chat]
        yield orjson.dumps(fields)[:-1] + start
        yield from self._prompt(offer, number)
        yield end

    def _prompt(self, offer: Offer, number: int) -> Iterator[bytes]:
        left = self._scale.words(offer.input)
        block = max(1, round(self._block / self._scale.each)) if offer.blocks else OWN_BLOCK
        names: Iterator[int | str] = iter(offer.blocks)
        at = 0
        while left > 0:
            # Where blocks are fewer than tokens (a template is shorter than planned), own text.
            name = next(names, f"own {number} {at}")
            take = min(block, left)
            yield self._between * (at > 0) + self._part(name, take)
            left -= take
            at += 1

    def _part(self, name: int | str, count: int) -> bytes:
        seed = f"{self._salt} {name}".encode()
        drawn = array("H", hashlib.shake_128(seed).digest(2 * count))
        return self._between.join(map(self._pieces.__getitem__, drawn))

    def probe(self, words: int) -> bytes:
        """A request for one token, whose prompt has so many words."""
        text = self._part("probe", words)
        fields = {"model": self._asking.model, "max_tokens": 1}
        start, end = _FRAMES[self._asking.chat]
        return orjson.dumps(fields)[:-1] + start + text + end
