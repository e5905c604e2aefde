"""The seam to the compiled parts: `native._core` (Rust) and `native.relay` (Cython).

Everything of ours imports them through here. A missing or stale extension is one clear ImportError;
there is no slow fallback that sets in silently.
"""

import importlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

VERSION = "0.1.0"

# fastokens would start a thread per core for a long text, each with tables of its own of up to a
# hundred megabytes, that spins after work. Workers are the parallelism here.
os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")


def _load(name: str) -> ModuleType:
    """The extension `native.<name>`; ImportError says which file, interpreter and command."""
    wanted = f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    hint = "hint: run `make build` in a source tree, or install a wheel for this interpreter"
    try:
        module = importlib.import_module(f"native.{name}")
    except ModuleNotFoundError as exc:
        if exc.name != f"native.{name}":
            raise
        place = Path(__file__).parent / wanted
        raise ImportError(
            f"the compiled module {place} is missing (interpreter: {sys.executable})\n{hint}"
        ) from exc
    found = module.__version__
    if found != VERSION:
        raise ImportError(
            f"{module.__file__} is version {found}, the package is {VERSION} "
            f"(interpreter: {sys.executable})\n{hint}"
        )
    return module


if TYPE_CHECKING:
    from native import _core as _core
    from native import relay as relay
else:
    _core = _load("_core")
    relay = _load("relay")

__all__ = ["VERSION", "_core", "relay"]
