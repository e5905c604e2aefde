"""The configuration language: nginx's syntax, our directives. Imports nothing else of this project.

    config = load("kvgate.conf")        # or ConfigErrors with everything that is wrong
    print(render_errors(error.errors))

`model.py` says what a configuration means; `directives.py` is the table of what may be written.
"""

from gateway.conf.errors import ConfigError, ConfigErrors
from gateway.conf.load import Loaded, load, load_text, read
from gateway.conf.render import render_errors

__all__ = [
    "ConfigError",
    "ConfigErrors",
    "Loaded",
    "load",
    "load_text",
    "read",
    "render_errors",
]
