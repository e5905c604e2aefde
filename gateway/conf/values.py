"""One written argument -> its value, by the kind the table gives it. Raises units.BadValue."""

from __future__ import annotations

from gateway.conf import templates, units
from gateway.conf.model import Template
from gateway.conf.patterns import compile_regex
from gateway.conf.spec import Arg
from gateway.conf.suggest import did_you_mean
from gateway.conf.units import BadValue
from gateway.conf.variables import BUILT_IN, Known

TEXT_MAX = 16384  # characters of one argument


def convert(arg: Arg, text: str, known: Known = BUILT_IN) -> str | int | float | bool | Template:
    """The value of `text` as `arg` describes it: seconds, bytes, a flag, a template, text."""
    if len(text) > TEXT_MAX:
        raise BadValue(f"at most {TEXT_MAX} characters")
    if text in arg.choices and arg.kind != "flag":
        return text
    if arg.kind == "choice":
        guess = did_you_mean(text, arg.choices) if len(arg.choices) > 1 else ""
        raise BadValue(_choices(arg.choices), guess=guess)
    if arg.kind in ("time", "size", "int"):
        return _number(arg, text)
    if arg.kind == "flag":
        return units.flag(text)
    if arg.kind == "template":
        return templates.parse(text, known)
    if arg.kind == "header":
        return units.header_name(text)
    if arg.kind == "name":
        return units.name(text)
    if arg.kind == "variable":
        return units.variable(text)
    if arg.kind == "network":
        return units.network(text)
    return _text(arg, text)


def _text(arg: Arg, text: str) -> str:
    if arg.kind == "regex":
        compile_regex(text)
    if arg.kind != "text":
        if not text:
            raise BadValue("a value that is not empty")
        units.visible(text)
    if arg.kind == "uri" and (not text.startswith("/") or any(c.isspace() for c in text)):
        raise BadValue('a path that begins with "/"')
    return text


def _number(arg: Arg, text: str) -> int | float:
    read = {"time": units.seconds, "size": units.octets, "int": units.integer}[arg.kind]
    try:
        value = read(text)
    except BadValue as error:
        if not arg.choices:
            raise
        raise BadValue(f"{error.expected}, or {_choices(arg.choices)}", error.hint) from None
    if value < arg.low or (arg.high is not None and value > arg.high):
        raise BadValue(_range(arg))
    return value


def _range(arg: Arg) -> str:
    def shown(number: float) -> str:
        if arg.kind == "time":
            return f"{number * 1000:.0f}ms" if number < 1 else f"{number:.0f}s"
        return f"{number:.0f}" + (" bytes" if arg.kind == "size" else "")

    noun = {"time": "a time", "size": "a size", "int": "a whole number"}[arg.kind]
    words = f", or {_choices(arg.choices)}" if arg.choices else ""
    if arg.high is None:
        return f"{noun} of at least {shown(arg.low)}{words}"
    if arg.low == arg.high:
        return f"{shown(arg.low)}{words}"
    return f"{noun} from {shown(arg.low)} to {shown(arg.high)}{words}"


def _choices(choices: tuple[str, ...]) -> str:
    words = [f'"{choice}"' for choice in choices]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]
