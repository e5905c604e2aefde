"""A workload report as one page: text, tables and plots; nothing is fetched from anywhere."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment

from gateway import charts
from gateway.planner.advice import advice
from gateway.planner.counted import counted
from gateway.planner.lengths import Lengths
from gateway.planner.workload import Workload


def as_html(found: Workload) -> str:
    template = files("gateway.planner").joinpath("workload.html").read_text(encoding="utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return page.from_string(template).render(
        found=found,
        counted=counted,
        advice=advice(found),
        plots=_plots(found),
        script=charts.script(),
        style=charts.style(),
    )


def _plots(found: Workload) -> list[dict[str, object]]:
    """What the page draws: columns for uPlot, the first being x."""
    windows = found.arrivals.windows
    plots: list[dict[str, object]] = [
        {
            "title": "Requests per second over time",
            "x": "seconds since the first request",
            "columns": [[w.start_s for w in windows], [w.rate for w in windows]],
            "names": ["requests/s"],
            "log": False,
            "steps": True,
        },
        _shares("Prompt tokens: share of requests that have no more", found.input),
        _shares("Answer tokens: share of requests that have no more", found.output),
    ]
    if found.prefixes:
        curve = found.prefixes.curve
        plots.append(
            {
                "title": "Hit rate of a cache by its size",
                "x": "KV tokens that all engines and tiers hold together",
                "columns": [
                    list(curve),
                    list(curve.values()),
                    [found.prefixes.endless_hit] * len(curve),
                ],
                "names": ["hit rate", "endless cache"],
                "log": True,
                "steps": False,
            }
        )
    return plots


def _shares(title: str, of: Lengths) -> dict[str, object]:
    at = {value: float(name[1:]) / 100 for name, value in of.at.items()}  # equal ones: the last
    return {
        "title": title,
        "x": "tokens",
        "columns": [list(at), list(at.values())],
        "names": ["share"],
        "log": True,
        "steps": False,
    }
