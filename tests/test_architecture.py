"""Import arrows, read from the sources: who may know whom.

Imports under TYPE_CHECKING do not count: they name types and run nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = ("gateway", "native", "engines", "kvbm")

# What each package may import of ours, itself apart.
ARROWS = {
    "native": (),
    "engines": ("native",),
    "kvbm": ("native", "gateway.conf", "gateway.callers", "gateway.log_lines"),
    "gateway": ("native", "engines"),
    "gateway.conf": (),
}

PHASES = ("admit", "route", "prompt", "pick", "prefill", "decode", "record")

# Modules of gateway/ from the ground up: each imports only from lines above its own or from its own
# line (cycles and PHASES are looked at apart).
RANKS = (
    (
        "__init__", "conf", "charts", "planner", "load", "error_base", "paths", "forms", "ids",
        "detached",
        "site.addresses", "kv.fingerprints", "kv.pending", "kv.tally", "kv.sources", "kv.trust",
        "kv.board", "kv.facts", "disagg.transfer", "callers", "log_lines", "plan_report",
    ),
    ("refusals", "kv.sequence"),
    ("errors",),
    ("logs", "fleet.marks", "fleet.ledger", "process.channel", "process.delay", "kv.feed"),
    ("disagg.pairs", "trace_log"),
    ("kv.events", "kv.stores", "kv.shown"),
    (
        "kv.routed", "context", "site.values", "kv.values", "site.sites", "retry", "relay_faults",
        "stats", "slo", "spent", "kv.counts", "kv.event_counts", "disagg.counts", "fleet.responses",
        "fleet.upstream",
    ),
    (
        "over", "admin_access", "site.peer", "site.variables", "site.maps", "site.access",
        "kv.vocabulary", "kv.engine_tokens",
    ),
    ("kv.probes", "kv.token_source", "replies", "dashboard.figures"),
    ("kv.tokens",),
    ("site.made", "site.limits", "site.policy", "site.secure"),
    (
        "process.orders", "process.memory", "process.reload", "fleet.upstreams",
        "process.acceptor", "process.identity",
    ),
    ("fleet.engine",),
    ("fleet.team",),
    ("fleet.engines", "fleet.catalog", "process.sockets", "process.handover", "process.link"),
    (
        "site.plan", "site.turn", "site.returned", "fleet.health", "kv.discovery", "fleet.models",
        "metrics", "route_metrics", "status", "site.tls", "disagg.roles", "dashboard.snapshot",
        "dashboard.receipts",
    ),
    (
        "process.pulse", "process.server", "process.metrics", "kv.metrics", "kv.event_metrics",
        "disagg.metrics", "kv.decisions", "kv.caches", "kv.inquiry", "disagg.elastic",
        "dashboard.readings", "dashboard.watch",
    ),
    ("site.fronts",),
    ("legs",),
    PHASES,
    ("verdict", "ending", "disagg.release", "disagg.alive", "disagg.again"),
    ("disagg.fetch",),
    ("disagg.two_legs", "disagg.push"),
    ("exchange", "explain"),
    ("pipeline",),
    ("dashboard.pages",),
    ("api",),
    ("app",),
    ("process.worker", "process.change"),
    ("process.monitor", "process.children"),
    ("process.master",),
    ("cli.signals", "cli.companion", "cli.amounts"),
    ("cli.admin_client", "cli.load_options"),
    ("cli.live",),
    ("cli.upstream", "cli.explain", "cli.roles", "cli.simulate", "cli.calibrate", "cli.plan_size",
     "cli.plan_fit", "cli.workload", "cli.load"),
    ("cli.program", "cli.demo", "cli.demo_chat", "cli.reference", "__main__"),
)  # fmt: skip

# The same of kvbm/.
KVBM_RANKS = (
    ("__init__", "conf", "paths", "figures"),
    ("logs", "shown", "engine_config", "status", "metrics", "reload", "access", "listen"),
    ("asking", "tiers", "remote", "events"),
    ("losses", "troubles"),
    ("drops", "verifying"),
    ("admin", "publisher", "doctor"),
    ("daemon",),
    ("cli",),
    ("cli_ask", "cli_doctor"),
    ("reference", "__main__"),
)

# Decisions take plain data and the time as arguments.
PURE = (
    "route", "pick", "site.sites", "paths", "fleet.marks", "retry", "fleet.catalog", "forms",
    "site.maps", "site.access", "relay_faults", "site.policy", "process.reload",
    "fleet.upstreams", "kv.sequence", "kv.pending", "kv.fingerprints", "kv.sources", "kv.trust",
    "disagg.transfer", "disagg.pairs", "callers",
)  # fmt: skip
IMPURE_IMPORTS = {"asyncio", "time", "random", "socket", "os", "httpx", "threading", "datetime"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package.replace(".", "/")).rglob("*.py"))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(module, line) of every import that runs, function bodies included."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                folder = path.parents[node.level - 1].relative_to(ROOT).parts
                base = ".".join((*folder, *([base] if base else [])))
            # `from gateway import errors` imports gateway.errors.
            for alias in node.names:
                deeper = ROOT.joinpath(*base.split("."), f"{alias.name}.py")
                folder = ROOT.joinpath(*base.split("."), alias.name)
                found = base.split(".")[0] in OURS and (deeper.exists() or folder.is_dir())
                yield f"{base}.{alias.name}" if found else base, node.lineno
        if is_type_checking(node):
            waiting.extend(node.orelse)  # type: ignore[attr-defined]
        else:
            waiting.extend(ast.iter_child_nodes(node))


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def package_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return "gateway.conf" if relative.parts[:2] == ("gateway", "conf") else relative.parts[0]


@pytest.mark.parametrize("package", ["native", "engines", "kvbm", "gateway"])
def test_packages_know_only_what_is_below_them(package: str) -> None:
    bad = []
    for path in sources(package):
        own = package_of(path)
        allowed = (own, *ARROWS[own]) if own != "gateway" else ("gateway", *ARROWS["gateway"])
        for module, line in imports(path):
            if module.split(".")[0] in OURS and not any(within(module, a) for a in allowed):
                bad.append(f"{path.relative_to(ROOT)}:{line}: {own} imports {module}")
    assert not bad, "\n".join(bad)


def gateway_name(path: Path) -> str:
    """`disagg.fetch` of gateway/disagg/fetch.py, as RANKS has it; a package's file is its name."""
    parts = path.relative_to(ROOT / "gateway").with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


