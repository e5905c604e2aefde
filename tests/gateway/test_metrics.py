"""Metrics are declared, documented, and bounded by the configuration."""

from pathlib import Path
from types import SimpleNamespace as Fake

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway import metrics
from gateway.cli import reference
from gateway.conf.model import EngineLine, Upstream
from gateway.fleet.engines import EngineTable
from gateway.fleet.ledger import Ledger
from gateway.stats import OUTCOMES, Statistics

DOCS = Path(__file__).resolve().parents[2] / "docs"


def scrape() -> tuple[str, Statistics]:
    table = EngineTable(Ledger())
    table.apply([Upstream("up", (EngineLine("e:1", "e", 1, ""),))], {"up": {"http"}}, 0.0)
    stats = Statistics()
    series = stats.open(("main", "/v1/", "up"))
    leg = Fake(
        relayed=True, sse=True, chunks=4, t_first=1.5, t_last=2.5, prompt_tokens=7,
        completion_tokens=5,
        cached_tokens=3,
    )  # fmt: skip
    ctx = Fake(
        request=Fake(method=b"POST", t_head=1.0, body=b"{}", head_bytes=98, content_length=2),
        leg=leg, status=200,
        plan=Fake(series={"up": series}), group=Fake(name="up"), termination="--", lane="express",
        t_end=3.0, bytes_sent=500, error=None, stripped=2,
    )  # fmt: skip
    stats.request(ctx)  # type: ignore[arg-type]
    stats.retry("connect")
    stats.retry("503")
    collector = metrics.KvgateCollector(stats, table, lambda: None)
    return generate_latest(metrics.registry(collector)).decode(), stats


def test_declared_once_with_our_prefix() -> None:
    names = [m.name for m in metrics.ALL]
    assert len(set(names)) == len(names) > 20
    for metric in metrics.ALL:
        assert metric.name.startswith("kvgate_") and metric.help
        assert metric.name.endswith("_total") == (metric.kind == "counter")


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "metrics.md").read_text() == reference.metrics_page(), (
        "run `python -m gateway.cli.reference metrics > docs/metrics.md`"
    )


def test_a_scrape_holds_what_was_counted() -> None:
    text, _ = scrape()
    samples = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    by_name: dict[str, list[float]] = {}
    for (name, _), value in samples.items():
        by_name.setdefault(name, []).append(value)
    assert by_name["kvgate_requests_total"] == [1.0]
    assert by_name["kvgate_prompt_tokens_total"] == [7.0]
    assert by_name["kvgate_time_to_first_token_seconds_sum"] == [0.5]
    assert by_name["kvgate_time_per_output_token_seconds_sum"] == [0.25]
    assert by_name["kvgate_request_duration_seconds_sum"] == [2.0]
    assert by_name["kvgate_stripped_total"] == [2.0]
    assert sum(by_name["kvgate_retries_total"]) == 2.0
    assert by_name["kvgate_received_bytes_total"] == [100.0]
    assert sum(by_name["kvgate_engine_state"]) == 1.0


def test_every_sample_is_declared() -> None:
    text, _ = scrape()
    declared = {m.name.removesuffix("_total") for m in metrics.ALL}
    assert {family.name for family in text_string_to_metric_families(text)} <= declared


def test_every_termination_code_can_be_counted() -> None:
    stats = Statistics()
    series = stats.open(("s", "/", ""))
    for code in OUTCOMES:
        ctx = Fake(
            request=Fake(method=b"POST", t_head=1.0, body=None, head_bytes=0, content_length=-1),
            leg=None, status=499,
            plan=Fake(series={"": series}),
            group=None, termination=code, lane="starlette", t_end=1.0,
            bytes_sent=0, error=None, stripped=0,
        )  # fmt: skip
        stats.request(ctx)  # type: ignore[arg-type]
    assert sum(count for _, _, count in stats.snapshot(series).requests) == len(OUTCOMES)
