"""Says what is missing on this machine before a build fails for it; standard library only.

`tools.py` checks; `tools.py requirements` prints what a development environment asks for.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path


def missing() -> list[str]:
    found = []
    if sys.version_info < (3, 11):  # noqa: UP036, for the interpreter that cannot go on
        version = ".".join(map(str, sys.version_info[:3]))
        found.append(
            f"Python 3.11 or newer is needed, {sys.executable} is {version}\n"
            "hint: make PYTHON=/path/to/python3.11 ..."
        )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        found.append(f"Python's headers are missing: {header}\nhint: install python3-dev")
    for tools, hint in (
        (("cc", "gcc", "clang"), "install a C compiler, e.g. gcc"),
        (("cargo",), "install Rust 1.89 or newer"),
    ):
        if not any(shutil.which(tool) for tool in tools):
            found.append(f"`{tools[0]}` was not found\nhint: {hint}")
    return found


def requirements() -> list[str]:
    import tomllib  # here: an older Python must get as far as the message above

    project = tomllib.loads(Path("pyproject.toml").read_text())
    return [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["test"],
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["requirements"]:
        print("\n".join(requirements()))
        sys.exit(0)
    if problems := missing():
        sys.exit("cannot build kvgate here:\n" + "\n".join(problems))
