"""What `-t` finds good starts: missing folders of logs and of the pid file are made."""

from __future__ import annotations

import signal
from pathlib import Path

from harness.gateway import Gateway, free_ports, run_cli

TEXT = """\
pid run/kvgate.pid;
error_log logs/error.log info;
http {{
    upstream a {{ server 127.0.0.1:1; health_check off; }}
    access_log {logs}/deep/access.log;
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://a; {more} }} }}
    server {{ listen unix:{folder}/admin.sock; location / {{ admin; }} }}
}}
"""


def text(folder: Path, port: int, more: str = "", logs: str = "logs") -> str:
    return TEXT.format(folder=folder, port=port, more=more, logs=logs)


def test_missing_folders_are_made_at_start_and_by_a_reload(tmp_path: Path) -> None:
    [port] = free_ports(1)
    gateway = Gateway(text(tmp_path, port), tmp_path, admin=str(tmp_path / "admin.sock"))
    try:
        gateway.wait_ready(("127.0.0.1", port))
        assert (tmp_path / "run" / "kvgate.pid").exists()
        assert (tmp_path / "logs" / "error.log").exists()
        more = "access_log other/place.log;"
        gateway.config_file.write_text(text(tmp_path, port, more))
        gateway.signal(signal.SIGHUP)
        gateway.wait_each(lambda status: status["generation"] == 2, "the reload", workers=1)
        assert (tmp_path / "other").is_dir()
    finally:
        gateway.stop()


def test_a_folder_that_cannot_be_made_is_a_mistake_of_the_file(tmp_path: Path) -> None:
    [port] = free_ports(1)
    (tmp_path / "logs").write_text("a file")
    conf = tmp_path / "kvgate.conf"
    conf.write_text(text(tmp_path, port, logs="place"))
    done = run_cli("-c", str(conf))
    assert done.returncode == 1
    assert f'{conf}:2:11: error: "{tmp_path}/logs" is no directory' in done.stderr
