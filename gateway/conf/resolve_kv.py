"""What an `upstream` block says about KV caches -> `model_kv.KvSettings`."""

from __future__ import annotations

import math
import os
import re

from gateway.conf import hub
from gateway.conf.errors import quoted
from gateway.conf.files import Unreadable, read_text
from gateway.conf.model_kv import FIT, NO_KV, KvSettings, TokenizerSource
from gateway.conf.model_text import Template
from gateway.conf.node import Node
from gateway.conf.resolve_parts import misplaced_variables
from gateway.conf.setting import Setting
from gateway.conf.sources import Token

TEMPLATE_BYTES_MAX = 2 << 20
WEIGHT_MAX = 100.0
CONSTANT_MAX = 1e6  # ms
CHUNK_MAX = 1 << 20
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?(e-?[0-9]{1,2})?")


def resolve_kv(node: Node, setting: Setting) -> KvSettings:
    aware = node.one("kv_aware")
    events, slo, profile = (node.one(name) for name in ("kv_events", "slo", "profile"))
    return KvSettings(
        aware=node.has("kv_aware"),
        events=NO_KV.events if events is None else events.get("source"),
        quiet_s=NO_KV.quiet_s if events is None else events.get("quiet", NO_KV.quiet_s),
        tokenizer=_tokenizer(node.one("tokenizer"), setting),
        block_size=_tokens(node, "block_size"),
        capacity_tokens=_tokens(node, "kv_capacity"),
        profile=NO_KV.profile if profile is None else profile.get("name", NO_KV.profile),
        fit=() if profile is None else _fit(profile, setting),
        chunk_tokens=int(_number(profile, "chunk", CHUNK_MAX, setting) or 0),
        ttft_s=0.0 if slo is None else slo.get("ttft", 0.0),
        tpot_s=0.0 if slo is None else slo.get("tpot", 0.0),
        e2el_s=0.0 if slo is None else slo.get("e2el", 0.0),
        overlap_weight=_weight(aware, setting),
        session=_session(aware, setting),
    )


def _tokens(node: Node, name: str) -> int:
    line = node.one(name)
    return 0 if line is None else int(line.get("tokens", 0))


def _weight(aware: Node | None, setting: Setting) -> float:
    weight = _number(aware, "overlap_weight", WEIGHT_MAX, setting)
    return NO_KV.overlap_weight if weight is None else weight


def _session(aware: Node | None, setting: Setting) -> Template | None:
    key: Template | None = None if aware is None else aware.get("session")
    if key is not None and aware is not None:
        if key.constant is not None:
            setting.report.warn(aware.token("session"), "the session is the same for all requests")
        misplaced_variables(key, aware.token("session"), "route", setting)
    return key


def _fit(profile: Node, setting: Setting) -> tuple[tuple[str, float], ...]:
    found = ((name, _number(profile, name, CONSTANT_MAX, setting)) for name in FIT)
    return tuple((name, value) for name, value in found if value is not None)


def _number(node: Node | None, name: str, most: float, setting: Setting) -> float | None:
    """A parameter that is a plain number; None where it is absent or wrong."""
    text = None if node is None else node.get(name)
    if text is None or node is None:
        return None
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 <= value <= most:
        message = (
            f"{quoted(node.spec.name)} parameter {quoted(f'{name}={text}')}: expected a number "
            f"from 0 to {most:.0f}"
        )
        setting.report.error(node.token(name), message)
        return None
    return value


def _tokenizer(line: Node | None, setting: Setting) -> TokenizerSource:
    if line is None:
        return NO_KV.tokenizer
    source, token = line.get("source", "auto"), line.token("source")
    template = _template(line, setting)
    if source in ("auto", "remote", "off"):
        if template and source != "auto":
            message = f"{quoted('chat_template')} has no effect with {quoted(source)}"
            setting.report.warn(line.token("chat_template"), message)
        return TokenizerSource(source, chat_template=template)
    path = os.path.join(setting.directory, source)
    if os.path.isabs(source) or source.startswith(".") or os.path.exists(path):
        return TokenizerSource("files", _files(path, token, setting), "", template)
    if not hub.is_name(source):
        message = f"{quoted(source)} is neither a folder that is here nor a model's name"
        setting.report.error(token, message, "a name is written ORG/NAME")
    elif not hub.cached(source, setting.environment):
        message = f"the model {quoted(source)} is not in this machine's cache of models"
        hint = "HF_HOME says where that is; it is looked at again at start, else engines tokenise"
        setting.report.warn(token, message, hint)
    return TokenizerSource("name", "", source, template)


def _files(path: str, token: Token, setting: Setting) -> str:
    """The path of tokenizer.json; reported where it is not there."""
    if os.path.isdir(path):
        path = os.path.join(path, hub.TOKENIZER)
    if not os.path.isfile(path):
        setting.report.error(token, f"there is no file {quoted(path)}")
    elif not os.access(path, os.R_OK):
        setting.report.error(token, f"cannot read {quoted(path)}: permission denied")
    return os.path.abspath(path)


def _template(line: Node, setting: Setting) -> str:
    written = line.get("chat_template")
    if written is None:
        return ""
    path = os.path.join(setting.directory, written)
    try:
        read_text(path, TEMPLATE_BYTES_MAX)
    except Unreadable as error:
        message = f"cannot read {quoted(path)}: {error}"
        setting.report.error(line.token("chat_template"), message)
    return os.path.abspath(path)
