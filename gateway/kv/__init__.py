"""Prompts and caches: what a request's tokens are, and what engines are believed to hold."""
