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
    two = "kv_aware; disaggregate always;"
    upstream = ONE.replace("}", f" server 127.0.0.1:2; {two} plan_report {report}; }}")
    asked = ["-c", conf(tmp_path, upstream, location)]
    assert main(["plan", "fit", "--live", "--slo", "ttft=1s,tpot=50ms", *asked]) == 0
    text = capsys.readouterr().out
    assert "as it is now: 1P + 1 both, in time" in text
    assert "measured: engines: 2 of a are up, 1 prefill, 1 both; `disaggregate always`" in text
    assert "measured: KV memory: 4000 tokens of an engine, as engines say" in text
    assert "assumed:  step times: the profile neutral" in text
    # The dashboard of the gateway is told.
    shown = Reports().read({"a": str(report)}, time.time())["a"]
    assert shown["verdict"] == text.splitlines()[0] and shown["now"] == "1P + 1 both"
    assert shown["age_s"] < 60


PD_AND_TWO = ["prefill", "decode", "both", "both"]
UNREACHED = "as it is now: without engines of role prefill, which get nothing"


@pytest.mark.parametrize(
    ("directives", "roles", "now", "assumed"),
    [
        ("kv_aware; disaggregate always;", PD_AND_TWO, "1P1D + 2 both", ""),
        ("kv_aware; disaggregate auto;", PD_AND_TWO, "1P1D + 2 both (auto)", ""),
        ("kv_aware; disaggregate always;", ["prefill", "decode"], "1P1D", ""),
        ("kv_aware; disaggregate auto;", ["both"] * 2, "2 both (auto)", ""),
        ("kv_aware;", ["both"] * 2, "2 aggregated, chunk 2048", ""),
        ("kv_aware;", PD_AND_TWO, "3 aggregated, chunk 2048", UNREACHED),
        ("kv_aware; disaggregate auto;", ["prefill"], None, "no engine that is up may answer"),
        ("kv_aware; disaggregate auto; roles elastic; slo ttft=1s tpot=1s;", ["both"] * 2,
         "2 both (auto)", "roles stay what they are, though they are elastic"),
        ("least_conn;", ["both"], "1 aggregated, chunk 2048", "`kv_aware`), which is not config"),
    ],
)  # fmt: skip
def test_engines_are_replayed_in_their_roles(
    said: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    directives: str, roles: list[str], now: str | None, assumed: str,
) -> None:  # fmt: skip
    said["upstreams"] = {"a": {"engines": [engine(role=role) for role in roles]}}
    rows = [{"timestamp": 100 * n, "input_length": 40, "output_length": 3} for n in range(50)]
    head = {"kvgate_trace": 1, "block": 16}
    (tmp_path / "a.trace").write_text("\n".join(map(json.dumps, [head, *rows])))
    location = "location / { proxy_pass http://a; " + RECORD.format(folder=tmp_path) + " }"
    path = conf(tmp_path, ONE.replace("}", f" server 127.0.0.1:2; {directives} }}"), location)
    argv = ["plan", "fit", "--live", "--slo", "ttft=1s,tpot=50ms", "-c", path]
    assert main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["now"] and found["now"]["layout"]) == now
    lines = " ".join(line for line in found["assumed"] if not line.startswith("prefixes"))
    assert assumed in lines and ("as it is now" in lines or "routing" in lines) == bool(assumed)
    assert main(argv) == 0
    assert ("as it is now: " + str(now) in capsys.readouterr().out) == (now is not None)


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
