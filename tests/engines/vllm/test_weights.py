"""Other weights under the same name are told apart, and names that are no folder are left alone."""

from __future__ import annotations

import os
from pathlib import Path

from engines.vllm.weights import SAMPLE, weights_of

SIZE = 300 * SAMPLE


def model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "a.safetensors").write_bytes(bytes(SIZE))
    (folder / "b.safetensors").write_bytes(b"\1" * 10)
    (folder / "notes.txt").write_text("of no meaning")
    return folder


def test_the_same_weights_have_the_same_digest_wherever_they_are(tmp_path: Path) -> None:
    one, two = model(tmp_path / "one"), model(tmp_path / "two")
    (two / "notes.txt").write_text("others")
    os.utime(two / "a.safetensors", (1, 1))
    assert weights_of(str(one)) == weights_of(str(two)) != ""


def test_what_differs_is_told_apart(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    found = {weights_of(str(folder))}
    file = folder / "a.safetensors"
    # Training changes weights all over a file: here every other kilobyte of its second half.
    data = bytearray(SIZE)
    data[SIZE // 2 :: 1024] = b"\2" * len(data[SIZE // 2 :: 1024])
    for change in (data, bytes(SIZE - 1) + b"\1", b"\1" + bytes(SIZE - 1), bytes(SIZE + 1)):
        file.write_bytes(change)
        found.add(weights_of(str(folder)))
    (folder / "config.json").write_text('{"rope_theta": 1}')
    found.add(weights_of(str(folder)))
    file.rename(folder / "c.safetensors")
    found.add(weights_of(str(folder)))
    assert len(found) == 7


def test_a_hub_name_has_none(tmp_path: Path) -> None:
    assert weights_of("org/model") == ""
    assert weights_of(str(tmp_path)) == ""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"x")
    assert weights_of(str(file)) != ""
