"""The command line and engines as processes."""

from __future__ import annotations

import socket

import pytest

from engines.sim import cli
from engines.sim.process import SimEngine, SimFailed, start_all


def test_a_process_starts_answers_dies_and_comes_back_on_its_port() -> None:
    with SimEngine("m") as engine:
        port, pid = engine.port, engine.pid
        assert engine.call("GET", "/health")[0] == 200
        engine.kill()
        with pytest.raises(OSError):
            engine.call("GET", "/health")
        engine.start()
        assert engine.port == port and engine.pid != pid
        assert engine.call("GET", "/health")[0] == 200


def test_several_start_together_and_stop_in_order() -> None:
    engines = [SimEngine("m") for _ in range(3)]
    try:
        start_all(engines)
        assert len({e.port for e in engines}) == 3
    finally:
        for engine in engines:
            engine.stop()
            engine.stop()  # twice is fine
    for engine in engines:
        with pytest.raises(OSError):
            engine.call("GET", "/health")


def test_a_stopped_process_is_silent_and_goes_on() -> None:
    with SimEngine("m") as engine:
        engine.pause()
        with socket.create_connection(("127.0.0.1", engine.port), 1) as sock:
            sock.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
            sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            engine.resume()
            sock.settimeout(5)
            assert sock.recv(100).startswith(b"HTTP/1.1 200")


def test_a_port_in_use_is_said_and_told_by_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["m", "--port", str(port)]) == cli.EXIT_BIND
        assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
        with pytest.raises(SimFailed, match="did not become ready"):
            SimEngine("m", "--port", port).start()


def test_defaults_follow_vllm() -> None:
    s = cli.settings([])
    assert (s.host, s.port, s.keepalive_s, s.block_size) == ("127.0.0.1", 8000, 5.0, 16)
    assert s.served_model_names == ("sim",) and not s.enable_prompt_tokens_details


def test_the_cache_size_is_given_in_tokens_blocks_or_by_the_profile() -> None:
    assert cli.settings(["--kv-tokens", "1600"]).num_gpu_blocks == 101
    assert cli.settings(["--num-gpu-blocks", "50"]).num_gpu_blocks == 50
    big = cli.settings(["--profile", "h100-70b-tp4"])
    assert big.num_gpu_blocks == 461_000 // 16 + 1 and big.max_num_batched_tokens == 8192


def test_a_request_never_outgrows_the_cache() -> None:
    s = cli.settings(["--num-gpu-blocks", "11", "--max-model-len", "4096"])
    assert s.max_model_len == 160


@pytest.mark.parametrize(("argv", "says"), [
    (["--profile", "none"], "unknown profile"), (["--block-size", "0"], "at least 1"),
    (["--num-gpu-blocks", "2"], "at least 2 blocks"), (["--fault", "boom"], "unknown fault"),
    (["--kv-events-config", "{"], "not JSON"), (["--kv-events-config", '{"a":1}'], "unknown key"),
    (["--kv-transfer-config", "[]"], "must be a JSON object"),
    (["--time-scale", "-1"], "negative")])
def test_bad_usage_is_explained(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.settings(argv)
    assert stop.value.code == 2 and says in capsys.readouterr().err
