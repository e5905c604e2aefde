"""The model of a multipart form."""

import pytest

from gateway.forms import model_span

TYPE = b'multipart/form-data; boundary="b1"'


def form(*parts: tuple[bytes, bytes]) -> bytes:
    return b"".join(b"--b1\r\n%b\r\n\r\n%b\r\n" % part for part in parts) + b"--b1--\r\n"


def field(name: bytes) -> bytes:
    return b'Content-Disposition: form-data; name="%b"' % name


FILE = (
    field(b"file") + b'; filename="a.wav"\r\nContent-Type: audio/wav',
    b"\x00--b\r\n\r\n1\xff" * 9,
)


def read(body: bytes, kind: bytes = TYPE) -> bytes | None:
    span = model_span(body, kind)
    return None if span is None else body[slice(*span)]


def test_found_before_and_behind_the_file() -> None:
    assert read(form((field(b"model"), b"whisper"), FILE)) == b"whisper"
    assert read(form(FILE, (field(b"model"), b"whisper"))) == b"whisper"


def test_last_one_counts() -> None:
    assert read(form((field(b"model"), b"a"), FILE, (field(b"model"), b"b"))) == b"b"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (form(FILE), TYPE),
        (form((field(b"xmodel"), b"a")), TYPE),
        (form((field(b"model") + b'; filename="m"', b"a")), TYPE),
        (form((field(b"model"), b"a")), b"multipart/form-data"),
        (form((field(b"model"), b"a")), b"application/json"),
        (form((field(b"model"), b"a" * 1000)), TYPE),
        (b"--b1\r\n" + field(b"model"), TYPE),
        (b"--b1", TYPE),
        (b"", TYPE),
    ],
)
def test_no_model(body: bytes, kind: bytes) -> None:
    assert read(body, kind) is None
