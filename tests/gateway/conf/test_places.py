"""What stands in the way of a file that will be written is told where the file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.conf.errors import ConfigErrors
from gateway.conf.load import load_text

WHOLE = "{main} http {{ server {{ listen 127.0.0.1:1; location / {{ {inside} return 204; }} }} }}"
SECRET = "secret=file:{0}/f"


@pytest.mark.parametrize(
    ("main", "inside", "at", "message"),
    [
        ("error_log d;", "", "d;", '{0}/d" is a directory'),
        ("error_log f/error.log;", "", "f/error", '{0}/f" is no directory'),
        ("pid d;", "", "d;", '{0}/d" is a directory'),
        ("pid f/run/pid;", "", "f/run", '{0}/f" is no directory'),
        ("", "access_log d;", "d;", '{0}/d" is a directory'),
        ("", "access_log {0}/f/a.log;", "{0}/f/a", '{0}/f" is no directory'),
        ("", f"record d {SECRET};", "d secret", '{0}/d" is a directory'),
    ],
)
def test_it_is_told(tmp_path: Path, main: str, inside: str, at: str, message: str) -> None:
    (tmp_path / "f").write_text("a-secret-that-is-long-enough")
    (tmp_path / "d").mkdir()
    text = WHOLE.format(main=main.format(tmp_path), inside=inside.format(tmp_path))
    with pytest.raises(ConfigErrors) as caught:
        load_text(text, prefix=str(tmp_path))
    [error] = caught.value.errors
    assert message.format(tmp_path) in error.message
    assert error.place.column == text.index(at.format(tmp_path)) + 1


def test_what_is_not_there_yet_and_streams_and_devices_are_good(tmp_path: Path) -> None:
    text = WHOLE.format(
        main="error_log stderr; pid a/pid;", inside="access_log stdout; access_log /dev/null;"
    )
    config = load_text(text, prefix=str(tmp_path))
    assert (config.error_log, config.pid) == ("stderr", f"{tmp_path}/a/pid")
    [location] = config.servers[0].locations
    assert [log.path for log in location.access_logs] == ["stdout", "/dev/null"]
