"""Ids are those of the tokenizers library for the whole text, however they came about."""

import array
import json
import threading
from pathlib import Path

import pytest
from harness import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from native._core import Prompt, Tokenizer

NAMES = ("byte_level", "metaspace")
KINDS = ("auto", "tokenizers")
MARKS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</tool_call>", "<s>", "</s>"]
ODD = [
    *["hello", " world", "The", "don't", "WE'LL", "x", "_", "$", "123", " 4567", "\n", "\n\n"],
    *["\r\n", " ", "  ", "   ", "\t", "\u00a0", "\u2028", "\u3000", "\u0085", "\u200d", "\ufeff"],
    *["\x00", "\x04", "é", "e\u0301", "\u0300", "\u1112\u1161\u11ab", "한국", "这是"],
    "\uff46\uff55\uff4c",
    *["مرحبا", "\u0e33", "🙂", "👍🏽", "İ", "ǅ", "ß", "Ⅷ", "▁", "▁▁", "<", "<|im_", "</", "s>"],
]
TEXTS = st.lists(
    st.one_of(st.sampled_from(MARKS), st.sampled_from(ODD), st.text(max_size=3)), max_size=30
).map("".join)

Kinds = dict[str, tuple[Tokenizer, list[Tokenizer]]]


def numbers(packed: bytes) -> list[int]:
    ids = array.array("I")
    ids.frombytes(packed)
    return ids.tolist()


def every_kind(path: Path) -> tuple[Tokenizer, list[Tokenizer]]:
    """The reference, and what must equal it: both libraries, with a cache and without."""
    others = [Tokenizer(path, cache, kind) for kind in KINDS for cache in (0, 1 << 20)]
    return Tokenizer(path, kind="whole"), others


@pytest.fixture(scope="module")
def kinds() -> Kinds:
    return {name: every_kind(tokenizers.SMALL / f"{name}.json") for name in NAMES}


def check(whole: Tokenizer, others: list[Tokenizer], text: str) -> None:
    for special in (False, True):
        wanted = whole.encode(text, special)
        for other in others:
            # The second time from the cache.
            assert other.encode(text, special) == wanted
            assert other.encode(text, special) == wanted


def test_ids_are_those_of_the_python_package(kinds: Kinds) -> None:
    for line in (tokenizers.SMALL / "ids.jsonl").open():
        case = json.loads(line)
        whole, others = kinds[case["tokenizer"]]
        for tokenizer in (whole, *others, *others):
            packed = tokenizer.encode(case["text"], case["add_special_tokens"])
            assert numbers(packed) == case["ids"], case["text"]


def test_the_faster_library_is_taken_where_it_can(kinds: Kinds) -> None:
    fast = kinds["byte_level"][1][0]
    assert (fast.kind, fast.refused) == ("fastokens", None)
    slow = kinds["metaspace"][1][0]
    assert slow.kind == "tokenizers" and slow.refused is not None and "Metaspace" in slow.refused
    assert kinds["byte_level"][1][2].refused == "not asked for"


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, name=st.sampled_from(NAMES))
def test_cutting_cannot_be_seen_in_the_ids(kinds: Kinds, text: str, name: str) -> None:
    check(*kinds[name], text)


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(TEXTS, min_size=2, max_size=6))
def test_ids_up_to_a_mark_and_those_after_are_those_of_the_whole(
    kinds: Kinds, parts: list[str]
) -> None:
    tokenizer = kinds["byte_level"][1][1]
    head = "".join(part + "<|im_end|>" for part in parts[:-1])
    whole = kinds["byte_level"][0].encode(head + parts[-1])
    assert tokenizer.encode(head) + tokenizer.encode(parts[-1]) == whole
    assert tokenizer.encode(head + parts[-1]) == whole


def entry(content: str, flags: frozenset[str]) -> dict[str, object]:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": 0, "content": content, **{name: name in flags for name in names}}


