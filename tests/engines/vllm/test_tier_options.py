"""What an operator writes is understood, or refused with what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.vllm.tier_options import TierOptions


def test_options_have_defaults() -> None:
    options = TierOptions.of({"socket": "/s", "load_s": 1, "locality": "LOCAL"})
    assert (options.socket, options.load_s, options.salt) == ("/s", 1, "")
    assert TierOptions.of({}).socket == "/run/kvbm/kvbm.sock"
    assert options.token() == b""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"sokcet": "x"}, "unknown option `sokcet`"),
        ({"socket": 1}, "`socket` in secondary_tiers is text, not 1"),
        ({"load_s": "2"}, "`load_s` in secondary_tiers is a number, not '2'"),
        ({"load_s": True}, "`load_s` in secondary_tiers is a number"),
        ({"load_s": 0}, "`load_s` is above 0"),
        ({"store_s": 1e9}, "`store_s` is above 0 and at most 3600 s"),
        ({"recompute_us_per_token": -1}, "`recompute_us_per_token` is not negative"),
    ],
)
def test_mistakes_are_named(said: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TierOptions.of(said)


def test_a_token_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("secret\n")
    assert TierOptions(socket_token=f"file:{tmp_path}/token").token() == b"secret"
    monkeypatch.setenv("KVBM_TOKEN", "other")
    assert TierOptions(socket_token="env:KVBM_TOKEN").token() == b"other"
    for wrong in (f"file:{tmp_path}/none", "env:NOBODY_SET_THIS", "secret"):
        with pytest.raises(ValueError, match="socket_token"):
            TierOptions(socket_token=wrong).token()
