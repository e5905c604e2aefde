"""Stored responses find their engine; the map stays bounded."""

from types import SimpleNamespace as Fake

from gateway.fleet.responses import ResponseMap, id_in_path


def test_ids_in_paths() -> None:
    assert id_in_path(b"/v1/responses/resp_1") == b"resp_1"
    assert id_in_path(b"/v1/responses/resp_1/cancel") == b"resp_1"
    assert id_in_path(b"/v1/responses") is None
    assert id_in_path(b"/v1/responses/") is None
    assert id_in_path(b"/v1/chat") is None


def test_bounded_in_number_and_age() -> None:
    engine = Fake(upstream="u", address="e:1")
    table = Fake(groups={"u": Fake(by_address={"e:1": engine})})
    kept = ResponseMap(kept_max=2, kept_s=10.0)
    for number in range(3):
        kept.put(b"resp_%d" % number, engine, float(number))  # type: ignore[arg-type]
    assert len(kept) == 2
    assert kept.find(b"resp_0", table, 3.0) is None  # type: ignore[arg-type]
    assert kept.find(b"resp_1", table, 3.0) is engine  # type: ignore[arg-type]
    assert kept.find(b"resp_1", table, 12.0) is None  # type: ignore[arg-type]


def test_an_engine_that_was_removed_is_forgotten() -> None:
    kept = ResponseMap()
    kept.put(b"resp_1", Fake(upstream="u", address="e:1"), 0.0)  # type: ignore[arg-type]
    assert kept.find(b"resp_1", Fake(groups={}), 1.0) is None  # type: ignore[arg-type]
    assert len(kept) == 0
