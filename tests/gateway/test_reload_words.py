"""What a reload says it changed."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from gateway.conf.load import load_text
from gateway.conf.model import EngineLine
from gateway.process.reload import changes

TEXT = """http {{
    upstream a {{ server 127.0.0.1:1 {more}; }}
    server {{ listen 127.0.0.1:2; location / {{ proxy_pass http://a; }} }}
}}"""
OTHER: dict[str, object] = {"role": "prefill", "fail_timeout_s": 3.0}


def said(old: str, new: str) -> list[str]:
    return changes(load_text(TEXT.format(more=old)), load_text(TEXT.format(more=new)))


def test_another_kvbm_is_a_change_of_its_engine() -> None:
    assert said("", "kvbm=tcp://127.0.0.1:5") == ["`a`: engine 127.0.0.1:1 changed"]
    assert said("", "weight=3") == ["`a`: engine 127.0.0.1:1 weight 1 -> 3"]
    assert said("", "") == []


def test_a_line_that_moves_in_its_file_is_no_change() -> None:
    old, new = load_text(TEXT.format(more="")), load_text("\n\n" + TEXT.format(more=""))
    assert changes(old, new) == []


NAMES = [f.name for f in fields(EngineLine) if f.name not in ("address", "place")]


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_line_says_is_a_change(name: str) -> None:
    config = load_text(TEXT.format(more=""))
    [line] = config.upstreams["a"].engines
    value = getattr(line, name)
    more = OTHER.get(name, not value if isinstance(value, bool) else value + type(value)(1))
    changed = replace(line, **{name: more})
    upstream = replace(config.upstreams["a"], engines=(changed,))
    [sentence] = changes(config, replace(config, upstreams={"a": upstream}))
    assert "engine 127.0.0.1:1" in sentence