LOWERED = {"type": "Lowercase"}
PREPENDED = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
# `^` is the start of a line to the one library's regex engine, of the text to the other's.
TRIMMED = {"type": "Replace", "pattern": {"Regex": "^x+"}, "content": ""}
NORMALIZERS = [None, {"type": "Sequence", "normalizers": []}, {"type": "NFC"}, {"type": "NFKC"}]
FLAGS = st.frozensets(
    st.sampled_from(["lstrip", "rstrip", "normalized", "special", "special", "single_word"]),
    max_size=3,
)
ADDED = ["<a>", "<a>b", "b<a>", "q>", "<x y>", "ab", "word", "W", "▁", "é", " x", "\n\n", "\u3000"]


def metaspace(scheme: str, split: bool) -> dict[str, object]:
    members = {"replacement": "▁", "prepend_scheme": scheme, "split": split}
    return {"type": "Metaspace", **members}


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    normalizer=st.sampled_from([*NORMALIZERS, LOWERED, PREPENDED, TRIMMED]),
    scheme=st.sampled_from(["first", "always", "never", None]),
    split=st.booleans(),
    added=st.dictionaries(st.sampled_from(ADDED), FLAGS, min_size=1, max_size=6),
    texts=st.lists(
        st.lists(st.sampled_from([*ADDED, *MARKS, *ODD]), max_size=25).map("".join),
        min_size=4,
        max_size=8,
    ),
)
def test_every_kind_of_added_token_and_of_step_around_it(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    normalizer: dict[str, object] | None,
    scheme: str | None,
    split: bool,
    added: dict[str, frozenset[str]],
    texts: list[str],
) -> None:
    base = json.loads((tokenizers.SMALL / f"{name}.json").read_text())
    tokens = [*base["added_tokens"], *(entry(*item) for item in added.items())]
    changes: dict[str, object] = {"added_tokens": tokens, "normalizer": normalizer}
    if name == "metaspace":
        changes["pre_tokenizer"] = None if scheme is None else metaspace(scheme, split)
    folder = tmp_path_factory.mktemp("tokenizer")
    whole, others = every_kind(tokenizers.small(name, folder, **changes))
    for text in texts:
        try:
            whole.encode(text)
        except ValueError:
            # The library fails on some overlapping tokens, and so would an engine.
            continue
        check(whole, others, text)


def lacking() -> dict[str, object]:
    """A byte-level model with another token in place of the one for the byte 0x04."""
    model: dict[str, dict[str, int]]
    model = json.loads((tokenizers.SMALL / "byte_level.json").read_text())["model"]
    model["vocab"]["no byte"] = model["vocab"].pop("\u0104")
    return dict(model)


def test_what_one_library_cannot_the_other_does(tmp_path: Path) -> None:
    whole, others = every_kind(tokenizers.small("byte_level", tmp_path, model=lacking()))
    fast = others[1]
    assert fast.kind == "fastokens" and fast.stats()["fallbacks"] == 0
    text = "hello \x04 world<|im_end|>hello"
    assert fast.encode(text) == whole.encode(text)
    assert fast.stats()["fallbacks"] == 1
    check(whole, others, text)
    assert fast.stats()["fallbacks"] == 1, "the segment is cached"
    assert fast.stats()["failures"] == 0


TURN = "<|im_start|>user\nturn {}: " + "some words " * 40 + "<|im_end|>\n"
CONVERSATION = [TURN.format(i) for i in range(8)]


def test_a_turn_costs_its_new_text_only() -> None:
    tokenizer = Tokenizer(tokenizers.SMALL / "byte_level.json")
    for turn in range(1, len(CONVERSATION) + 1):
        text = "".join(CONVERSATION[:turn])
        new = len(CONVERSATION[turn - 1])
        assert 0 < tokenizer.cost_bytes(text) <= new
        before = tokenizer.stats()["miss_bytes"]
        tokenizer.encode(text)
        assert tokenizer.stats()["miss_bytes"] - before <= new
        assert tokenizer.cost_bytes(text) == 0
    # Parts shared by two conversations are held once.
    entries = tokenizer.stats()["entries"]
    tokenizer.encode("".join(reversed(CONVERSATION)))
    assert tokenizer.stats()["entries"] == entries


