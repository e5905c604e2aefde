"""What prompts cost: tokenising new text, and the prompt phase of a conversation's tenth turn.

Texts are those that every machine with Python has: the sources of its standard library, and the
prose in them. A real tokenizer is fetched once into the user's cache.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from harness import tokenizers  # noqa: E402

from engines.vllm.chat import Texts  # noqa: E402
from gateway.kv.vocabulary import Vocabulary  # noqa: E402
from native._core import Prompt, Tokenizer  # noqa: E402

MODEL = "qwen3"
TEMPLATE = ROOT / "tests" / "vectors" / "chat_templates" / "qwen3.jinja"
CHUNK = 8 << 10  # characters of a text that is tokenised as one
TURNS = 10
TURN_TOKENS = 800  # of a question and its answer together
BLOCK_SIZES = (16,)
PATH = b"/v1/chat/completions"


def sources() -> Iterator[str]:
    """Python files of the standard library, in an order that is the same everywhere."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if not {"site-packages", "test", "tests", "idlelib"} & set(path.parts):
            try:
                yield path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue


def prose(code: str) -> str:
    """The docstrings of a source; of the help topics, which are one large dict, their texts."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    long = [text for text in values if isinstance(text, str) and len(text) > 2000]
    return "\n\n".join(text for text in [*found, *long] if text)


def chunks(texts: Iterator[str], wanted: int) -> list[str]:
    """`wanted` characters in chunks that hold no line, but short ones, that any held before."""
    seen: set[str] = set()
    found: list[str] = []
    lines: list[str] = []
    size = 0
    for text in texts:
        for line in text.splitlines(keepends=True):
            if len(line) > 24 and line in seen:
                continue
            seen.add(line)
            lines.append(line)
            size += len(line)
            if size >= CHUNK:
                found.append("".join(lines))
                lines, size = [], 0
        if len(found) * CHUNK >= wanted:
            break
    return found


def tokenizer_file() -> Path:
    case = next(case for case in tokenizers.cases() if case.tokenizer == MODEL)
    return tokenizers.fetch(case)


def tokenize_us_per_kb(path: Path, texts: list[str]) -> float:
    """Microseconds per 1 000 bytes of UTF-8, no text twice, nothing from the cache."""
    tokenizer = Tokenizer(path)
    tokenizer.warm()
    size = sum(len(text.encode()) for text in texts)
    start = perf_counter()
    for text in texts:
        tokenizer.encode(text)
    spent = perf_counter() - start
    stats = tokenizer.stats()
    if stats["hits"] or stats["fallbacks"] or stats["miss_bytes"] != size:
        raise RuntimeError(f"the texts were not tokenised once each: {stats}")
    return spent * 1e6 / (size / 1000)


def conversation(tokenizer: Tokenizer, texts: Iterator[str]) -> list[dict[str, str]]:
    """Messages of ten turns; a turn has `TURN_TOKENS` tokens, a third of them the question's."""
    messages = [{"role": "system", "content": "You are a helpful assistant."}]
    for _ in range(TURNS):
        words = re.findall(r"\s*\S+", next(texts))
        for role, share in (("user", TURN_TOKENS // 3), ("assistant", TURN_TOKENS * 2 // 3)):
            take = share // 2
            while len(tokenizer.encode("".join(words[:take]))) // 4 < share and take < len(words):
                take += 8
            messages.append({"role": role, "content": "".join(words[:take])})
            words = words[take:]
    return messages


def timed(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return (perf_counter() - start) * 1e6


def phase(vocabulary: Vocabulary, body: bytes) -> Prompt:
    """What the prompt phase does with a body: read, render, tokenise, hash the blocks."""
    found = vocabulary.read(PATH, body)
    if not isinstance(found, Texts):
        raise RuntimeError(f"the request cannot be read: {found}")
    text = found.texts[0]
    if not vocabulary.is_quick(text):
        raise RuntimeError("the turn is too long for the event loop")
    return vocabulary.prompt(text, found.add_special_tokens, (None, None), BLOCK_SIZES)


def turn_us(vocabulary: Vocabulary, texts: list[str], conversations: int) -> float:
    """Microseconds of the tenth turn's prompt phase, median over conversations."""
    # Lengths are measured with another tokenizer, whose cache is not the one under test.
    measure = Tokenizer(tokenizer_file())
    source = iter(texts)
    took = []
    for _ in range(conversations):
        messages = conversation(measure, source)
        bodies = []
        for turn in range(1, TURNS + 1):
            body = {"model": MODEL, "messages": messages[: 2 * turn], "stream": True}
            bodies.append(json.dumps(body, ensure_ascii=False).encode())
        for body in bodies[:-1]:
            phase(vocabulary, body)
        took.append(timed(lambda body=bodies[-1]: phase(vocabulary, body)))  # type: ignore[misc]
    return median(took)


def figures(quick: bool) -> dict[str, float]:
    """`tokenize_us_per_kb` and `turn_us`. `quick`: less text, so less sure."""
    path = tokenizer_file()
    wanted = (300 if quick else 1500) << 10
    code, words = chunks(sources(), wanted), chunks(map(prose, sources()), wanted)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").symlink_to(path)
        vocabulary = Vocabulary.load(f"{folder}/tokenizer.json", str(TEMPLATE))
        vocabulary.tokenizer.warm()
        turns = turn_us(vocabulary, words, 3 if quick else 15)
    return {
        "tokenize_us_per_kb": round(tokenize_us_per_kb(path, code + words), 2),
        "turn_us": round(turns, 1),
    }


if __name__ == "__main__":
    print(json.dumps(figures("--quick" in sys.argv)))
