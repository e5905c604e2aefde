"""A model's folder to what its prompts depend on: templates, special tokens, who renders.

Files are read as transformers 5 does: `chat_template.jinja` and `additional_chat_templates/` rule
over `tokenizer_config.json`; a multimodal model's processor may have a template of its own, used
where no tools are given. Special tokens that only a tokenizer class knows are not seen here: the
comparison with the engine's own tokens at start finds such a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.vllm.chat.model import EngineOptions, ModelPrompt, Sources
from engines.vllm.chat.outcome import NotKnown, Why

# Who renders chats of these instead of a template, by architecture (tokenizer mode auto).
_ARCHITECTURES = {
    "KimiK3ForConditionalGeneration": "Kimi K3's renderer",
    "DeepseekV32ForCausalLM": "DeepSeek V3.2's renderer",
    "DeepseekV4ForCausalLM": "DeepSeek V4's renderer",
    "DeepseekV4ForConditionalGeneration": "DeepSeek V4's renderer",
    "DeepseekV41ForCausalLM": "DeepSeek V4.1's renderer",
    "InklingForCausalLM": "Inkling's renderer",
    "InklingForConditionalGeneration": "Inkling's renderer",
    "MoonshotKimiaForCausalLM": "Kimi Audio's tokenizer",
}
_MODES = {
    "mistral": "Mistral's tokenizer",
    "cohere": "Cohere's renderer",
    "deepseek_v32": "DeepSeek V3.2's renderer",
    "deepseek_v4": "DeepSeek V4's renderer",
    "deepseek_v41": "DeepSeek V4.1's renderer",
    "kimi_k3": "Kimi K3's renderer",
    "kimi_audio": "Kimi Audio's tokenizer",
    "inkling": "Inkling's renderer",
    "terratorch": "TerraTorch",
}
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
                 "mask_token")
_SENTENCE_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json",
                    "video_preprocessor_config.json")


def load(folder: Path, options: EngineOptions | None = None, mode: str = "auto") -> ModelPrompt:
    """Reads a model's folder. `mode` is vLLM's --tokenizer-mode.

    Raises NotKnown for files that cannot be read or a template that does not compile.
    """
    config, tokenizer = _json(folder / "config.json"), _json(folder / "tokenizer_config.json")
    architectures = config.get("architectures") or []
    return ModelPrompt(
        sources(folder, tokenizer),
        special_tokens(folder, tokenizer),
        options,
        elsewhere=elsewhere(folder, config, mode),
        lower_case=_lower_case(folder),
        pairs=any("SequenceClassification" in str(name) for name in architectures),
    )


def elsewhere(folder: Path, config: Mapping[str, Any], mode: str) -> str:
    """Who renders chats in the engine, or "": a chat template does."""
    if config.get("model_type") == "gpt_oss":
        return "Harmony"
    if mode not in ("auto", "hf"):
        return _MODES.get(mode, f"tokenizer mode {mode}")
    if mode == "auto":
        for architecture in config.get("architectures") or []:
            if architecture in _ARCHITECTURES:
                return _ARCHITECTURES[architecture]
        patterns = ("tekken.json", "tokenizer.model.v*")
        own_tokens = any(path for pattern in patterns for path in folder.glob(pattern))
        if own_tokens and any(folder.glob("consolidated*.safetensors")):
            return _MODES["mistral"]
    return ""


def sources(folder: Path, tokenizer: Mapping[str, Any]) -> Sources:
    """Chat templates of the folder. Raises NotKnown."""
    named: dict[str, str] = {}
    if (folder / "chat_template.jinja").is_file():
        named["default"] = _text(folder / "chat_template.jinja")
    for path in sorted(folder.glob("additional_chat_templates/*.jinja")):
        named[path.name.removesuffix(".jinja")] = _text(path)
    files = dict(named)
    if not named:
        named = _templates(tokenizer.get("chat_template"))
    return Sources(named, _processor_template(folder, tokenizer, files))


def _templates(given: Any) -> dict[str, str]:
    """`chat_template` of a configuration: a string, or a list of named ones."""
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list):
        given = {t.get("name"): t.get("template") for t in given if isinstance(t, dict)}
    if isinstance(given, dict):
        return {str(name): text for name, text in given.items() if isinstance(text, str)}
    return {}


def _processor_template(
    folder: Path, tokenizer: Mapping[str, Any], files: Mapping[str, str]
) -> str | None:
    """The template of the model's processor, where it has one of its own."""
    configs = [_json(folder / name) for name in _PROCESSOR_FILES]
    if not any(configs) and "processor_class" not in tokenizer:
        return None
    given = configs[0].get("chat_template")
    legacy = _json(folder / "chat_template.json").get("chat_template")
    for template in (given, legacy, files.get("default")):
        if isinstance(template, str):
            return template
    return None


def special_tokens(folder: Path, tokenizer: Mapping[str, Any]) -> dict[str, str]:
    """Named special tokens as a template sees them."""
    given = dict(tokenizer)
    if "added_tokens_decoder" not in tokenizer:
        given |= _json(folder / "special_tokens_map.json")
    extra = given.get("extra_special_tokens")
    names = [*_NAMED_TOKENS, *(name for name in given if name.endswith("_token"))]
    found = {name: text for name in names if (text := _token(given.get(name))) is not None}
    if isinstance(extra, dict):
        found |= {name: text for name in extra if (text := _token(extra[name])) is not None}
    return found


def _token(given: Any) -> str | None:
    if isinstance(given, dict):
        given = given.get("content")
    return given if isinstance(given, str) else None


def _lower_case(folder: Path) -> bool:
    """Whether the text of pooling requests is lowered: said by sentence-transformers' file."""
    for name in _SENTENCE_CONFIGS:
        config = _json(folder / name)
        if config:
            return "max_seq_length" in config and bool(config.get("do_lower_case"))
    return False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise NotKnown(Why.TEMPLATE, f"{path.name}: {exc}") from exc


def _json(path: Path) -> dict[str, Any]:
    """An object in a file; {} where there is no such file. Raises NotKnown."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise NotKnown(Why.TEMPLATE, f"{path.name}: {exc}") from exc
    return read if isinstance(read, dict) else {}