def test_the_cache_is_bounded() -> None:
    limit = 1 << 16
    tokenizer = Tokenizer(tokenizers.SMALL / "byte_level.json", cache_bytes=limit)
    for i in range(400):
        tokenizer.encode(f"<|im_start|>{'some words ' * 20}{i}<|im_end|>")
        assert tokenizer.stats()["bytes"] <= limit
    assert 0 < tokenizer.stats()["entries"] < 400
    assert tokenizer.stats()["limit"] == limit


def test_threads_share_a_tokenizer(kinds: Kinds) -> None:
    whole = kinds["byte_level"][0]
    tokenizer = Tokenizer(tokenizers.SMALL / "byte_level.json", cache_bytes=1 << 16)
    texts = ["".join(CONVERSATION[i % 5 : i % 5 + 3]) + f"turn {i}" for i in range(60)]
    wanted = [whole.encode(text) for text in texts]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(5):
            wrong.extend(i for i, text in enumerate(texts) if tokenizer.encode(text) != wanted[i])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    tokenizer = Tokenizer(tokenizers.SMALL / "metaspace.json", cache_bytes=0)
    text = "some words, more words\n" * 50_000
    ended = threading.Event()

    def work() -> None:
        tokenizer.encode(text)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    turns = 0
    while not ended.is_set():
        turns += 1
    thread.join()
    # With the interpreter lock held throughout, this thread would get a turn or two.
    assert turns > 1000


def test_a_prompt_is_made_in_one_call() -> None:
    tokenizer = Tokenizer(tokenizers.SMALL / "byte_level.json")
    text = "".join(CONVERSATION)
    prompt = tokenizer.prompt(text, True, "adapter", "salt", [16, 32])
    plain = Prompt(tokenizer.encode(text, True), "adapter", "salt")
    assert prompt.exact and prompt.ids() == plain.ids()
    assert prompt.hashes(16) == plain.hashes(16) != tokenizer.prompt(text, True).hashes(16)


def test_a_config_beside_the_tokenizer_is_honoured(tmp_path: Path) -> None:
    path = tokenizers.small("byte_level", tmp_path)
    alone = Tokenizer(tmp_path)
    token = {"content": "<call>", "special": False, "normalized": False}
    config = {"added_tokens_decoder": {"2007": token}, "eos_token": "<over>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    whole, others = every_kind(path)
    assert numbers(others[0].encode("a<call>b<over>"))[1::2] == [2007, 2008]
    assert len(numbers(alone.encode("a<call>b<over>"))) > 4
    check(whole, others, "a<call>b<over>c")


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("{", "not JSON"),
        ("{}", "it has no `model`"),
        ('{"model": {"type": "BPE", "dropout": 0.1, "vocab": {}, "merges": []}}', "dropout"),
        ('{"model": {"type": "Nothing", "vocab": {}}}', "no library loads it"),
    ],
)
def test_an_unfit_file_is_refused_with_its_name(tmp_path: Path, content: str, wrong: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=wrong) as caught:
        Tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        Tokenizer(tmp_path / "none.json")
    with pytest.raises(ValueError, match="the kind is"):
        Tokenizer(tokenizers.SMALL / "metaspace.json", kind="fast")
    tokenizer = Tokenizer(tokenizers.SMALL / "byte_level.json")
    tokenizer.warm()
    with pytest.raises(ValueError, match="surrogates"):
        tokenizer.encode("\ud800")
    # A token that normalises to nothing would be found everywhere, without end.
    tokens = [entry(" ", frozenset({"normalized"}))]
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    path = tokenizers.small("byte_level", tmp_path, added_tokens=tokens, normalizer=strip)
    with pytest.raises(ValueError, match="normalises to nothing"):
        Tokenizer(path)
