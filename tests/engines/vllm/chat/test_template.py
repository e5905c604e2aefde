"""Templates: the environment and its sandbox, content formats, open ends, a second renderer."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from jinja2 import Environment, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engines.vllm.chat import NotKnown, Why
from engines.vllm.chat.environment import ChatEnvironment, Generation
from engines.vllm.chat.template import Call, Template
from engines.vllm.chat.tools import ToolSets
from native import _core

NOW = datetime(2026, 1, 15, 10, 20, 30)
TEMPLATES = Path(__file__).parents[3] / "vectors" / "chat_templates"
USER = {"role": "user", "content": "Hi"}


def template(source: str, **tokens: str) -> Template:
    return Template(source, ToolSets(), lambda: NOW, tokens)


def render(source: str, *messages: dict[str, Any], **arguments: Any) -> str:
    return template(source).render(Call(messages or (USER,), arguments=arguments))


# -- environment


@pytest.mark.parametrize("source", [
    "{{ ''.__class__ }}",
    "{{ messages.__class__.__mro__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({}) }}",
    "{{ messages[0]['pop']('role') }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ ('{0.__class__}'|attr('format'))(messages) }}",
    "{{ '{m.__class__}'.format_map({'m': 1}) }}",
    "{{ namespace(a=1).__init__ }}",
    "{% for m in messages %}{{ loop.__class__.__init__ }}{% endfor %}",
    "{{ raise_exception.__globals__ }}",
    "{{ range(10 ** 9) }}",
])  # fmt: skip
def test_the_sandbox_holds(source: str) -> None:
    """What it does not grant is undefined and prints nothing, or is an error: as without ours."""
    plain = ImmutableSandboxedEnvironment(extensions=[Generation, loopcontrols])
    plain.globals["raise_exception"] = test_the_sandbox_holds
    try:
        expected: str | None = plain.from_string(source).render(messages=[dict(USER)])
    except (TemplateError, OverflowError):
        expected = None
    messages = dict(USER)
    try:
        got: str | None = render(source, messages)
    except NotKnown:
        got = None
    assert got == expected and messages == USER
    assert got in (None, "")


@pytest.mark.parametrize("source", [
    "{{ messages[0].items() | list }}",
    "{{ messages[0].get('role') }}{{ messages[0].get('x', 'y') }}",
    "{{ messages[0].nothing is defined }}{{ messages[0]['nothing'] is defined }}",
    "{{ messages[0].keys() | list }}{{ messages[0]['keys'] is defined }}",
    "{{ 'a-b'.split('-') }}{{ ' a '.strip() }}{{ 'a'.upper() }}{{ 'a%s' | format('b') }}",
    "{{ '{} {x}'.format('a', x='b') }}",
    "{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.revindex }}"
    "{{ loop.cycle(1, 2) }}{{ loop.changed(m) }}{{ loop.previtem is defined }}"
    "{{ loop.nextitem is defined }}{% endfor %}",
    "{% set n = namespace(a=1) %}{% set n.b = 2 %}{{ n.a }}{{ n.b }}{{ n.c is defined }}",
    "{% macro f(x) %}{{ x.upper() }}{{ caller is defined }}{% endmacro %}{{ f('a') }}",
    "{% for x in [1, 2] %}{% if x == 1 %}{% continue %}{% endif %}{{ 'a'.replace('a', 'b') }}"
    "{% endfor %}",
])  # fmt: skip
def test_the_short_ways_change_nothing(source: str) -> None:
    plain = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    messages = [{"role": "user", "content": "Hi", "keys": 1}]
    assert render(source, *messages) == plain.from_string(source).render(messages=messages)


def test_json_is_pythons() -> None:
    value = {"ü": "<&'\">", "f": [1.0, 1e-07, 2**70], "n": None}
    assert render("{{ x | tojson }}", x=value) == json.dumps(value, ensure_ascii=False)
    assert render("{{ x | tojson(indent=2, sort_keys=true) }}", x=value) == json.dumps(
        value, ensure_ascii=False, indent=2, sort_keys=True)
    assert render("{{ x | tojson(separators=(',', ':')) }}", x=[1, 2]) == "[1,2]"


def test_generation_tags_render_their_body_in_a_scope_of_its_own() -> None:
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}[{{ x }}]{% endgeneration %}{{ x }}"
    assert render(source) == "[2]1"


def test_the_clock() -> None:
    made = template("{{ strftime_now('%d %b %Y') }}")
    assert made.render(Call([USER])) == "15 Jan 2026"
    assert made.reads_clock
    assert not template("{{ x }}").reads_clock


def test_special_tokens_give_way_to_arguments() -> None:
    made = template("{{ bos_token }}", bos_token="<s>")
    assert made.render(Call([USER])) == "<s>"
    assert made.render(Call([USER], arguments={"bos_token": "<x>"})) == "<x>"


@pytest.mark.parametrize("source", ["{% if %}", "{{ x | no_such_filter }}", "{% nonsense %}"])
def test_a_broken_template_says_so(source: str) -> None:
    with pytest.raises(NotKnown, match="does not compile") as caught:
        template(source)
    assert caught.value.why is Why.TEMPLATE


@pytest.mark.parametrize("source", [
    "{{ raise_exception('no') }}", "{{ x.y }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ [][1].x }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ {} | tojson(indent='x', a=1) }}",
    "{{ x | tojson }}",
])  # fmt: skip
def test_a_template_that_raises_refuses(source: str) -> None:
    with pytest.raises(NotKnown, match="raises") as caught:
        render(source)
    assert caught.value.why is Why.REFUSED


# -- content format


@pytest.mark.parametrize(("source", "expected"), [
    ("{{ messages[0].content }}", "string"),
    ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
    ("{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", "openai"),
    ("{% for m in messages %}{% for p in m['content'] | list %}{% endfor %}{% endfor %}", "openai"),
    ("{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}{% endfor %}"
     "{% endfor %}", "openai"),
    ("{% set a = b %}{% set b = messages %}{% set a = b %}{% for m in a %}"
     "{% for p in m.content %}{% endfor %}{% endfor %}", "openai"),
    ("{% for content in x %}{% for p in content %}{% endfor %}{% endfor %}", "openai"),
    ("{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}", "string"),
    ("{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
     "{% for m in messages %}{{ f(m.content) }}{% endfor %}", "openai"),
    ("{% macro f(a, c) %}{% for p in c %}{% endfor %}{% endmacro %}"
     "{% for m in messages %}{{ f(1, c=m['content']) }}{% endfor %}", "openai"),
    ("{% macro f(a, c) %}{% for p in a %}{% endfor %}{% endmacro %}"
     "{% for m in messages %}{{ f(1, c=m['content']) }}{% endfor %}", "string"),
    ("{% for m in messages %}{% for k, v in m.content %}{% endfor %}{% endfor %}", "string"),
    ("{% for a, b in messages %}{% for p in a.content %}{% endfor %}{% endfor %}", "string"),
    ("{% for m in other %}{% for p in m.content %}{% endfor %}{% endfor %}", "string"),
])  # fmt: skip
def test_content_format(source: str, expected: str) -> None:
    assert template(source).content_format == expected


# -- arguments


def test_arguments_are_those_the_template_reads() -> None:
    made = template("{{ a }}{% set b = 1 %}{{ strftime_now is defined }}")
    given = {"a": 1, "b": 2, "c": 3, "documents": [], "padding": True, "max_length": 5}
    assert made.accepted(given) == {"a": 1, "documents": []}
    assert "strftime_now" in made.variables


@pytest.mark.parametrize("name", ["conversation", "messages", "tokenizer", "self"])
def test_arguments_that_are_taken(name: str) -> None:
    with pytest.raises(NotKnown):
        template("{{ messages }}").accepted({name: 1})
    if name == "messages":
        assert template("x").accepted({name: 1}) == {}


# -- open ends


@pytest.mark.parametrize(("content", "source", "expected"), [
    ("1, 2, ", "[{{ messages[-1].content }}]", "[1, 2, "),
    ("1, 2, ", "[{{ messages[-1].content | trim }}]", "[1, 2,"),
    ("", "[{{ messages[-1].content }}]", "["),
    ([{"type": "text", "text": "a"}, {"type": "x"}],
     "[{% for p in messages[-1].content %}{{ p.text }}{% endfor %}]", "[a"),
])  # fmt: skip
def test_a_final_message_stays_open(content: Any, source: str, expected: str) -> None:
    message = {"role": "assistant", "content": content}
    before = json.dumps(message)
    assert template(source).render(Call([message], continue_final_message=True)) == expected
    assert json.dumps(message) == before


@pytest.mark.parametrize(("content", "source"), [
    (None, "{{ messages[-1].content }}"),
    ("a", "{{ messages[-1].role }}"),
    ("a", "{# content #}x"),
    ([], "{{ messages[-1].content }}"),
])  # fmt: skip
def test_nothing_to_go_on_from(content: Any, source: str) -> None:
    with pytest.raises(NotKnown, match="continue_final_message"):
        template(source).render(
            Call([{"role": "assistant", "content": content}], continue_final_message=True))


# -- a second renderer


class Other:
    """Jinja2 without the sandbox, from JSON; `broken` changes what it gives."""

    def __init__(self, source: str, broken: str = "") -> None:
        self._made = Environment(trim_blocks=True, lstrip_blocks=True).from_string(source)
        self._made.globals["raise_exception"] = lambda message: 1 / 0
        self._broken = broken
        self.calls = 0

    def render(self, context_json: bytes) -> str:
        self.calls += 1
        context = orjson.loads(context_json)
        try:
            return self._made.render(context) + self._broken
        except (TemplateError, ArithmeticError, TypeError) as exc:
            raise ValueError(str(exc)) from exc


SOURCE = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ x }}"
          "{% if not messages %}{{ raise_exception('empty') }}{% endif %}")


def test_an_equal_renderer_takes_over() -> None:
    made, other = template(SOURCE), Other(SOURCE)
    assert made.prove(other)
    asked = other.calls
    assert made.render(Call([USER])) == "<user>Hi"
    assert other.calls == asked + 1


def test_an_unequal_renderer_does_not() -> None:
    made, other = template(SOURCE), Other(SOURCE, broken=" ")
    assert not made.prove(other)
    asked = other.calls
    assert made.render(Call([USER])) == "<user>Hi"
    assert other.calls == asked


def test_an_error_of_the_second_renderer_is_judged_by_the_first() -> None:
    source = SOURCE + "{% if x == 'bad' %}{{ raise_exception('bad') }}{% endif %}"
    made = template(source)
    assert made.prove(Other(source))
    with pytest.raises(NotKnown, match="bad"):
        made.render(Call([USER], arguments={"x": "bad"}))


def test_a_renderer_that_never_renders_does_not_take_over() -> None:
    assert not template(SOURCE).prove(Other("{{ raise_exception('no') }}"))


def test_the_native_renderer_takes_over_where_it_is_equal() -> None:
    left = set()
    for line in (TEMPLATES / "templates.jsonl").read_text().splitlines():
        known = json.loads(line)
        source = (TEMPLATES / f"{known['template']}.jinja").read_bytes().decode()
        made = Template(source, ToolSets(), datetime.now, known["special_tokens"])
        try:
            made.prove(_core.Template(made.source))
        except ValueError:
            assert made.fast is None
        if made.fast is None:
            left.add(known["template"])
    # They iterate over None where there are no tools, or name methods of dicts.
    assert left == {"command-r-plus-tool-use", "hermes-3-tool-use"}


def test_the_native_renderer_leaves_odd_numbers_to_jinja2() -> None:
    made = template(SOURCE)
    assert made.prove(_core.Template(SOURCE))
    for number, text in ((1e-07, "1e-07"), (1.0, "1.0"), (0.1 + 0.2, "0.30000000000000004")):
        assert made.render(Call([USER], arguments={"x": number})) == f"<user>Hi{text}"


def test_environments_do_not_share_filters() -> None:
    first, second = (ChatEnvironment(ToolSets(), lambda: NOW) for _ in range(2))
    assert first.filters is not second.filters and first.globals is not second.globals
