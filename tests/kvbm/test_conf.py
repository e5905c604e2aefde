"""kvbm's table of directives: complete, right in its examples; mistakes are told well."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from gateway.conf import ConfigErrors, render_errors
from gateway.conf.spec import Directive
from kvbm import reference
from kvbm.conf import load_text, read
from kvbm.conf.directives import TABLE
from kvbm.conf.model import Address, Config, Disk, Host
from kvbm.reload import changes, directive

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "KVBM_ADMIN_TOKEN": "t", "KVBM_SOCKET_TOKEN": "s", "KVBM_ACCESS_KEY": "a",
    "KVBM_SECRET_KEY": "k",
}  # fmt: skip
DISK = "disk { path d; size 1g; }"
AT = DISK + "remote { url s3://b; endpoint "
WRAP = {
    "main": "@\n" + DISK,
    "host": "host { @ }",
    "disk": "host { size 1g; } disk { @ }",
    "remote": DISK + "remote { @ }",
}
NEEDED = {"host": {"size": "size 1g;"}, "disk": {"path": "path d;", "size": "size 1g;"},
          "remote": {"url": "url s3://b;"}}  # fmt: skip


def wrapped(directive: Directive, context: str) -> str:
    needed = NEEDED.get(context, {})
    extra = " ".join(text for name, text in needed.items() if name != directive.name)
    text = WRAP[context].replace("@", f"{directive.example} {extra}")
    return text.replace(DISK, "") if directive.name == "disk" else text


def config(text: str) -> Config:
    return load_text(text, environment=ENVIRONMENT)


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        config(text)
    return [error.message for error in caught.value.errors]


@pytest.mark.parametrize("name", ["directives", "metrics"])
def test_generated_pages_are_what_the_tables_give(name: str) -> None:
    assert (ROOT / "docs" / f"kvbm-{name}.md").read_text() == reference.PAGES[name]()


@pytest.mark.parametrize("directive", TABLE.directives, ids=lambda d: d.name)
def test_entry_is_complete(directive: Directive) -> None:
    assert directive.doc.endswith(".")
    assert directive.example
    assert all(TABLE.named(name) for name in directive.see)


@pytest.mark.parametrize(
    ("directive", "context"),
    [(d, c) for d in TABLE.directives for c in d.contexts],
    ids=lambda v: v.name if isinstance(v, Directive) else v,
)
def test_example_of_each_directive_is_right_in_each_of_its_blocks(
    directive: Directive, context: str
) -> None:
    # The user of an example need not exist.
    config(wrapped(directive, context).replace("allow_user vllm", "allow_user root"))


@pytest.mark.parametrize("directive", TABLE.directives, ids=lambda d: d.name)
def test_what_is_called_the_default_is_the_default(directive: Directive) -> None:
    for context in directive.contexts:
        if directive.default:
            text = wrapped(directive, context)
            written = text.replace(directive.example, f"{directive.name} {directive.default};")
            assert config(written) == config(text.replace(directive.example, ""))


def test_the_shipped_example_has_no_warning() -> None:
    loaded = read(str(ROOT / "examples" / "kvbm.conf"))
    assert loaded.warnings == ()
    assert loaded.config.host == Host(32 << 30)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no tier: nothing would be kept"),
        ("disk { path d; }", '"disk" needs "size"'),
        ("disk { path d; size 1m; }", "a disk tier needs at least 8m, got 1048576 bytes"),
        ("disk { path d; size 1g; admit on_evict; }", '"on_evict" needs a "host" block'),
        ("disk { path d; size 1g; admit always times=2; }", '"times" goes with "reuse"'),
        ("remote { url s3://b; }", '"remote" needs "disk" or "host"'),
        (DISK + "remote { url b; }", '"b" is no address of an object store'),
        (DISK + "remote { url memory://b; }", '"memory://b" is no address of an object store'),
        (DISK + "remote { url s3:///x; }", '"s3:///x" names no bucket'),
        (DISK + "remote { url s3://a:b@c/d; }", '"s3://..." has a password in it'),
        (AT + "nonsense; }", '"nonsense" is no address of a store\'s server'),
        (AT + "ftp://h; }", '"ftp://h" is no address of a store\'s server'),
        (AT + "HTTP://h; }", '"HTTP://h" is no address of a store\'s server'),
        (AT + "http://; }", '"http://" is no address of a store\'s server'),
        (AT + "http://h:x; }", '"http://h:x" is no address of a store\'s server'),
        (AT + "https://a:b@h; }", '"endpoint" has a password in it'),
        (DISK + "admin 127.0.0.1:1;", '"admin" over TCP needs "admin_token"'),
        (DISK + "admin 127.0.0.1;", '"127.0.0.1" has no port'),
        (DISK + "events 5600;", '"5600" is no endpoint of ZeroMQ'),
        (DISK + "allow_user nobody-has-this-name;", 'unknown user "nobody-has-this-name"'),
        (DISK + "upstream u { }", 'kvgate\'s "upstream" is not available'),
        ("disc { path d; size 1g; }", 'unknown directive "disc" in "main" (did you mean "disk"?)'),
    ],
)
def test_mistakes_are_told(text: str, message: str) -> None:
    assert any(message in found for found in mistakes(text)), mistakes(text)


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("error_log f/logs/k.log;", "f/logs", "{0}/f\" is no directory"),
        ("error_log d;", "d;", "{0}/d\" is a directory"),
        ("pid f/k.pid;", "f/k", "{0}/f\" is no directory"),
        ("socket f/s;", "f/s", "{0}/f\" is no directory"),
        ("socket f;", "f;", "{0}/f\" is there and is no socket"),
        ("admin unix:f/s;", "unix:", "{0}/f\" is no directory"),
        ("metrics unix:d;", "unix:", "{0}/d\" is there and is no socket"),
        ("events ipc://{0}/f/e;", "ipc:", "{0}/f\" is no directory"),
        ("events tcp://*:1 replay=ipc://{0}/f;", "replay", "{0}/f\" is there and is no socket"),
        ("disk {{ path f; size 1g; }}", "f;", "{0}/f\" is no directory"),
        ("remote {{ url file://{0}/f/x; }}", "file:", "{0}/f\" is no directory"),
    ],
)
def test_what_stands_in_a_paths_way_is_told_where_it_is_named(
    tmp_path: Path, text: str, at: str, message: str
) -> None:
    (tmp_path / "f").write_text("precious")
    (tmp_path / "d").mkdir()
    said = text.format(tmp_path)
    whole = said if said.startswith("disk") else f"{said} disk {{ path d; size 1g; }}"
    with pytest.raises(ConfigErrors) as caught:
        load_text(whole, prefix=str(tmp_path), environment=ENVIRONMENT)
    [error] = caught.value.errors
    assert message.format(tmp_path) in error.message
    assert (error.place.line, error.place.column) == (1, said.index(at) + 1)


def test_what_is_not_there_yet_stands_in_no_ones_way(tmp_path: Path) -> None:
    text = (
        "error_log a/k.log; pid b/k.pid; socket c/s; admin unix:d/s; events ipc://{0}/e/s;"
        " disk {{ path f/g; size 1g; }} remote {{ url file://{0}/h/i; }}"
    )
    load_text(text.format(tmp_path), prefix=str(tmp_path))
    load_text(f"error_log /dev/null; {DISK}", prefix=str(tmp_path))
    assert list(tmp_path.iterdir()) == [], "a test of a configuration makes nothing"


def test_secrets_are_hidden_and_warned_of() -> None:
    with pytest.raises(ConfigErrors) as caught:
        config("admin_token sesame; disk { path d; sise 1g; }")
    assert "sesame" not in render_errors(caught.value.errors, table=TABLE)
    assert "secret" in render_errors(caught.value.errors, table=TABLE)


def test_addresses_and_paths_begin_at_the_prefix() -> None:
    found = load_text(DISK + "socket s; admin unix:a;", prefix="/srv")
    assert (found.socket, found.admin) == ("/srv/s", (Address(unix_path="/srv/a"),))
    assert found.disk is not None
    assert found.disk.path == "/srv/d"


def test_a_reload_says_what_needs_a_restart() -> None:
    old = config(DISK + "connections 5; error_log a;")
    new = config("disk { path d; size 2g; verify 1h; } error_log b; host { size 1g; }")
    found = changes(old, new)
    assert set(found.live) == {"error_log", "disk.verify"}
    assert set(found.restart) == {"connections", "disk.size", "host"}
    assert found.config.disk is not None
    assert (found.config.disk.size, found.config.disk.verify_s) == (1 << 30, 3600)
    assert (found.config.error_log, found.config.connections) == (new.error_log, 5)


def test_a_reload_speaks_of_directives() -> None:
    """Whatever differs, the name is one that the file may hold."""
    for kind, context in ((Config, "main"), (Disk, "disk")):
        for field in fields(kind):
            if field.name not in ("file", "prefix"):
                assert TABLE.find(directive(field.name), context), field.name
    old = config(f"host {{ size 1g; }} {DISK}")
    new = config("host { size 1g; } disk { path d; size 1g; admit on_evict; }")
    assert changes(old, new).restart == ("disk.admit",)
    verify = config("host { size 1g; } disk { path d; size 1g; verify 1h rate=1m; }")
    assert changes(old, verify).live == ("disk.verify",)


def test_the_command_says_where_and_what() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvbm", "-t", "-c", "/dev/stdin"], input="disk { pth d; }",
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot read the configuration" in done.stderr
