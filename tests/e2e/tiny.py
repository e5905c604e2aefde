"""Writes a very small model that vLLM can serve: `tiny.py TOKENIZER_DIR OUT_DIR`.

Random weights, so its answers are nonsense, but nonsense that hangs on every token of the prompt:
KV blocks of another prompt make another answer. It takes a tenth of the time of a real small model
and 1 KiB of KV cache per token. Tokenizer and chat template are those of TOKENIZER_DIR. Runs with
the Python of the environment that env.sh makes, and needs no network.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(tokenizer_dir: Path, out: Path) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_dir))
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.3,  # wide: the best token is far ahead of the second
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: tiny.py TOKENIZER_DIR OUT_DIR")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
