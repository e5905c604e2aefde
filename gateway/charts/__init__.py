"""The chart library of pages we write: uPlot 1.6.32 (MIT), as released, inlined into a page.

A page that holds it asks no network for anything.
"""

from __future__ import annotations

from importlib.resources import files


def script() -> str:
    return files(__name__).joinpath("uPlot.iife.min.js").read_text(encoding="utf-8")


def style() -> str:
    return files(__name__).joinpath("uPlot.min.css").read_text(encoding="utf-8")
