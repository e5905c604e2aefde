"""Models, aliases, fields a stranger must not set, and closed paths."""

from types import SimpleNamespace as Fake

import pytest

from gateway import errors, route
from gateway.conf.model import EngineLine, Upstream
from gateway.context import Context
from gateway.fleet.catalog import Catalog

LINE = (EngineLine("e:1", "e", 1, ""),)


def group(name: str, *models: str, **aliases: str) -> Fake:
    return Fake(name=name, conf=Upstream(name, LINE, models, tuple(aliases.items())))


def settled(body: bytes, *groups: Fake, trust: bool = False, **headers: bytes) -> Context:
    catalog = Catalog(groups)  # type: ignore[arg-type]
    lone = groups[0] if len(groups) == 1 else None
    plan = Fake(catalog=catalog, group=lone, trust=trust, target=None, names=lambda _: catalog)
    sent = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    request = Fake(method=b"POST", target=b"/v1/x", body=body)
    request.get = lambda name, default=None: sent.get(name, default)
    ctx = Context(Fake(), request, plan, b"/v1/x", "r")  # type: ignore[arg-type]
    if route.looks_like_json(ctx):
        ctx.scan = route.read(ctx)
    route.settle(ctx, b"")
    return ctx


def test_body_passes_as_it_came() -> None:
    body = b'{ "b":1.0,"a":1e-7, "b":2,"model":"m","x":"\\u00e9" }'
    assert settled(body, group("u", "m")).body is body


def test_alias_is_spliced_in_and_back() -> None:
    ctx = settled(b'{"x":1.0,"model" : "small","y":[1]}', group("u", "org/m", small="org/m"))
    assert ctx.body == b'{"x":1.0,"model" : "org/m","y":[1]}'
    assert ctx.model == "small" and ctx.edits is not None
    assert ctx.edits.event(b'data: {"model":"org/m"}\n\n') == b'data: {"model":"small"}\n\n'


def test_unknown_model_is_404_in_openais_words() -> None:
    with pytest.raises(errors.ModelNotFound) as found:
        settled(b'{"model":"other"}', group("u", "m"))
    assert found.value.code == "model_not_found" and found.value.param == "model"


def test_upstream_without_models_takes_any_name() -> None:
    assert settled(b'{"model":"any"}', group("u")).group.name == "u"  # type: ignore[union-attr]


def test_no_model_goes_to_the_one_upstream_as_in_vllm() -> None:
    assert settled(b'{"messages":[]}', group("u", "m")).group.name == "u"  # type: ignore[union-attr]
    with pytest.raises(errors.ModelRequired):
        settled(b'{"messages":[]}', group("u", "m"), group("v", "n"))


def test_the_model_chooses_the_upstream() -> None:
    ctx = settled(b'{"model":"n"}', group("u", "m"), group("v", "n"))
    assert ctx.group is not None and ctx.group.name == "v"
    with pytest.raises(errors.ModelNotFound):
        settled(b'{"model":"x"}', group("u", "m"), group("v", "n"))


def test_field_names_are_case_sensitive() -> None:
    """EA#1863: `Model` is not `model`."""
    assert settled(b'{"Model":"x"}', group("u", "m")).model == ""


def test_last_model_wins_as_in_python() -> None:
    ctx = settled(b'{"model":"a","model":"b"}', group("u", "a"), group("v", "b"))
    assert ctx.group is not None and ctx.group.name == "v"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","kv_transfer_params":{"do_remote_prefill":true}}',
        b'{"kv_transfer_params":1,"model":"m","kv_transfer_params":2}',
        b'{"model":"m","kv\\u005ftransfer_params":{"a":"}"},"ec_transfer_params":null}',
        b'{"model":"m","vllm_xargs":{"kv_transfer_params":{},"a":1,"kv_cache_report_mode":"x"}}',
    ],
)
def test_fields_a_stranger_must_not_set(body: bytes) -> None:
    ctx = settled(body, group("u", "m"))
    assert ctx.body is not None and ctx.stripped
    for name in (b"transfer_params", b"u005f", b"report_mode"):
        assert name not in ctx.body
    assert settled(body, group("u", "m"), trust=True).body is body


def test_what_is_not_json_but_says_so_is_refused() -> None:
    with pytest.raises(errors.InvalidJson):
        settled(b"[1]", group("u", "m"), content_type=b"application/json")
    with pytest.raises(errors.InvalidJson):
        settled(b'{"model":', group("u", "m"))
    # UTF-16 is JSON to Python's json.loads: it must not carry fields past the scan.
    with pytest.raises(errors.InvalidJson):
        settled('{"model":"m"}'.encode("utf-16"), group("u", "m"))


def test_other_types_pass_unread_unless_they_are_json_in_disguise() -> None:
    assert settled(b"--x\r\n", group("u", "m"), content_type=b"multipart/form-data").scan is None
    body = b' {"kv_transfer_params":1}'
    assert settled(body, group("u"), content_type=b"text/plain").body == b" {}"
    assert settled(b"{not json", group("u"), content_type=b"text/plain").body == b"{not json"


def test_control_paths_are_closed_also_behind_a_rewritten_prefix() -> None:
    for path, uri, pattern in [
        (b"/sleep", None, b"/"),
        (b"/api/sleep", b"/", b"/api/"),
        (b"/api/load_lora_adapter", b"/v1/", b"/api/"),
    ]:
        plan = Fake(uri=uri, pattern=pattern, path_open=False, target=None)
        request = Fake(method=b"POST", target=path, path=path, query=None)
        ctx = Context(Fake(), request, plan, path, "r")  # type: ignore[arg-type]
        with pytest.raises(errors.PathNotFound):
            route.aim(ctx)
        plan.path_open = True
        assert route.aim(ctx).endswith(path.rpartition(b"/")[2])


def test_target_goes_as_sent() -> None:
    plan = Fake(uri=None, pattern=b"/", path_open=False, target=None)
    request = Fake(method=b"POST", target=b"//v1/%63hat?x=1", path=b"//v1/%63hat", query=b"x=1")
    ctx = Context(Fake(), request, plan, b"/v1/chat", "r")  # type: ignore[arg-type]
    assert route.aim(ctx) == b"/v1/chat" and ctx.target == b"//v1/%63hat?x=1"
