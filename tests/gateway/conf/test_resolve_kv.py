"""What an upstream's directives about KV caches come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.conf import ConfigErrors, hub, load_text
from gateway.conf.model import Balance, KvSettings
from gateway.conf.model_kv import FIT, NO_KV, PROFILES, TokenizerSource
from native._core import Fit

REST = "server { listen 1; return 404; }"


def settings(lines: str, folder: Path = Path("/etc")) -> KvSettings:
    text = f"http {{ upstream u {{ server 127.0.0.1:1; {lines} }} {REST} }}"
    return load_text(text, f"{folder}/kvgate.conf").upstreams["u"].kv


def test_nothing_said_is_nothing_done() -> None:
    assert settings("") == NO_KV and not NO_KV.aware


def test_kv_aware_is_a_balancing_method() -> None:
    text = f"http {{ upstream u {{ server 127.0.0.1:1; kv_aware; }} {REST} }}"
    found = load_text(text, "kvgate.conf").upstreams["u"]
    assert (found.balance, found.kv.aware, found.kv.overlap_weight) == (Balance("kv"), True, 1.0)


def test_every_value() -> None:
    found = settings(
        "kv_aware overlap_weight=0.5 session=$http_x_session_id; slo ttft=2s tpot=50ms;"
        "profile h100-8b-tp1 b=0.03 c=1e-6 chunk=4096; kv_capacity 430000; block_size 32;"
        "kv_events off quiet=0; tokenizer remote;"
    )
    assert (found.overlap_weight, found.ttft_s, found.tpot_s) == (0.5, 2.0, 0.05)
    assert (found.profile, found.fit) == ("h100-8b-tp1", (("b", 0.03), ("c", 1e-6)))
    assert (found.chunk_tokens, found.capacity_tokens, found.block_size) == (4096, 430_000, 32)
    assert found.session is not None and found.session.constant is None
    assert found.tokenizer == TokenizerSource("remote")


def test_profiles_and_constants_are_those_that_native_code_has() -> None:
    assert tuple(Fit.profiles()) == PROFILES
    assert tuple(name for name, _ in Fit().values()) == FIT


@pytest.mark.parametrize("written", ["model", "./model", "model/tokenizer.json", "{folder}/model"])
def test_a_folder_is_found_beside_the_file(tmp_path: Path, written: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    written = written.format(folder=tmp_path)
    found = settings(f"kv_aware; tokenizer {written} chat_template=chat.jinja;", tmp_path)
    path = str(tmp_path / "model" / "tokenizer.json")
    assert found.tokenizer == TokenizerSource("files", path, "", str(tmp_path / "chat.jinja"))


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigErrors, match="there is no file"):
        settings("kv_aware; tokenizer model;", tmp_path)


def test_a_name_is_looked_for_in_the_cache_of_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    snapshots = tmp_path / "hub" / "models--org--m" / "snapshots"
    for revision in ("old", "new", "bare"):
        (snapshots / revision).mkdir(parents=True)
    (snapshots / "old" / "tokenizer.json").write_text("{}")
    (snapshots / "new" / "tokenizer.json").write_text("{}")
    assert settings("kv_aware; tokenizer org/m;").tokenizer == TokenizerSource("name", "", "org/m")
    environment = {"HF_HOME": str(tmp_path)}
    refs = tmp_path / "hub" / "models--org--m" / "refs"
    refs.mkdir()
    (refs / "main").write_text("old\n")
    assert hub.folder("org/m", environment) == str(snapshots / "old")
    (refs / "main").write_text("bare")  # a revision that has no tokenizer: any that has one
    assert hub.folder("org/m", environment) in (str(snapshots / "old"), str(snapshots / "new"))
    assert hub.folder("org/other", environment) == ""
    assert hub.folder(str(snapshots / "new"), environment) == str(snapshots / "new")
    assert hub.folder(str(snapshots / "bare"), environment) == ""


@pytest.mark.parametrize("name", ["", "../x", "a/../b", "a/b/c", "models--x", "a b", "/abs"])
def test_what_is_no_name_is_not_looked_for(name: str) -> None:
    assert not hub.is_name(name) and hub.cached(name, {"HF_HOME": "/"}) == ""


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/c"}, "/c"),
        ({"HF_HOME": "/h"}, "/h/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HOME": "/home/a"}, "/home/a/.cache/huggingface/hub"),
    ],
)
def test_where_the_cache_of_models_is(environment: dict[str, str], folder: str) -> None:
    assert hub.cache(environment) == folder
