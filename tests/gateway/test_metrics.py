"""Metrics are declared, documented, and bounded by the configuration."""

from pathlib import Path
from types import SimpleNamespace as Fake

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway import metrics, route_metrics
from gateway.cli import reference
from gateway.conf.model import EngineLine, Upstream
from gateway.fleet.engines import EngineTable
from gateway.fleet.ledger import Ledger
from gateway.load.goodput import Slo
from gateway.process import metrics as process_metrics
from gateway.route_metrics import RouteCollector
from gateway.stats import OUTCOMES, Statistics
from native.relay import stream_times

ALL = (*metrics.ALL, *route_metrics.ALL, *process_metrics.ALL)
DOCS = Path(__file__).resolve().parents[2] / "docs"


def scrape() -> tuple[str, Statistics]:
    table = EngineTable(Ledger())
    table.apply([Upstream("up", (EngineLine("e:1", "e", 1, ""),))], {"up": {"http"}}, 0.0)
    stats = Statistics()
    series = stats.open(("main", "/v1/", "up"))
    slo = Slo(ttft_s=0.45, tpot_s=0.3)
    stats.mark(series, slo)
    leg = Fake(
        relayed=True, sse=True, t_start=1.125, t_first=1.5, t_last=2.5, t_end=2.875,
        times=lambda arrived, duration, complete: stream_times(
            arrived, 1.5, 2.5, 1.75, 1.25, 2.75, 5, duration, complete
        ),
        counts=(7, 5, 3, 4),
    )  # fmt: skip
    ctx = Fake(
        request=Fake(
            method=b"POST", t_head=0.5, t0=1.0, body=b"{}", head_bytes=98, content_length=2,
            target=b"/t", path=b"",
        ),
        leg=leg, status=200, sent=b"/t", turned=False,
        path=b"/v1/chat/completions", policy={}, end="", word="", broken=(),
        plan=Fake(series={"up": series}, kind="proxy", slos={"up": slo}), group=Fake(name="up"),
        termination="--", lane="express", t_end=3.0, bytes_sent=500, error=None, stripped=2,
        kv=None, two=None,
    )  # fmt: skip
    stats.offer(stats.open(("main", "/v1/", "")))
    stats.request(ctx)  # type: ignore[arg-type]
    stats.retry("connect")
    stats.retry("503")
    collectors = metrics.KvgateCollector(stats, table, lambda: None), RouteCollector(stats)
    return generate_latest(metrics.registry(*collectors)).decode(), stats


def test_declared_once_with_our_prefix() -> None:
    names = [m.name for m in ALL]
    assert len(set(names)) == len(names) > 20
    for metric in ALL:
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
    assert sum(by_name["kvgate_prompt_tokens_total"]) == 7.0
    assert by_name["kvgate_time_to_first_token_seconds_sum"] == [0.5]
    assert by_name["kvgate_time_per_output_token_seconds_sum"] == [0.25]
    assert sum(by_name["kvgate_request_duration_seconds_sum"]) == 2.5
    assert by_name["kvgate_end_to_end_latency_seconds_sum"] == [1.5]
    assert by_name["kvgate_time_to_first_output_seconds_sum"] == [0.75]
    assert by_name["kvgate_vllm_bench_time_to_first_token_seconds_sum"] == [0.25]
    assert by_name["kvgate_vllm_bench_time_per_output_token_seconds_sum"] == [1.5 / 4]
    assert by_name["kvgate_vllm_bench_end_to_end_latency_seconds_sum"] == [1.75]
    assert by_name["kvgate_offered_requests_total"] == [1.0]
    assert sum(by_name["kvgate_good_requests_total"]) == 0.0
    assert sum(by_name["kvgate_good_tokens_total"]) == 0.0
    misses = {dict(labels)["cause"]: value for (name, labels), value in samples.items()
              if name == "kvgate_slo_misses_total" and value}  # fmt: skip
    assert misses == {"prefill": 1.0}  # TTFT 0.5 s: 0.125 s at the gateway, 0.375 s at the engine
    first = {dict(labels)["le"]: value for (name, labels), value in samples.items()
             if name == "kvgate_time_to_first_token_seconds_bucket"}  # fmt: skip
    assert (first["0.4"], first["0.45"], first["0.5"]) == (0.0, 0.0, 1.0)  # the SLO is a bound
    assert by_name["kvgate_stripped_total"] == [2.0]
    assert sum(by_name["kvgate_retries_total"]) == 2.0
    assert sum(by_name["kvgate_received_bytes_total"]) == 100.0
    assert sum(by_name["kvgate_engine_state"]) == 1.0


def test_every_sample_is_declared() -> None:
    text, _ = scrape()
    declared = {m.name.removesuffix("_total") for m in ALL}
    assert {family.name for family in text_string_to_metric_families(text)} <= declared


def test_every_termination_code_can_be_counted() -> None:
    stats = Statistics()
    series = stats.open(("s", "/", ""))
    for code in OUTCOMES:
        ctx = Fake(
            request=Fake(
                method=b"POST", t_head=1.0, t0=1.0, body=None, head_bytes=0, content_length=-1,
                target=b"/t", path=b"/",
            ),
            leg=None, status=499, sent=b"/t", turned=False,
            word="", broken=(), path=b"/", policy={},
            plan=Fake(series={"": series}, kind="proxy"),
            group=None, termination=code, lane="starlette", t_end=1.0,
            bytes_sent=0, error=None, stripped=0,
        )  # fmt: skip
        stats.request(ctx)  # type: ignore[arg-type]
    assert sum(count for _, _, count in stats.snapshot(series).requests) == len(OUTCOMES)
