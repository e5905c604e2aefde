"""Listening sockets: whose file a unix socket's is."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gateway.process.sockets import ListenError, Sockets, Wanted


def unix(path: Path) -> Wanted:
    return Wanted(f"unix:{path}", "", 0, str(path))


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_a_socket_takes_its_file_away_when_it_closes(tmp_path: Path) -> None:
    path = tmp_path / "s"
    mine = Sockets()
    mine.take([unix(path)], 1)
    assert connects(path)
    mine.close(unlink=True)
    assert not path.exists()


def test_a_successors_file_stays(tmp_path: Path) -> None:
    """One that found ours dead has put its own in its place before we were done."""
    path = tmp_path / "s"
    mine, next_one = Sockets(), Sockets()
    mine.take([unix(path)], 1)
    for sock in mine.open[unix(path).address]:
        sock.shutdown(socket.SHUT_RDWR)  # as closed by every worker
    next_one.take([unix(path)], 1)
    mine.close(unlink=True)
    assert connects(path)
    next_one.close(unlink=True)
    assert not path.exists()


def test_an_inherited_file_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "s"
    old, new = Sockets(), Sockets()
    old.take([unix(path)], 1)
    new.inherited = {address: [s.dup() for s in socks] for address, socks in old.open.items()}
    new.take([unix(path)], 1)
    old.close(unlink=False)
    assert connects(path)
    new.keep([])
    assert not path.exists()


def test_a_file_that_is_no_socket_or_is_in_use_is_refused_and_stays(tmp_path: Path) -> None:
    path, plain = tmp_path / "s", tmp_path / "f"
    plain.write_text("x")
    first, second = Sockets(), Sockets()
    first.take([unix(path)], 1)
    for one in (path, plain):
        with pytest.raises(ListenError):
            second.take([unix(tmp_path / "other"), unix(one)], 1)
        assert not (tmp_path / "other").exists()
    assert connects(path) and os.path.isfile(plain)
    first.close(unlink=True)
