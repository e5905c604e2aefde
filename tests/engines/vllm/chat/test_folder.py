"""A model's folder: which template, which special tokens, who renders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.vllm.chat import EngineOptions, NotKnown, Texts, load, read

BODY = b'{"messages": [{"role": "user", "content": "Hi"}]}'
WITH_TOOLS = json.dumps({
    "messages": [{"role": "user", "content": "Hi"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
}).encode()


def put(folder: Path, **files: Any) -> Path:
    """Files by name, `__` for the dot: text as it is, other values as JSON."""
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def text(folder: Path, body: bytes = BODY, **options: Any) -> str:
    answer = read("/v1/chat/completions", body, load(folder, EngineOptions(**options)))
    assert isinstance(answer, Texts), answer
    return answer.texts[0]


def test_a_template_file_rules_over_the_configuration(tmp_path: Path) -> None:
    put(tmp_path, tokenizer_config__json={"chat_template": "config"})
    assert text(tmp_path) == "config"
    put(tmp_path, chat_template__jinja="file")
    assert text(tmp_path) == "file"
    assert text(tmp_path, chat_template="option") == "option"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"},
             {"name": "rag", "template": "rag"}]
    put(tmp_path, tokenizer_config__json={"chat_template": named})
    assert text(tmp_path) == "plain"
    assert text(tmp_path, WITH_TOOLS) == "tools"
    assert text(tmp_path, WITH_TOOLS, chat_template="rag") == "rag"
    (tmp_path / "additional_chat_templates").mkdir()
    put(tmp_path / "additional_chat_templates", tool_use__jinja="tools file")
    put(tmp_path, chat_template__jinja="file")
    assert text(tmp_path) == "file"
    assert text(tmp_path, WITH_TOOLS) == "tools file"


def test_a_processors_template_rules_without_tools(tmp_path: Path) -> None:
    put(tmp_path, tokenizer_config__json={"chat_template": "tokenizer"},
        chat_template__json={"chat_template": "processor"})
    assert text(tmp_path) == "tokenizer"
    put(tmp_path, preprocessor_config__json={"processor_class": "P"})
    assert text(tmp_path) == "processor"
    assert text(tmp_path, WITH_TOOLS) == "tokenizer"


def test_special_tokens(tmp_path: Path) -> None:
    source = "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ pad_token }}{{ extra_token }}"
    put(tmp_path, tokenizer_config__json={
        "chat_template": source, "bos_token": "<s>", "pad_token": None, "image_token": "<i>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False},
        "extra_special_tokens": {"extra_token": "<x>"}, "add_bos_token": True})
    assert text(tmp_path) == "<s></s><i><x>"
    put(tmp_path, special_tokens_map__json={"bos_token": {"content": "<bos>"}, "pad_token": "<p>"})
    assert text(tmp_path) == "<bos></s><i><p><x>"


def test_newlines_of_a_file_are_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"a\r\n{% if true %}\r\nb{% endif %}\r\n")
    assert text(tmp_path) == "a\nb"


@pytest.mark.parametrize(("config", "files", "mode", "expected"), [
    ({"model_type": "gpt_oss"}, (), "auto", "Harmony"),
    ({"architectures": ["DeepseekV32ForCausalLM"]}, (), "auto", "DeepSeek V3.2"),
    ({"architectures": ["DeepseekV4ForCausalLM"]}, (), "auto", "DeepSeek V4"),
    ({"architectures": ["KimiK3ForConditionalGeneration"]}, (), "auto", "Kimi K3"),
    ({"architectures": ["KimiK3ForConditionalGeneration"]}, (), "hf", ""),
    ({"architectures": ["CohereForCausalLM"]}, (), "auto", ""),
    ({"architectures": ["CohereForCausalLM"]}, (), "cohere", "Cohere"),
    ({"architectures": ["LlamaForCausalLM"]}, (), "auto", ""),
    ({}, ("tekken.json", "consolidated.safetensors"), "auto", "Mistral"),
    ({}, ("tokenizer.model.v3", "consolidated-1.safetensors"), "auto", "Mistral"),
    ({}, ("tekken.json", "model.safetensors"), "auto", ""),
    ({}, ("tekken.json", "consolidated.safetensors"), "hf", ""),
    ({}, (), "mistral", "Mistral"),
    ({}, (), "of_my_own", "of_my_own"),
])  # fmt: skip
def test_who_renders(
    tmp_path: Path, config: Any, files: tuple[str, ...], mode: str, expected: str
) -> None:
    put(tmp_path, config__json=config, chat_template__jinja="x")
    for name in files:
        (tmp_path / name).touch()
    found = load(tmp_path, mode=mode).elsewhere
    assert expected in found and bool(found) == bool(expected)


def test_pooling_models(tmp_path: Path) -> None:
    put(tmp_path, config__json={"architectures": ["BertForSequenceClassification"]},
        sentence_bert_config__json={"max_seq_length": 512, "do_lower_case": True})
    model = load(tmp_path)
    assert model.pairs and model.lower_case
    put(tmp_path, sentence_bert_config__json={"do_lower_case": True})
    assert not load(tmp_path).lower_case


@pytest.mark.parametrize("name", ["config__json", "tokenizer_config__json"])
def test_a_file_that_is_not_json(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotKnown, match=name.replace("__", ".")):
        load(put(tmp_path, **{name: "{"}))


def test_an_empty_folder_has_no_template(tmp_path: Path) -> None:
    assert load(tmp_path).templates() == ()
