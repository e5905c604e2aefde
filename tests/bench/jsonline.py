"""The one JSON line that a bench ends with: `--json FILE`, `-` for stdout."""

from __future__ import annotations

import argparse
import json
from typing import Any


def option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the line there; - = stdout")


def write(line: dict[str, Any], target: str | None) -> None:
    """Nowhere, where no target was given. Raises OSError."""
    if target:
        with open(1 if target == "-" else target, "w") as out:
            print(json.dumps(line), file=out)
