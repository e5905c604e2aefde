"""`kvgate -s WORD`: tells the running gateway something, by the pid file of its configuration.

The configuration is read first, as in nginx: a file with mistakes sends nothing.
"""

from __future__ import annotations

import os
import signal

from gateway.conf.files import Unreadable, read_text
from gateway.conf.model import Config

SIGNALS = {
    "stop": signal.SIGTERM,
    "quit": signal.SIGQUIT,
    "reload": signal.SIGHUP,
    "reopen": signal.SIGUSR1,
}
PID_BYTES_MAX = 64


class NotSent(Exception):
    """The signal was not sent; `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def send(config: Config, word: str) -> int:
    """Sends the signal of a word of SIGNALS and returns the process id. Raises NotSent."""
    if not config.pid:
        hint = 'add "pid run/kvgate.pid;" at its top and start the gateway anew'
        raise NotSent(f"{config.file} names no pid file", hint)
    process = _process_id(config.pid)
    try:
        os.kill(process, SIGNALS[word])
    except ProcessLookupError:
        hint = "the gateway that wrote it is gone; remove the file"
        raise NotSent(f"no process {process}, which {config.pid} names", hint) from None
    except PermissionError:
        hint = "run as root or as the user that started it"
        raise NotSent(f"process {process} does not take signals from you", hint) from None
    return process


def _process_id(path: str) -> int:
    if not os.path.exists(path):
        hint = "is the gateway running, and with this configuration and prefix?"
        raise NotSent(f"there is no pid file {path}", hint)
    try:
        text = read_text(path, PID_BYTES_MAX).strip()
    except Unreadable as error:
        raise NotSent(f"cannot read the pid file {path}: {error}") from None
    # 0, 1 and what is not a number would reach other processes than the gateway.
    if not (text.isascii() and text.isdigit()) or not 1 < int(text) < 1 << 31:
        raise NotSent(f"the pid file {path} holds no process id", "remove it")
    return int(text)
