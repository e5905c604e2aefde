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
    ("__init__", "conf", "charts", "planner", "error_base", "paths", "forms", "ids", "detached",
     "addresses", "fingerprints", "pending", "tally", "sources", "trust", "board", "facts",
     "transfer", "callers", "log_lines"),
    ("refusals", "sequence"),
    ("errors",),
    ("logs", "marks", "ledger", "channel", "feed"),
    ("pairs",),
    ("events",),
    (
        "routed", "context", "values", "values_kv", "sites", "retry", "relay_faults", "stats",
        "counts_kv", "counts_events", "counts_disagg", "responses", "upstream",
    ),
    ("over", "admin_access", "peer", "variables", "maps", "access", "vocabulary", "engine_tokens"),
    ("probes", "token_source"),
    ("tokens",),
    ("made", "limits", "policy", "secure"),
    ("orders", "memory", "reload", "upstreams", "acceptor", "identity"),
    ("engine",),
    ("team",),
    ("engines", "catalog", "sockets", "handover", "link"),
    (
        "plan", "turn", "returned", "health", "discovery", "models", "metrics", "status", "tls",
        "roles",
    ),
    (
        "pulse", "server", "metrics_kv", "metrics_events", "metrics_disagg", "decisions", "caches",
        "inquiry", "elastic",
    ),
    ("fronts",),
    ("legs",),
    PHASES,
    ("verdict", "ending", "release", "alive"),
    ("fetch",),
    ("two_legs", "push"),
    ("exchange", "explain"),
    ("pipeline",),
    ("api",),
    ("app",),
    ("worker", "change"),
    ("monitor", "children"),
    ("master",),
    ("cli_signal", "admin_client", "cli_simulate", "cli_calibrate"),
    ("cli_upstream", "cli_explain", "cli_roles", "cli_plan_size", "cli_workload"),
    ("cli", "demo", "demo_chat", "reference", "__main__"),
)

# The same of kvbm/.
KVBM_RANKS = (
    ("__init__", "conf"),
    ("logs", "shown", "engine_config", "status", "metrics", "reload", "access", "listen"),
    ("asking", "tiers", "admin", "remote", "events"),
    ("publisher", "doctor"),
    ("daemon",),
    ("cli",),
    ("cli_ask", "cli_doctor"),
    ("reference", "__main__"),
)

# Decisions take plain data and the time as arguments.
PURE = (
    "route", "pick", "sites", "paths", "marks", "retry", "catalog", "forms", "maps", "access",
    "relay_faults", "policy", "reload", "upstreams", "sequence", "pending", "fingerprints",
    "sources", "trust", "transfer", "pairs", "callers",
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


def gateway_module(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "gateway" and len(parts) > 1 else None


def test_every_module_of_the_gateway_has_its_rank() -> None:
    ranked = {name for row in RANKS for name in row}
    there = {path.stem for path in (ROOT / "gateway").glob("*.py")}
    assert there - ranked == set(), "new modules need a place in RANKS"


def test_the_gateway_is_built_from_the_ground_up() -> None:
    rank = {name: at for at, row in enumerate(RANKS) for name in row}
    bad = []
    for path in (ROOT / "gateway").glob("*.py"):
        for module, line in imports(path):
            known = gateway_module(module)
            if known is not None and rank[known] > rank[path.stem]:
                bad.append(f"gateway/{path.name}:{line}: imports {known}, which is above it")
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
        path.stem: {
            name for m, _ in imports(path) if (name := gateway_module(m)) and name != "conf"
        }
        for path in (ROOT / "gateway").glob("*.py")
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
    path = ROOT / "gateway" / f"{name}.py"
    tops = {module.split(".")[0] for module, _ in imports(path)}
    assert not tops & IMPURE_IMPORTS
    waits = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Await)]
    assert not waits


def test_httpx_stays_off_the_data_path() -> None:
    users = [
        path.name
        for path in (ROOT / "gateway").glob("*.py")
        if any(within(module, "httpx") for module, _ in imports(path))
    ]
    assert set(users) <= {"upstream.py", "admin_client.py", "demo.py", "demo_chat.py"}
