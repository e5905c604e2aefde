"""Spec to command line: golden files, one per case; `KVGATE_ACCEPT=1 pytest` writes them anew."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from engines.vllm.check import SpecError, problems
from engines.vllm.spec import Cpu, EngineSpec, KvEvents, command
from engines.vllm.transfer import Nixl, Offload

GOLDEN = Path(__file__).parents[2] / "golden" / "argv"
QWEN = EngineSpec(model="Qwen/Qwen3-8B")
SMALL = EngineSpec(
    model="/models/SmolLM2-135M-Instruct",
    served_names=("smollm2", "small"),
    port=8101,
    block_size=32,
    max_model_len=2048,
    cpu=Cpu(kv_bytes=64 << 20),
    offline=True,
)
LOOPBACK = Nixl(buffer_device="cpu", ucx_tls="tcp,sm,self", ucx_devices="lo")

CASES = {
    "plain": QWEN,
    "dtype_and_extra": replace(QWEN, dtype="bfloat16", extra=("--max-num-seqs", "64")),
    "no_cached_tokens": replace(QWEN, prompt_tokens_details=False),
    "key_by_environment": replace(QWEN, api_key="sk-secret word"),
    "events": replace(QWEN, events=KvEvents()),
    "events_topic_no_replay": replace(QWEN, events=KvEvents(replay="", topic="kv@a")),
    "events_data_parallel": replace(QWEN, data_parallel=4, events=KvEvents()),
    "prefill_pull": replace(QWEN, role="prefill", nixl=Nixl(), events=KvEvents()),
    "decode_pull_fail": replace(QWEN, role="decode", nixl=Nixl(on_load_failure="fail")),
    "both_pull": replace(QWEN, nixl=Nixl(lease_s=10)),
    "prefill_push": replace(QWEN, role="prefill", nixl=Nixl(mode="push", engine_id="p-1")),
    "offload": replace(QWEN, offload=Offload(8 << 30, decode_blocks=True)),
    "offload_tiers": replace(
        QWEN, offload=Offload(1 << 30, tiers=({"type": "fs", "root_dir": "/kv"},))
    ),
    "nixl_and_offload": replace(QWEN, role="decode", nixl=Nixl(), offload=Offload(8 << 30)),
    "cpu": SMALL,
    "cpu_tensor_parallel": replace(SMALL, tensor_parallel=2),
    "cpu_prefill": replace(SMALL, role="prefill", nixl=LOOPBACK, events=KvEvents()),
}


def rendered(spec: EngineSpec) -> str:
    built = command(spec)
    environ = "".join(f"{name}={value}\n" for name, value in built.environ)
    return f"{environ}\n" + "".join(f"{argument}\n" for argument in built.argv)


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("KVGATE_ACCEPT"):
        path.write_text(rendered(CASES[name]))
    assert rendered(CASES[name]) == path.read_text()


def test_no_golden_file_without_its_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


def test_a_secret_is_in_the_environment_and_nowhere_else() -> None:
    built = command(CASES["key_by_environment"])
    assert ("VLLM_API_KEY", "sk-secret word") in built.environ
    assert "sk-secret" not in " ".join(built.argv)
    assert "sk-secret" not in built.shell()
    assert 'VLLM_API_KEY="$VLLM_API_KEY"' in built.shell()
    assert "sk-secret" not in repr(CASES["key_by_environment"])


def test_the_printed_line_is_what_a_shell_reads_back() -> None:
    import shlex

    built = command(CASES["cpu_prefill"])
    words = shlex.split(built.shell())
    assert words[0] == "env"
    assert words[1 : 1 + len(built.environ)] == [f"{name}={value}" for name, value in built.environ]
    assert tuple(words[1 + len(built.environ) :]) == built.argv


@pytest.mark.parametrize(
    ("spec", "where", "value"),
    [
        (replace(QWEN, model="--port"), "MODEL", "--port"),
        (replace(QWEN, role="planner"), "--role", "planner"),  # type: ignore[arg-type]
        (replace(QWEN, port=0), "--port", "0"),
        (replace(QWEN, tensor_parallel=0), "--tp", "0"),
        (replace(SMALL, block_size=16), "--block-size", "16"),
        (replace(SMALL, cpu=Cpu(kv_bytes=64)), "--kv-bytes", "64"),
        (replace(QWEN, extra=("--api-key=x",)), "after --", "--api-key"),
        (replace(QWEN, extra=("--port", "1")), "after --", "--port"),
        (replace(QWEN, role="prefill"), "--role", "prefill"),
        (
            replace(QWEN, events=KvEvents("tcp://127.0.0.1:5557")),
            "--events",
            "tcp://127.0.0.1:5557",
        ),
        (
            replace(QWEN, data_parallel=2, events=KvEvents("ipc:///tmp/kv", "")),
            "--events",
            "ipc:///tmp/kv",
        ),
        (
            replace(QWEN, data_parallel=2, events=KvEvents("tcp://*:5557", "tcp://*:5558")),
            "--replay",
            "5558",
        ),
        (replace(QWEN, port=5600, nixl=Nixl()), "--nixl-port", "5600"),
        (replace(SMALL, offload=Offload(1 << 30)), "--offload", str(1 << 30)),
    ],
)
def test_refused_before_vllm_is_asked(spec: EngineSpec, where: str, value: str) -> None:
    found = problems(spec)
    assert [(problem.where, problem.value) for problem in found] == [(where, value)]
    assert found[0].hint
    with pytest.raises(SpecError, match="hint: "):
        command(spec)


def test_a_key_given_after_the_dashes_is_not_repeated_in_the_message() -> None:
    with pytest.raises(SpecError) as caught:
        command(replace(QWEN, extra=("--api-key=sk-secret",)))
    assert "sk-secret" not in str(caught.value)


def test_all_problems_come_at_once() -> None:
    spec = replace(SMALL, block_size=16, role="decode", port=-1)
    assert [problem.where for problem in problems(spec)] == ["--port", "--block-size", "--role"]


def test_neighbour_ranks_fit_when_the_gap_is_as_wide_as_the_ranks() -> None:
    events = KvEvents("tcp://*:5557", "tcp://*:5559")
    assert problems(replace(QWEN, data_parallel=2, events=events)) == ()
