"""Prompts as read here and as stock vLLM's own code makes them: the same requests, the same texts.

Templates are real ones, and four that write down all they are given, so that nothing is hidden by a
template that does not look.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from e2e.fleet import KIND, VLLM, WEIGHTS
from harness.prompt_requests import requests

from engines.vllm.chat import (
    EngineOptions,
    Ids,
    ModelPrompt,
    PromptInput,
    Texts,
    Unknown,
    Why,
    load,
    read,
)

pytestmark = pytest.mark.skipif(KIND == "sim", reason="compares with stock vLLM")

HERE = Path(__file__).resolve().parent
TEMPLATES = HERE.parent / "vectors" / "chat_templates"
ORACLE_S = 600.0

_ALL = """\
{{ messages|tojson }}|{{ (tools if tools is defined else none)|tojson }}|
{{ (documents if documents is defined else none)|tojson }}|{{ add_generation_prompt|tojson }}|
{% for x in [enable_thinking, thinking, reasoning_effort, date_string, bos_token, eos_token] %}
{{ 'none' if x is not defined else x|tojson }}{% endfor %}
"""
_LOOPS = "{% for m in messages %}{% for part in m.content %}{% endfor %}{% endfor %}"
_DEVELOPER = "{# 'developer' #}"
WRITES_ALL = (_ALL, _ALL + _LOOPS, _ALL + _DEVELOPER, _ALL + _LOOPS + _DEVELOPER)

Case = dict[str, str]


def cases() -> list[Case]:
    real = sorted(path.read_bytes().decode() for path in TEMPLATES.glob("*.jinja"))
    drawn = [(source, 600, seed) for seed, source in enumerate(WRITES_ALL)]
    drawn += [(source, 60, 100 + seed) for seed, source in enumerate(real)]
    return [
        {"template": source, "path": path, "body": body.decode()}
        for source, count, seed in drawn
        for path, body in requests(seed, count, oddity=0.03)
    ]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("oracle")
    asked = cases()
    (folder / "in").write_text("".join(json.dumps(case) + "\n" for case in asked))
    with (folder / "in").open() as given, (folder / "out").open("wb") as out, \
            (folder / "err").open("wb") as err:
        done = subprocess.run(
            [VLLM.with_name("python"), HERE / "render_oracle.py", WEIGHTS],
            stdin=given, stdout=out, stderr=err, timeout=ORACLE_S, check=False,
        )
    assert done.returncode == 0, (folder / "err").read_text()[-3000:]
    told = [json.loads(line) for line in (folder / "out").read_bytes().splitlines()]
    assert len(told) == len(asked)
    return list(zip(asked, told, strict=True))


def agrees(ours: PromptInput, theirs: dict[str, Any]) -> bool:
    if isinstance(ours, Texts):
        return (list(ours.texts), ours.add_special_tokens) == (
            theirs.get("texts"), theirs.get("special"))
    return isinstance(ours, Ids) and list(ours.prompts) == theirs.get("ids")


def test_texts_are_those_of_vllm(answers: list[tuple[Case, dict[str, Any]]]) -> None:
    models: dict[str, ModelPrompt] = {}
    counts: Counter[str] = Counter()
    wrong = []
    for case, theirs in answers:
        source = case["template"]
        if source not in models:
            models[source] = load(WEIGHTS, EngineOptions(chat_template=source))
        ours = read(case["path"], case["body"].encode(), models[source])
        if "error" in theirs:
            counts["refused there"] += 1
        elif isinstance(ours, Unknown):
            counts["unknown here"] += 1
            if ours.why is Why.REFUSED:
                wrong.append((ours.reason, case["path"], case["body"]))
        elif agrees(ours, theirs):
            counts["equal"] += 1
        else:
            wrong.append((f"{ours} {theirs}", case["path"], case["body"]))
    assert not wrong, f"{len(wrong)} of {len(answers)}: {wrong[:3]}"
    # The comparison compares: most requests are answered on both sides.
    assert counts["equal"] > len(answers) / 2, counts
    assert counts["unknown here"] < counts["equal"] / 20, counts