# Packages with tables and rules of their own, seen from the others as one module.
WHOLE = ("conf", "planner", "charts", "load")
GATEWAY = {
    gateway_name(path): path
    for path in (ROOT / "gateway").rglob("*.py")
    if path.relative_to(ROOT / "gateway").parts[0] not in WHOLE
}


def gateway_module(module: str) -> str | None:
    """What RANKS calls a module of ours, None for any other."""
    first, *rest = module.split(".")
    if first != "gateway" or not rest:
        return None
    if rest[0] in WHOLE:
        return rest[0]
    return ".".join(rest[:2]) if ".".join(rest[:2]) in GATEWAY else rest[0]


# The packages themselves: their files hold a docstring and nothing else.
PACKAGES = {path.name for path in (ROOT / "gateway").iterdir() if path.is_dir()}


def test_every_module_of_the_gateway_has_its_rank() -> None:
    ranked = [name for row in RANKS for name in row]
    assert len(ranked) == len(set(ranked))
    assert set(GATEWAY) - PACKAGES == set(ranked) - set(WHOLE), "RANKS has each module once"


def test_the_gateway_is_built_from_the_ground_up() -> None:
    rank = {name: at for at, row in enumerate(RANKS) for name in row}
    bad = []
    for name, path in GATEWAY.items():
        for module, line in imports(path):
            known = gateway_module(module)
            if known is not None and rank[known] > rank[name]:
                bad.append(f"gateway/{name}:{line}: imports {known}, which is above it")
    assert not bad, "\n".join(bad)


def test_kvbm_is_built_from_the_ground_up() -> None:
    rank = {name: at for at, row in enumerate(KVBM_RANKS) for name in row}
    bad = []
    for path in (ROOT / "kvbm").glob("*.py"):
        assert path.stem in rank, f"kvbm/{path.name} needs a place in KVBM_RANKS"
        for module, line in imports(path):
            parts = module.split(".")
            if parts[0] == "kvbm" and len(parts) > 1 and rank[parts[1]] > rank[path.stem]:
                bad.append(f"kvbm/{path.name}:{line}: imports {parts[1]}, which is above it")
    assert not bad, "\n".join(bad)


def test_no_phase_knows_another() -> None:
    bad = []
    for phase in PHASES:
        path = ROOT / "gateway" / f"{phase}.py"
        if path.exists():
            known = {gateway_module(module) for module, _ in imports(path)}
            bad += [f"{phase} imports {other}" for other in known & set(PHASES) - {phase}]
    assert not bad, "\n".join(bad)


def test_no_cycles_in_the_gateway() -> None:
    graph = {
        name: {known for m, _ in imports(path) if (known := gateway_module(m))} - set(WHOLE)
        for name, path in GATEWAY.items()
    }
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("name", PURE)
def test_decisions_are_pure(name: str) -> None:
    path = GATEWAY[name]
    tops = {module.split(".")[0] for module, _ in imports(path)}
    assert not tops & IMPURE_IMPORTS
    waits = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Await)]
    assert not waits


def test_httpx_stays_off_the_data_path() -> None:
    users = [
        name
        for name, path in GATEWAY.items()
        if any(within(module, "httpx") for module, _ in imports(path))
    ]
    allowed = {"fleet.upstream", "cli.admin_client", "cli.demo", "cli.demo_chat"}
    assert set(users) <= allowed
