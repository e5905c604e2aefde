"""kvbm's configuration: the gateway's language with a table of its own.

    config = load("kvbm.conf")        # or ConfigErrors with everything that is wrong

`model.py` says what a configuration means; `directives.py` is the table of what may be written.
"""

from kvbm.conf.load import Loaded, load, load_text, read

__all__ = ["Loaded", "load", "load_text", "read"]
