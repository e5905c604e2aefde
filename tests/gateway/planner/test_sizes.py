"""Sizes of KV, weights and engines against what is published of well-known models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli.plan_size import main
from gateway.planner.gpus import GIB, GPUS, gpu
from gateway.planner.model_config import BadModel, ModelConfig
from gateway.planner.sizes import Load, Model, engine, floors, model, transfer

MODELS = Path(__file__).parent / "models"


def of(name: str, kv_dtype: str = "auto", **changes: object) -> Model:
    values = json.loads((MODELS / f"{name}.json").read_text())
    return model(ModelConfig({**values, **changes}, f"{name}/config.json"), kv_dtype)


@pytest.mark.parametrize(
    ("name", "per_token", "per_request", "billions"),
    [
        # 2 x 8 heads x 128 numbers x 2 bytes in each of 32 and 126 layers.
        ("llama-3.1-8b", 131_072, 131_072 * 8192, 8.03),
        ("llama-3.1-405b", 516_096, 516_096 * 8192, 405.85),
        # 512 + 64 numbers in each of 61 layers, for all heads together.
        ("deepseek-v3", 70_272, 70_272 * 8192, 671.03),
        ("gpt2", 36_864, 36_864 * 8192, 0.124),
        ("falcon-7b", 8_192, 8_192 * 8192, 6.92),
        # No layer keeps more than 4096 tokens.
        ("mistral-7b-0.1", 131_072, 131_072 * 4096, 7.24),
        # 10 of 62 layers keep everything, the others 1024 tokens.
        ("gemma-3-27b", 507_904, 8192 * 81_920 + 1024 * 425_984, 27.0),
    ],
)
def test_models_are_as_large_as_published(
    name: str, per_token: int, per_request: int, billions: float
) -> None:
    found = of(name)
    assert found.bytes_per_token == per_token
    assert found.bytes_per_request(8192) == per_request
    assert found.weights.parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_recurrent_layers_keep_a_state_whatever_the_length() -> None:
    found = of("qwen3-next-80b")
    # 12 of 48 layers attend: 2 x 2 heads x 256 numbers.
    assert found.bytes_per_token == 12 * 2 * 2 * 256 * 2
    state = found.bytes_per_request(0)
    # 32 heads of 128 x 128, and three steps of a convolution over keys, queries and values.
    assert state == 36 * 2 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128))
    assert found.bytes_per_request(1000) - state == 1000 * found.bytes_per_token
    assert found.weights.parameters / 1e9 == pytest.approx(79.7, rel=0.005)


def test_kv_in_eight_bits_is_half() -> None:
    assert of("llama-3.1-8b", "fp8").bytes_per_token == 65_536


@pytest.mark.parametrize(
    ("name", "gib", "decimal", "as_articles"),
    [
        ("llama-3.1-8b", 1.0, (8.59, 2.15, 1.07), (8.0, 2.0, 1.0)),
        ("llama-3.1-405b", 3.94, (33.8, 8.46, 4.23), (31.5, 7.88, 3.94)),
    ],
)
def test_a_hundred_requests_over_three_links(
    name: str, gib: float, decimal: tuple[float, ...], as_articles: tuple[float, ...]
) -> None:
    size = of(name).bytes_per_request(8192)
    assert size / GIB == pytest.approx(gib, abs=0.005)
    moved = [transfer(100 * size, gbit) for gbit in (100, 400, 800)]
    assert [one.seconds for one in moved] == pytest.approx(decimal, rel=0.005)
    assert [one.seconds_gib_as_gb for one in moved] == pytest.approx(as_articles, rel=0.002)
    assert all(one.seconds_real > one.seconds for one in moved)


def test_disaggregation_doubles_the_least_there_can_be() -> None:
    for name in ("llama-3.1-8b", "llama-3.1-405b"):
        one, two = floors(of(name), GPUS["h100"], Load(concurrency=1))
        assert one is not None and two is not None
        assert (one.engines, two.gpus) == (1, 2 * one.gpus)
    # 16 GB of weights and a request fit into one GPU; 812 GB need more than eight of 80 GB.
    assert [floors(of(name), GPUS["h100"], Load(concurrency=1))[0].gpus  # type: ignore[union-attr]
            for name in ("llama-3.1-8b", "llama-3.1-405b")] == [1, 16]  # fmt: skip


def test_more_requests_need_more_engines_and_never_fewer_gpus() -> None:
    last = 0
    for concurrency in (1, 40, 100, 400, 1000):
        one, two = floors(of("llama-3.1-8b"), GPUS["h100"], Load(concurrency=concurrency))
        assert one is not None and two is not None
        assert one.engines * one.each.requests >= concurrency
        assert last <= one.gpus < two.gpus
        last = one.gpus


def test_kv_that_heads_do_not_divide_lies_on_every_gpu() -> None:
    latent, grouped = of("deepseek-v3"), of("llama-3.1-405b")
    assert latent.bytes_on(8, 8192) == 8 * latent.bytes_per_request(8192)
    assert grouped.bytes_on(8, 8192) == grouped.bytes_per_request(8192)
    assert grouped.bytes_on(16, 8192) == 2 * grouped.bytes_per_request(8192)


def test_heads_that_cannot_be_divided_are_no_engine() -> None:
    assert engine(of("falcon-7b"), GPUS["h100"], 2, Load()) is None
    assert engine(of("falcon-7b"), GPUS["h100"], 1, Load()) is not None


def test_files_beside_the_configuration_say_what_weights_weigh(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((MODELS / "llama-3.1-8b.json").read_text())
    index = {"metadata": {"total_size": 16_060_522_496}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = model(ModelConfig.read(tmp_path))
    assert (found.weights.bytes, found.weights.source) == (16_060_522_496, "files")
    assert of("llama-3.1-8b").weights.bytes == pytest.approx(found.weights.bytes, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_hidden_layers": -4}, "num_hidden_layers"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"torch_dtype": "int3"}, "int3"),
        ({"layer_types": ["full_attention"]}, "1 of 32"),
        ({"layer_types": ["strange"] * 32}, "strange"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(BadModel, match=said):
        of("llama-3.1-8b", **changes)


def test_a_gpu_is_a_name_or_a_size() -> None:
    assert gpu("80GiB").memory_bytes == 80 * GIB and gpu("80GB").memory_bytes == 80 * 10**9
    with pytest.raises(ValueError, match="h200"):
        gpu("h9")


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(MODELS / "llama-3.1-8b.json")
    assert main(["--config", file, "--tokens", "8192", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["bytes_per_token"], found["bytes_per_request"]) == (131_072, 1 << 30)
    assert found["transfers"]["100"][0]["seconds"] == pytest.approx(8.59, rel=1e-3)
    assert found["gpus"]["h100"]["disaggregated"]["gpus"] >= 2


def test_the_command_says_which_unit_is_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(MODELS / "llama-3.1-405b.json"), "--gpu", "h200,24GiB"]) == 0
    text = capsys.readouterr().out
    assert "3.938 GiB = 4.228 GB" in text and "33.823 s" in text and "31.500 s" in text
    assert "doubles the floor" in text


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["--tokens", "1"], 2, "--config"),
        (["--config", "{models}/llama-3.1-8b.json", "--gpu", "abacus"], 1, "abacus"),
        (["--config", "{models}/absent.json"], 1, "absent.json"),
        (["--config", "{models}/README.md"], 1, "README.md"),
        (["--config", "{models}/llama-3.1-8b.json", "--links", "0"], 2, "Gbit/s"),
    ],
)
def test_a_mistake_is_named(
    argv: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part.format(models=MODELS) for part in argv]) == status
    assert said in capsys.readouterr().err
