"""The reference page and the full example are what the table says, and so is the gateway."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.conf import example, load, load_text, read, reference
from gateway.conf.directives import TABLE
from gateway.conf.model import Place
from gateway.conf.spec import Directive
from gateway.conf.variables import VARIABLES

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {
    "KVGATE_ENGINE_KEY": "k1",
    "KVGATE_ADMIN_TOKEN": "t1",
    "KVGATE_TRACE_SECRET": "s1",
}
FULL = example.text()
SWITCHABLE = [i for i, line in enumerate(FULL.splitlines()) if re.match(r" *#\S", line)]


def without_places(value: Any) -> Any:
    """A configuration for comparison: where a thing was written does not matter."""
    if isinstance(value, Place):
        return None
    if dataclasses.is_dataclass(value):
        names = (f.name for f in dataclasses.fields(value))
        return {name: without_places(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {key: without_places(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(without_places(item) for item in value)
    return value


@pytest.mark.parametrize(
    ("file", "text"),
    [("docs/directives.md", reference.page()), ("examples/full.conf", FULL)],
)
def test_generated_file_is_what_the_table_gives(file: str, text: str) -> None:
    assert (ROOT / file).read_text() == text, "make it again: see gateway/conf/reference.py"


EXAMPLES = [path for path in (ROOT / "examples").glob("*.conf") if path.name != "kvbm.conf"]


@pytest.mark.parametrize("path", sorted(EXAMPLES), ids=lambda p: p.name)
def test_example_is_right_without_a_warning(path: Path) -> None:
    assert read(str(path)).warnings == ()


def test_minimal_example_is_two_engines_in_six_lines() -> None:
    path = ROOT / "examples" / "minimal.conf"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 6
    assert len(load(str(path)).upstreams["engines"].engines) == 2


def switched_on(line: int) -> str:
    lines = FULL.splitlines()
    lines[line] = lines[line].replace("#", "", 1)
    return "\n".join(lines)


@pytest.mark.parametrize("line", SWITCHABLE, ids=lambda i: FULL.splitlines()[i].strip())
def test_each_commented_directive_can_be_switched_on(line: int) -> None:
    name, _, rest = FULL.splitlines()[line].strip(" #;").partition(" ")
    config = load_text(switched_on(line), environment=ENVIRONMENT)
    default = any(d.default == rest for d in TABLE.named(name)) and rest
    if default:
        plain = load_text(FULL, environment=ENVIRONMENT)
        assert without_places(config) == without_places(plain), "the default is not the default"


def test_full_example_has_every_directive() -> None:
    words = {word.strip("#;") for line in FULL.splitlines() for word in line.split()}
    assert {directive.name for directive in TABLE.directives} <= words


ZONES = (
    "limit_conn_zone $server_name zone=per_client:1m;"
    "limit_req_zone $server_name zone=rate_per_client:1m rate=1r/s;"
    "policy_header X-KVGate-Session;"
)
WRAP = {
    "main": "{0}\nhttp {{ server {{ listen 1; return 404; }} }}",
    "events": "events {{ {0} }} http {{ server {{ listen 1; return 404; }} }}",
    "http": "http {{ {0}\n server {{ listen 1; return 404; }} }}",
    "upstream": "http {{ upstream u {{ server a:1; {0} }} server {{ listen 1; return 404; }} }}",
    "server": "http {{ upstream llama {{ server a:1; }} server {{ {0}\n {1} }} }}",
    "location": "http {{ upstream llama {{ server a:1; }} "
    "server {{ listen unix:/s; location / {{ {0}\n {1} }} }} }}",
}


ROLES = (
    "server a:1 role=both; server b:1 role=both; kv_aware; disaggregate auto;"
    " slo ttft=2s tpot=50ms;"
)


def wrapped(directive: Directive, context: str) -> str:
    extra = ""
    if context == "location" and directive.name not in ("proxy_pass", "return", "admin", "metrics"):
        extra = "return 404;"
    if context == "server":
        extra = "return 404;" if directive.name != "return" else ""
        extra += "" if directive.name == "listen" else "listen 1;"
    text = WRAP[context].format(directive.example, extra)
    if not directive.name.endswith("_zone"):
        text = text.replace("http {", f"http {{ {ZONES} ", 1)
    if directive.name == "http":
        text = directive.example
    if directive.name == "disaggregate":
        text = text.replace("server a:1;", "server a:1; server b:1; kv_aware;")
    if directive.name == "roles":
        text = text.replace("server a:1;", ROLES, 1)
    if directive.name == "server" and context == "http":
        text = text.replace("http {", "http { upstream llama { server a:1; } ", 1)
    return text.replace("listen 443 ssl", "listen 443")


@pytest.mark.parametrize(
    ("directive", "context"),
    [(d, c) for d in TABLE.directives for c in d.contexts],
    ids=lambda v: v.name if isinstance(v, Directive) else v,
)
def test_example_of_each_directive_is_right_in_each_of_its_blocks(
    directive: Directive, context: str
) -> None:
    load_text(wrapped(directive, context), environment=ENVIRONMENT)


@pytest.mark.parametrize("directive", TABLE.directives, ids=lambda d: d.name)
def test_entry_is_complete(directive: Directive) -> None:
    assert directive.doc.endswith(".")
    assert directive.example
    assert all(TABLE.named(name) for name in directive.see), directive.see
    assert directive.name not in TABLE.foreign


def test_variables_are_documented_once() -> None:
    names = [variable.name for variable in VARIABLES]
    assert len(names) == len(set(names))
    assert all(variable.doc for variable in VARIABLES)
