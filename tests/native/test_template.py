"""Templates rendered natively: the text of Jinja2, or an error, never another text."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jinja2.filters import do_indent

from native._core import Prompt, Template, Tokenizer

VECTORS = Path(__file__).parents[1] / "vectors"
NOW_S = int(datetime(2026, 1, 15, 10, 20, 30).timestamp())
# They iterate over None, which is no error here, so that they are never proved equal.
LENIENT = {"hermes-3-tool-use", "command-r-plus-tool-use"}

Row = dict[str, Any]


def rows(name: str) -> Iterator[Row]:
    # A number that Python alone prints with an exponent would leave half of the cases to Jinja2.
    for line in (VECTORS / name).open():
        yield json.loads(line.replace("1e-07", "0.125"))


@cache
def template(name: str) -> Template | None:
    try:
        return Template((VECTORS / "chat_templates" / f"{name}.jinja").read_bytes().decode())
    except ValueError:
        return None


def outcome(row: Row, context: Row, final: bool) -> str:
    """What came of a row; fails on a text that is not Jinja2's."""
    made = template(row["template"])
    if made is None:
        return "left to Jinja2"
    try:
        text = made.render(json.dumps(context, ensure_ascii=False).encode(), NOW_S)
    except ValueError:
        return "raises as Jinja2" if "expected_error" in row else "left to Jinja2"
    if "expected_error" in row:
        assert row["template"] in LENIENT, (row["template"], row["case"])
        return "raises in Jinja2 only"
    # A continued message is cut off after rendering.
    same = text.startswith if final else text.__eq__
    assert same(row["expected_text"]), (row["template"], row["case"])
    return "equal"


def test_renders_are_those_of_transformers() -> None:
    seen: Counter[str] = Counter()
    for row in rows("chat_renders.jsonl"):
        arguments = dict(row["kwargs"])
        final = arguments.pop("continue_final_message", False)
        context = {"messages": row["messages"], "tools": row["tools"], "documents": None}
        seen[outcome(row, {**context, **row["special_tokens"], **arguments}, final)] += 1
    assert seen["equal"] >= 357, seen


def test_requests_render_as_vllm_renders_them() -> None:
    known = {row["template"]: row for row in rows("chat_templates/templates.jsonl")}
    inputs: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows("chat_requests.jsonl"):
        inputs[row["case"], row["content_format"]].append(row)
    seen: Counter[str] = Counter()
    for row in rows("chat_requests_rendered.jsonl"):
        about = known[row["template"]]
        found = inputs[row["case"], row["content_format"]]
        fit = [it for it in found if it.get("developer_role") == about["developer_role"]]
        given = (fit or found)[0]
        arguments = dict(given.get("kwargs") or {})
        final = arguments.pop("continue_final_message", False)
        context = {"messages": given["messages"], "tools": given["tools"], "documents": None}
        seen[outcome(row, {**context, **about["special_tokens"], **arguments}, final)] += 1
    assert seen["equal"] >= 695, seen


def show(source: str, **context: object) -> str:
    return Template(source).render(json.dumps(context).encode(), NOW_S)


def test_json_is_that_of_python() -> None:
    text = "é\"\\\n\x01\x7f/<>&'\u2028🙂"
    value = {"z": [1, -2.5, None, True, text], "a": {}, "b": [], "": 2**63}
    assert show("{{ v | tojson }}", v=value) == json.dumps(value, ensure_ascii=False)
    assert show("{{ v | tojson(indent=3) }}", v=value) == json.dumps(
        value, ensure_ascii=False, indent=3
    )
    assert show("{{ v | tojson(ensure_ascii=true, sort_keys=true) }}", v=value) == json.dumps(
        value, sort_keys=True
    )
    assert show("{{ v | tojson(separators=(',', ':'), indent=none) }}", v=value) == json.dumps(
        value, ensure_ascii=False, separators=(",", ":")
    )


BLANK = [" a ", "\x1c\x1fa\x1d", "\u200ba\u200b", "\x85\u3000a\ufeff", "", "\n\n", "a\r\nb\x0bc"]


@pytest.mark.parametrize("text", BLANK)
def test_strings_do_what_they_do_in_python(text: str) -> None:
    assert show("{{ t | trim }}", t=text) == text.strip()
    assert show("{{ t.strip() }}|{{ t.lstrip() }}|{{ t.rstrip() }}", t=text) == (
        f"{text.strip()}|{text.lstrip()}|{text.rstrip()}"
    )
    assert show("{{ t.split() | join('|') }}", t=text) == "|".join(text.split())
    assert show("{{ t.split('a') | join('|') }}", t=text) == "|".join(text.split("a"))
    assert show("{{ t.split('\\n', 1)[-1] }}", t=text) == text.split("\n", 1)[-1]
    assert show("{{ t | indent(2, first=true) }}", t=text) == do_indent(text, 2, True)
    assert show("{{ t | indent(blank=true) }}", t=text) == do_indent(text, 4, False, True)
    assert show("{{ t.upper() }}{{ t.find('a') }}", t=text) == text.upper() + str(text.find("a"))


def test_the_clock_is_the_local_one() -> None:
    wanted = datetime.fromtimestamp(NOW_S).strftime("%d %b %Y %H:%M %%")
    assert show("{{ strftime_now('%d %b %Y %H:%M %%') }}") == wanted
    now = Template("{{ strftime_now('%Y') }}").render(b"{}")
    assert int(now) >= 2025


@pytest.mark.parametrize(
    ("source", "context"),
    [
        ("{{ v }}", {"v": 1e-07}),
        ("{{ v }}", {"v": 1e16}),
        ("{{ v }}", {"v": 0.1 + 0.2}),
        ("{{ v }}", {"v": ["a"]}),
        ("{{ v | string }}", {"v": {"a": 1}}),
        ("{{ v | tojson }}", {}),
        ("{{ v | safe + '<' }}", {"v": "a"}),
        ("{{ v | capitalize }}", {"v": "a"}),
        ("{{ v.rsplit('a') }}", {"v": "a"}),
        ("{{ v.a.b }}", {}),
        ("{{ raise_exception('no ' + v) }}", {"v": "way"}),
    ],
)
def test_what_is_not_sure_to_be_equal_is_an_error(source: str, context: Row) -> None:
    with pytest.raises(ValueError):
        show(source, **context)


@pytest.mark.parametrize("source", ["{{ v.items }}", "{% for k in v.keys %}{% endfor %}", "{% if"])
def test_a_template_that_cannot_be_equal_is_refused(source: str) -> None:
    with pytest.raises(ValueError):
        Template(source)


def test_what_is_no_context_is_refused() -> None:
    for context in (b"", b"[]", b'{"a": "\xff"}', b'{"a": "\\ud800"}'):
        with pytest.raises(ValueError):
            Template("{{ a }}").render(context)


def test_a_conversation_becomes_a_prompt_in_one_call() -> None:
    tokenizer = Tokenizer(VECTORS / "tokenizers" / "byte_level.json")
    made = template("qwen2.5")
    assert made is not None
    context = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    prompt = tokenizer.render_prompt(made, context, False, None, "salt", [16])
    plain = Prompt(tokenizer.encode(made.render(context)), None, "salt")
    assert (prompt.ids(), prompt.hashes(16)) == (plain.ids(), plain.hashes(16))
    with pytest.raises(ValueError):
        tokenizer.render_prompt(made, b"[]", False)
