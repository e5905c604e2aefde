"""`kvbm doctor`: looks at this machine and prints what the engine is to be started with."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from gateway.conf import ConfigErrors, render_errors
from kvbm import doctor, engine_config
from kvbm.cli import DEFAULT_FILE, Parser, add_file, configuration
from kvbm.conf.directives import TABLE
from kvbm.conf.model import Config

MARKS = {"ok": "ok  ", "warn": "warn", "bad": "BAD "}


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="kvbm doctor", allow_abbrev=False)
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    config: Config | None = None
    if options.file or os.path.exists(DEFAULT_FILE):
        try:
            config = configuration(options).config
        except ConfigErrors as error:
            print(render_errors(error.errors, table=TABLE), file=sys.stderr)
            return 1
    findings = list(doctor.examine(config, os.environ))
    ways = _ways(config)
    if options.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"findings": rows, "kv_transfer_config": ways}, indent=1))
    else:
        print("\n".join(_line(finding) for finding in findings))
        print("\nStart the engine with one of:")
        for way, transfer in ways.items():
            print(f"  # {way}\n  {engine_config.option(transfer)}")
    return 1 if any(finding.level == "bad" for finding in findings) else 0


def _line(finding: doctor.Finding) -> str:
    hint = f"\n        hint: {finding.hint}" if finding.hint else ""
    return f"  {MARKS[finding.level]}  {finding.what}: {finding.said}{hint}"


def _ways(config: Config | None) -> dict[str, dict[str, object]]:
    """The options, the one that fits most first."""
    socket = config.socket if config else "/run/kvbm/kvbm.sock"
    ways = {
        "tiers below vLLM's own host memory": engine_config.tier(socket),
        "the same by one name; on vLLM's CPU platform, too": engine_config.connector(socket),
    }
    if config is not None and config.host is not None:
        shared = {"one host memory for all engines: the daemon's": engine_config.arena(socket)}
        return {**shared, **ways}
    return ways
