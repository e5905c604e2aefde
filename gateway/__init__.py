"""kvgate: one HTTP gateway in front of stock vLLM servers."""

__version__ = "0.1.0"
