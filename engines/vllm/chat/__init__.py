"""From an OpenAI request to the text or token ids stock vLLM 0.32 makes of it, exactly.

`folder.load` reads what a model's prompts depend on, `request.read` gives a request's prompt. What
cannot be known here comes back as `Unknown`, with a reason: images, models that vLLM renders by
other code, conversations that lie in an engine's memory. Nothing is guessed.
"""

from engines.vllm.chat.completion_input import read_completion
from engines.vllm.chat.folder import load
from engines.vllm.chat.model import EngineOptions, ModelPrompt, Sources
from engines.vllm.chat.outcome import Ids, NotKnown, PromptInput, Texts, Unknown, Why
from engines.vllm.chat.request import read
from engines.vllm.chat.template import FastTemplate

__all__ = [
    "EngineOptions", "FastTemplate", "Ids", "ModelPrompt", "NotKnown", "PromptInput", "Sources",
    "Texts", "Unknown", "Why", "load", "read", "read_completion",
]  # fmt: skip
