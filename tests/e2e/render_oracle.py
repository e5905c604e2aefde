"""What stock vLLM makes of a request's prompt: run by the Python of its own environment.

    render_oracle.py MODEL_FOLDER < LINES

A line in: {"template": source, "path": path, "body": text of the request}. A line out:
{"texts": [...], "special": bool}, {"ids": [...]}, or {"error": status or why}. The requests go
through vLLM's render application, so its own parsing, validation and rendering are what answers;
only the last step, from text to tokens, is watched to see the text.
"""

from __future__ import annotations

import asyncio
import json
import sys
from types import SimpleNamespace
from typing import Any

import httpx
from pydantic import TypeAdapter
from vllm import AsyncEngineArgs, PoolingParams
from vllm.config import VllmConfig
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.render.app_state import init_render_app_state
from vllm.entrypoints.pooling.base.io_processor import PoolingIOProcessor
from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
from vllm.entrypoints.pooling.embed.io_processor import EmbedIOProcessor
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
from vllm.entrypoints.pooling.scoring.io_processor import BiEncoderIOProcessor
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.renderers.chat_utils import ChatTemplateConfig
from vllm.utils.argparse_utils import FlexibleArgumentParser

RENDER = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
POOLING = {
    "/v1/embeddings": EmbeddingRequest, "/pooling": PoolingRequest,
    "/classify": ClassificationRequest, "/score": ScoreRequest, "/v1/score": ScoreRequest,
    "/rerank": RerankRequest,
}  # fmt: skip
FLAGS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]


class Oracle:
    def __init__(self, app: Any) -> None:
        self._state = app.state
        self._seen: list[tuple[str, bool]] = []
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://vllm")
        self._watch()
        parts = (app.state.vllm_config, app.state.online_renderer.renderer, ChatTemplateConfig())
        # An embedding model's own preprocessing; the model at hand is none.
        self._pooling = object.__new__(EmbedIOProcessor)
        PoolingIOProcessor.__init__(self._pooling, *parts)
        self._scoring = BiEncoderIOProcessor(*parts)

    def _watch(self) -> None:
        renderer = self._state.online_renderer.renderer
        whole = renderer._tokenize_prompt_async
        seen = self._seen

        async def tokenize(prompt: Any, params: Any) -> Any:
            seen.append((prompt["prompt"], params.add_special_tokens))
            return await whole(prompt, params)

        renderer._tokenize_prompt_async = tokenize
        at_once = renderer._tokenize_prompt

        def tokenize_now(prompt: Any, params: Any) -> Any:
            seen.append((prompt["prompt"], params.add_special_tokens))
            return at_once(prompt, params)

        renderer._tokenize_prompt = tokenize_now

    def take(self, template: str) -> None:
        """As if the server had been started with --chat-template."""
        state = self._state
        state.online_renderer.chat_template = template
        state.serving_tokenization.chat_template = template
        self._pooling.chat_template = template
        handler = state.serving_render
        handler._merge_inline_system = AnthropicServingMessages._should_merge_inline_system(
            state.online_renderer
        )
        messages = object.__new__(AnthropicServingMessages)
        messages.online_renderer = state.online_renderer
        messages.model_config = state.online_renderer.model_config
        messages._disabled_thinking_effort = None
        merge = handler._merge_inline_system

        async def render_messages(request: Any, raw_request: Any = None) -> Any:
            effort = "none"
            if request.thinking is not None and request.thinking.type == "disabled":
                effort = await messages._get_disabled_thinking_effort()
                self._seen.clear()
            chat = messages.to_chat_completion_request(
                request, merge_inline_system=merge, disabled_thinking_effort=effort
            )
            return await handler.render_chat_request(chat, raw_request)

        handler.render_messages_request = render_messages

    async def answer(self, path: str, body: str) -> dict[str, Any]:
        self._seen.clear()
        if path in POOLING:
            return self.pooling(path, body)
        url = path + "/render" if path in RENDER else path
        reply = await self._http.post(
            url, content=body.encode(), headers={"content-type": "application/json"}
        )
        if reply.status_code != 200:
            return {"error": reply.status_code, "why": reply.text[:300]}
        if self._seen:
            return {"texts": [text for text, _ in self._seen], "special": self._seen[0][1]}
        read = reply.json()
        items = read if isinstance(read, list) else [read]
        return {"ids": [item["token_ids" if "token_ids" in item else "tokens"] for item in items]}


    def pooling(self, path: str, body: str) -> dict[str, Any]:
        processor = self._scoring if path.endswith(("score", "rerank")) else self._pooling
        try:
            request = TypeAdapter(POOLING[path]).validate_python(json.loads(body))
            context = SimpleNamespace(
                request=request, pooling_params=PoolingParams(), lora_request=None,
                priorities=None, prompt_extras=None,
            )
            asked = processor.get_request_factory_online(context)
            prompts = [processor.render(params)["prompts"] for params in asked]
        except BaseException as exc:  # a panic of pydantic's lazy lists is no Exception
            if isinstance(exc, KeyboardInterrupt | SystemExit):
                raise
            return {"error": 400, "why": f"{exc!r}"[:300]}
        if self._seen:
            return {"texts": [text for text, _ in self._seen], "special": self._seen[0][1]}
        return {"ids": [prompt["prompt_token_ids"] for prompt in prompts]}


async def main(folder: str) -> None:
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(["--model", folder, "--served-model-name", "m", *FLAGS])
    engine = AsyncEngineArgs.from_cli_args(args)
    config = VllmConfig(model_config=engine.create_model_config())
    app = build_app(args, ("render",))
    await init_render_app_state(config, app.state, args)
    oracle = Oracle(app)
    template = None
    out = sys.__stdout__
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["template"] != template:
            template = asked["template"]
            oracle.take(template)
        answer = await oracle.answer(asked["path"], asked["body"])
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
