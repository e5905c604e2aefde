"""Asking `read` for one prompt, of models whose template writes down all it is given."""

from __future__ import annotations

import json
from typing import Any

from engines.vllm.chat import ModelPrompt, Sources, Texts, Unknown, Why, read

ALL = (
    "{{ messages|tojson }}|{{ (tools if tools is defined else none)|tojson }}|"
    "{{ add_generation_prompt|tojson }}|{{ enable_thinking is defined and enable_thinking }}"
)
PARTS = ALL + "{% for m in messages %}{% for part in m.content %}{% endfor %}{% endfor %}"
PLAIN = ModelPrompt(Sources.of(ALL))
IN_PARTS = ModelPrompt(Sources.of(PARTS))
USER = {"role": "user", "content": "Hi"}

Body = dict[str, Any]


def text_of(path: str, body: Body, model: ModelPrompt = PLAIN) -> str:
    answer = read(path, json.dumps(body).encode(), model)
    assert isinstance(answer, Texts), answer
    assert len(answer.texts) == 1
    return answer.texts[0]


def messages_of(path: str, body: Body, model: ModelPrompt = PLAIN) -> Any:
    return json.loads(text_of(path, body, model).partition("|")[0])


def why(path: str, body: Body | bytes, model: ModelPrompt = PLAIN) -> Why:
    answer = read(path, body if isinstance(body, bytes) else json.dumps(body).encode(), model)
    assert isinstance(answer, Unknown), answer
    assert answer.reason
    return answer.why
