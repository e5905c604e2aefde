"""`--live`: what a configuration must say for a running gateway to be read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import admin_client
from gateway.cli.program import main
from gateway.plan_report import Reports

RECORD = "record {folder}/a.trace secret=env:KVGATE_TEST_SECRET;"


def conf(folder: Path, upstreams: str, locations: str) -> str:
    path = folder / "kvgate.conf"
    path.write_text(
        f"http {{ {upstreams} server {{ listen 8080; {locations} }}"
        f" server {{ listen unix:{folder}/admin.sock; location / {{ admin; }} }} }}"
    )
    return str(path)


def engine(state: str = "up", role: str = "both", tokens: int = 0) -> dict[str, Any]:
    kv = {"capacity_tokens": tokens, "capacity_from": "engine"} if tokens else None
    return {"address": "a", "state": state, "role": role, "kv": kv}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the gateway answers."""
    status: dict[str, Any] = {"upstreams": {"a": {"engines": [engine()]}}}
    monkeypatch.setattr(admin_client, "get", lambda admin, path: status)
    monkeypatch.setenv("KVGATE_TEST_SECRET", "s")
    return status


ONE = "upstream a { server 127.0.0.1:1; }"
TWO = ONE + " upstream b { server 127.0.0.1:2; }"


@pytest.mark.parametrize(
    ("upstreams", "locations", "message"),
    [
        (ONE, "location / { proxy_pass http://a; }", "requests to a are not recorded in a file"),
        (TWO, "location / { proxy_pass http://a; " + RECORD + " }", "which upstream?"),
        (
            ONE,
            "location /x { proxy_pass http://a; " + RECORD + " }"
            "location /y { proxy_pass http://a; " + RECORD.replace("a.trace", "b.trace") + " }",
            "are recorded in",
        ),
    ],
)
def test_what_a_configuration_lacks_is_said(
    said: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    upstreams: str, locations: str, message: str,
) -> None:  # fmt: skip
    path = conf(tmp_path, upstreams, locations.replace("{folder}", str(tmp_path)))
    assert main(["workload", "--live", "-c", path]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engines", "message"),
    [([engine("down")], "no engine of a is up"), (None, "has no upstream a")],
)
def test_a_gateway_that_cannot_be_planned_for(
    said: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    engines: list[dict[str, Any]] | None, message: str,
) -> None:  # fmt: skip
    said["upstreams"] = {} if engines is None else {"a": {"engines": engines}}
    location = "location / { proxy_pass http://a; " + RECORD.format(folder=tmp_path) + " }"
    assert main(["workload", "--live", "-c", conf(tmp_path, ONE, location)]) == 1
    assert message in capsys.readouterr().err


def test_what_is_measured_and_what_assumed(
    said: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = [engine(tokens=5000), engine(tokens=4000, role="prefill"), engine("drain")]
    said["upstreams"] = {"a": {"engines": engines}}
    (tmp_path / "a.trace").write_text(
        '{"kvgate_trace":1,"block":16}\n'
        + "".join(
            f'{{"timestamp":{at},"input_length":40,"output_length":3,"hash_ids":[1,2]}}\n'
            for at in range(0, 20_000, 100)
        )
    )
    location = "location / { proxy_pass http://a; " + RECORD.format(folder=tmp_path) + " }"
    report = tmp_path / "a.plan"
    upstream = ONE.replace("}", f" plan_report {report}; }}")
    asked = ["-c", conf(tmp_path, upstream, location)]
    assert main(["plan", "fit", "--live", "--slo", "ttft=1s,tpot=50ms", *asked]) == 0
    text = capsys.readouterr().out
    assert "as it is now: 1P1D, in time" in text
    assert "measured: engines: 2 of a are up" in text
    assert "measured: KV memory: 4000 tokens of an engine, as engines say" in text
    assert "assumed:  step times: the profile neutral" in text
    # The dashboard of the gateway is told.
    shown = Reports().read({"a": str(report)}, time.time())["a"]
    assert shown["verdict"] == text.splitlines()[0] and shown["now"] == "1P1D"
    assert shown["age_s"] < 60


def test_prefixes_are_measured_of_those_requests_whose_blocks_are_recorded(
    said: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"timestamp": 100 * n, "input_length": 40, "output_length": 3} for n in range(100)]
    for row in rows[:25]:
        row["hash_ids"] = [1, 2]  # type: ignore[assignment]
    head = {"kvgate_trace": 1, "block": 16}
    (tmp_path / "a.trace").write_text("\n".join(map(json.dumps, [head, *rows])))
    location = "location / { proxy_pass http://a; " + RECORD.format(folder=tmp_path) + " }"
    asked = ["--live", "-c", conf(tmp_path, ONE, location)]
    known = "measured: prefixes: the blocks of 25 of 100 requests (25.0% of prompt tokens)"
    assert main(["workload", *asked]) == 0
    text = capsys.readouterr().out
    assert known in text and "what caching saves is unknown" in text
    assert "measured: arrivals and lengths: recorded in" in text
    assert main(["plan", "fit", "--slo", "ttft=1s,tpot=50ms", *asked]) == 0
    text = capsys.readouterr().out
    assert known in text and "measured: arrivals and lengths: recorded in" in text
    assert "assumed:  prefixes: requests without block hashes (75 of 100) share nothing" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["workload"], "FILE, or --live"),
        (["workload", "x", "--live"], "FILE, or --live"),
        (["plan", "fit", "--slo", "ttft=1s"], "--trace FILE, or --live"),
        (["plan", "fit", "--trace", "x"], "no SLO is known"),
    ],
)
def test_usage(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err
