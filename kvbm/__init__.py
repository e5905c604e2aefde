"""kvbm: keeps KV-cache blocks of vLLM in host memory, on disk and in object storage, checked."""
