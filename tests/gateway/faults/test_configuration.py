"""The configuration faults that concern proxying: SMG#1977, SMG#2053."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.gateway import run_cli

WHOLE = """http {{
  upstream main {{ model m1; server {server}; }}
  server {{ listen 127.0.0.1:1; location / {{ proxy_pass {url}; }} }}
}}
"""


def check(
    tmp_path: Path, server: str = "10.0.0.1:8000", url: str = "http://main"
) -> tuple[int, str]:
    file = tmp_path / "kvgate.conf"
    file.write_text(WHOLE.format(server=server, url=url))
    done = run_cli("-t", "-c", str(file))
    return done.returncode, done.stdout + done.stderr


def test_server_line_without_scheme_is_right(tmp_path: Path) -> None:
    """SMG#1977: a URL without scheme was refused late and unclearly."""
    code, said = check(tmp_path)
    assert code == 0, said


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_server_line_with_scheme_is_an_error_with_a_hint(tmp_path: Path, scheme: str) -> None:
    code, said = check(tmp_path, server=f"{scheme}://10.0.0.1:8000")
    assert code == 1
    assert "kvgate.conf:2:" in said and f"{scheme}://10.0.0.1:8000" in said
    assert "hint" in said or "did you mean" in said, said


def test_proxy_pass_without_scheme_is_an_error_with_its_place(tmp_path: Path) -> None:
    code, said = check(tmp_path, url="main")
    assert code == 1
    assert "kvgate.conf:3:" in said and "proxy_pass" in said


def test_proxy_pass_to_an_unknown_upstream_names_the_near_one(tmp_path: Path) -> None:
    code, said = check(tmp_path, url="http://mian")
    assert code == 1
    assert "mian" in said and "main" in said
