"""Writes the reference page: `python -m gateway.conf.reference > docs/directives.md`.

Nothing about a directive is written anywhere but in the table; a test fails when the page is not
what this prints.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gateway.conf import example
from gateway.conf.directives import GROUPS, TABLE
from gateway.conf.files import FILE_BYTES_MAX, FILES_MAX, INCLUDE_DEPTH_MAX, TOTAL_BYTES_MAX
from gateway.conf.parser import DEPTH_MAX
from gateway.conf.policies import POLICIES, TOKEN_MAX, full_name, shown
from gateway.conf.resolve_log import PREDEFINED
from gateway.conf.spec import Directive, Table
from gateway.conf.values import TEXT_MAX
from gateway.conf.variables import VARIABLES

_RELOAD = {"live": "takes effect on reload", "restart": "needs a restart"}
_WHEN = {
    "request": "from the request's head on",
    "route": "from routing on",
    "pick": "once an engine is chosen",
    "reply": "from the reply's head on",
    "end": "at the end",
}

CONTEXTS = ("main", "events", "http", "upstream", "server", "location")
_INTRODUCTION = f"""\
# Directives

This page is generated: `python -m gateway.conf.reference > docs/directives.md`.

The language is nginx's. A directive is a name, arguments and `;`; a block has `{{ }}` in place of
`;`. Words with blanks are quoted, `#` begins a comment, `${{name}}` is a variable. A directive in a
block holds for the blocks inside it until one of them has its own. Those that may stand several
times in a block (`proxy_set_header`, `add_header`, `access_log`) are inherited only into blocks
that have none of their own. Where a default or a meaning differs from nginx's, the entry says so.
A directive that is not listed is an error; nothing is ignored.

- **Times**: `10s`, `500ms`, `1m30s`, `2h`, `1d`; a plain number is seconds.
- **Sizes**: `512`, `64k`, `64m`, `1g`; a plain number is bytes.
- **Limits of a configuration**: {FILE_BYTES_MAX >> 20} MiB per file, {TOTAL_BYTES_MAX >> 20} MiB
  and {FILES_MAX} files in all, includes {INCLUDE_DEPTH_MAX} deep, blocks {DEPTH_MAX} deep,
  {TEXT_MAX} characters per argument.
- **Checking**: `kvgate -t -c FILE` reports all mistakes of a run, `-T` also prints what was read,
  `--format json` is for editors.
"""


def page() -> str:
    """The whole page, ending with a line end."""
    parts = [_INTRODUCTION, index(TABLE, CONTEXTS)]
    for title, directives in GROUPS:
        parts.append(f"## {title}\n")
        parts += [entry(directive, TABLE) for directive in directives]
    parts += [_variables(), _policies(), _formats(), _foreign()]
    return "\n".join(parts)


def _title(directive: Directive, table: Table) -> str:
    """The name, with its context where two directives share the name."""
    if len(table.named(directive.name)) > 1:
        return f"{directive.name} ({', '.join(directive.contexts)})"
    return directive.name


def _anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in "_- ")
    return kept.replace(" ", "-")


def _link(directive: Directive, table: Table) -> str:
    title = _title(directive, table)
    return f"[{title}](#{_anchor(title)})"


def index(table: Table, contexts: Sequence[str]) -> str:
    """The directives of each block, as links."""
    lines = ["## By block\n"]
    for context in contexts:
        entries = [d for d in table.directives if context in d.contexts]
        links = ", ".join(_link(d, table) for d in sorted(entries, key=lambda d: d.name))
        lines.append(f"- **{context}**: {links}")
    return "\n".join(lines) + "\n"


def entry(directive: Directive, table: Table) -> str:
    """All that a table says of a directive."""
    rows = [("Syntax", f"`{directive.syntax}`")]
    rows.append(("Default", f"`{directive.default}`" if directive.default else "none"))
    if directive.unit:
        rows.append(("Unit", directive.unit))
    rows.append(("Block", ", ".join(f"`{context}`" for context in directive.contexts)))
    if directive.repeat:
        rows.append(("Repeated", "may stand several times in a block"))
    rows.append(("Reload", _RELOAD[directive.reload]))
    rows.append(("Since", directive.since))
    lines = [f"### {_title(directive, table)}\n", f"{directive.doc}\n"]
    lines += [f"- **{name}**: {value}" for name, value in rows]
    if directive.note:
        lines.append(f"\n{directive.note}")
    if directive.wrong:
        lines.append(f"\n**When it is wrong**: {directive.wrong}")
    if directive.example:
        lines.append(f"\n```nginx\n{directive.example}\n```")
    if directive.see:
        others = [d for name in directive.see for d in table.named(name) if d != directive]
        links = [_link(d, table) for d in others]
        lines.append(f"\nSee also: {', '.join(links)}")
    return "\n".join(lines) + "\n"


def _variables() -> str:
    lines = [
        "## Variables\n",
        "A variable is empty before it is known, and `-` in a log line that has none. "
        "A name that ends in `NAME` stands for a family.\n",
        "| Variable | Known | Meaning |",
        "|---|---|---|",
    ]
    for variable in sorted(VARIABLES, key=lambda v: v.name):
        name = variable.name + ("NAME" if variable.name.endswith("_") else "")
        lines.append(f"| `${name}` | {_WHEN[variable.when]} | {variable.doc} |")
    return "\n".join(lines) + "\n"


def _policies() -> str:
    lines = [
        "## What policy headers say\n",
        "For `policy_header`. Enums and tokens are words, the others numbers; a token has at most "
        f"{TOKEN_MAX} visible characters. Those marked * are for callers in `trusted_from` only.\n",
        "| Header | Says | Kind | Values | Attributes |",
        "|---|---|---|---|---|",
    ]
    for policy in POLICIES:
        name = f"`{full_name(policy)}`" + ("*" if policy.trusted else "")
        values = ", ".join(policy.words)
        if policy.high > policy.low:
            values = f"{shown(policy.kind, policy.low)} to {shown(policy.kind, policy.high)}"
        attributes = ", ".join(policy.attributes)
        lines.append(f"| {name} | {policy.doc} | {policy.kind} | {values} | {attributes} |")
    return "\n".join(lines) + "\n"


def _formats() -> str:
    lines = ["## Predefined log formats\n"]
    for name, log_format in PREDEFINED.items():
        text = "".join(p if isinstance(p, str) else f"${p.name}" for p in log_format.template.parts)
        lines.append(f"`{name}` (escape={log_format.escape}):\n\n```\n{text}\n```\n")
    return "\n".join(lines)


def _foreign() -> str:
    lines = [
        "## nginx directives that are not available\n",
        "Each is an error where it stands, with this advice.\n",
        "| Directive | Instead |",
        "|---|---|",
    ]
    by_hint: dict[str, list[str]] = {}
    for foreign in TABLE.foreign.values():
        by_hint.setdefault(foreign.hint, []).append(f"`{foreign.name}`")
    lines += [f"| {' '.join(names)} | {hint} |" for hint, names in by_hint.items()]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--example"]:
        print(example.text(), end="")
        return 0
    if arguments:
        print("usage: python -m gateway.conf.reference [--example]", file=sys.stderr)
        return 2
    print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
