"""`kvgate engine vllm`: what it prints, what it runs, what it refuses."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from engines.vllm.cli import main

FAKE = Path(__file__).with_name("fake_vllm.py")


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert main([*argv, "--print"]) == 0
    return shlex.split(capsys.readouterr().out)


def test_print_is_one_line_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    words = printed(
        capsys,
        "Qwen/Qwen3-8B",
        "--served-name",
        "a",
        "--served-name",
        "b c",
        "--max-model-len",
        "9",
    )
    at = words.index("vllm")
    assert words[at : at + 3] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    assert words[words.index("--served-model-name") + 1 :][:2] == ["a", "b c"]


def test_options_reach_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    words = printed(
        capsys, "m", "--cpu", "--kv-bytes", "64m", "--threads", "2", "--nixl", "push", "--role",
        "decode", "--nixl-port", "5700", "--lease", "9", "--on-load-failure", "fail", "--events",
        "--replay", "", "--engine-id", "d-1",
    )  # fmt: skip
    line = " ".join(words)
    assert "OMP_NUM_THREADS=2" in words
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT=5700" in words
    assert words[words.index("--kv-cache-memory-bytes") + 1] == str(64 << 20)
    for part in (
        '"kv_connector":"NixlPushConnector"',
        '"kv_role":"kv_consumer"',
        '"kv_lease_duration":9',
        '"kv_load_failure_policy":"fail"',
        '"kv_buffer_device":"cpu"',
        '"engine_id":"d-1"',
        '"endpoint":"tcp://*:5557"',
    ):
        assert part in line
    assert "replay_endpoint" not in line


def test_what_follows_the_dashes_goes_to_vllm_as_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from engines.vllm.cli import main\n"
         "sys.exit(main(sys.argv[1:]))", "dies", "--vllm", str(FAKE), "--port", "1", "--", "--x"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    # It became the engine: the engine's own output and status.
    assert done.stdout == "fake vllm: dies\nRuntimeError: no such model\n"
    assert done.returncode == 3


def test_a_key_comes_from_a_file_and_is_not_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("sk-secret\n")
    assert main(["m", "--api-key-file", str(key), "--print"]) == 0
    out = capsys.readouterr().out
    assert f'VLLM_API_KEY="$(cat {key})"' in out
    assert "sk-secret" not in out


def test_a_key_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["m", "--api-key-file", "/no/such/key", "--print"]) == 1
    assert "/no/such/key: No such file" in capsys.readouterr().err


def test_a_spec_that_would_not_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["m", "--cpu", "--block-size", "16", "--print"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kvgate engine vllm: --block-size: must be a multiple of 32")
    assert "hint: " in err


def test_no_vllm_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["m", "--vllm", "/no/such/vllm"]) == 1
    assert "cannot run `/no/such/vllm`" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["x", "1.5g", "-1", "64mm"])
def test_a_size_that_is_none(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["m", "--cpu", f"--kv-bytes={text}"])
    assert caught.value.code == 2
    assert "must be a size such as 256m" in capsys.readouterr().err
