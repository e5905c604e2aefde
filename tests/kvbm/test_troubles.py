"""A disk in trouble is in the log, once, and so is its end."""

from __future__ import annotations

import logging

from gateway.log_lines import NOTICE
from kvbm.troubles import news, trouble


def test_a_disk_that_takes_blocks_or_is_not_there_has_none() -> None:
    assert trouble({}) == trouble({"disk_good": 1, "disk_trouble": "an old one"}) == ""
    assert trouble({"disk_good": 0, "disk_trouble": "/d: full"}) == "/d: full"
    assert trouble({"disk_good": 0, "disk_trouble": ""}) != ""


def test_what_is_new_is_told() -> None:
    assert news("", "") is news("full", "full") is None
    begun, other = news("", "/d: full"), news("/d: full", "/d: gone")
    assert begun is not None
    assert other is not None
    assert (begun[0], "/d: full" in begun[1], "/d: gone" in other[1]) == (logging.ERROR, True, True)
    assert news("full", "") == (NOTICE, "disk: takes blocks again")
