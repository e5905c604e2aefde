"""`map` and `set`: variables a configuration makes itself, their moments and loops."""

from __future__ import annotations

from dataclasses import replace

from gateway.conf import variables
from gateway.conf.check_args import bad_variable
from gateway.conf.errors import quoted
from gateway.conf.model import Assign, Map, MapEntry, Template
from gateway.conf.node import Node
from gateway.conf.parser import Statement
from gateway.conf.patterns import captures, compile_regex
from gateway.conf.resolve_parts import check_captures, misplaced_variables
from gateway.conf.setting import Setting
from gateway.conf.sources import Token
from gateway.conf.templates import BadVariable, parse, variables_of
from gateway.conf.units import BadValue
from gateway.conf.values import TEXT_MAX
from gateway.conf.variables import ORDER, When

ENTRIES_MAX = 100_000  # lines of one map
CHAIN_MAX = 64  # maps that read each other, one behind the other
_WORDS = ("hostnames", "volatile")


def resolve_maps(http: Node, setting: Setting) -> dict[str, Map]:
    """All maps by the name of their variable. Their moments are entered in `setting.known`."""
    found: dict[str, Map] = {}
    nodes: dict[str, Node] = {}
    for node in http.all("map"):
        name = node.get("variable")
        if name in nodes:
            hint = f"first in {nodes[name].place.file}:{nodes[name].place.line}"
            message = f"duplicate map of {quoted('$' + name)}"
            setting.report.error(node.token("variable"), message, hint)
        elif _is_free(name, node.token("variable"), setting):
            nodes[name] = node
            found[name] = _map(node, setting)
    return _with_moments(found, nodes, setting)


def _is_free(name: str, at: Token, setting: Setting) -> bool:
    """Whether a configuration may make a variable of that name."""
    if variables.find(name) is None:
        return True
    setting.report.error(at, f"{quoted('$' + name)} is the gateway's own variable", "rename yours")
    return False


def _map(node: Node, setting: Setting) -> Map:
    entries: list[MapEntry] = []
    seen: dict[tuple[str, str], Statement] = {}
    bare = {line.name.text for line in node.lines if not line.args and not line.name.quoted}
    default = None
    for line in node.lines[:ENTRIES_MAX]:
        text = line.name.text
        if text in _WORDS and not line.args and not line.name.quoted:
            continue
        value = _value(line, node, setting)
        entry = _entry(line, value, "hostnames" in bare, setting)
        if entry is None:
            continue
        key = (entry.kind, entry.key)
        first = seen.setdefault(key, line)
        if first is not line:
            hint = f"first in line {first.name.line}"
            setting.report.error(line.name, f"duplicate key {quoted(text)} in a map", hint)
        elif entry.kind == "default":
            default = value
        else:
            entries.append(entry)
    if len(node.lines) > ENTRIES_MAX:
        setting.report.error(
            node.lines[ENTRIES_MAX].name, f"more than {ENTRIES_MAX} lines in a map"
        )
    return Map(
        name=node.get("variable"),
        source=node.get("source"),
        entries=tuple(entries),
        default=default or Template(()),
        hostnames="hostnames" in bare,
        volatile="volatile" in bare,
        place=node.place,
    )


def _value(line: Statement, node: Node, setting: Setting) -> Template:
    if line.block is not None:
        setting.report.error(line.name, "a line of a map takes no block", 'end it with ";"')
    elif len(line.args) != 1:
        at = line.args[1] if len(line.args) > 1 else line.name
        hint = "write: KEY VALUE; with quotes around blanks"
        message = f"a line of a map takes 1 value, not {len(line.args)}"
        setting.report.error(at, message, hint)
    elif len(line.args[0].text) > TEXT_MAX:
        setting.report.error(line.args[0], f'"map" must be at most {TEXT_MAX} characters')
    else:
        try:
            return parse(line.args[0].text, setting.known)
        except BadVariable as error:
            bad_variable(error, line.args[0], node, setting.report)
        except BadValue as error:
            setting.report.error(line.args[0], f'"map" must be {error.expected}')
    return Template(())


def _entry(line: Statement, value: Template, hostnames: bool, setting: Setting) -> MapEntry | None:
    text = line.name.text
    if text == "default":
        return MapEntry("default", "", value)
    if text.startswith("~"):
        return _regex_entry(line, value, setting)
    key = text.removeprefix("\\").lower()  # a backslash takes the meaning from a word or sign
    if hostnames and "*" not in key.strip("*."):
        if key.startswith("*."):
            return MapEntry("leading", key[1:], value)
        if key.endswith(".*"):
            return MapEntry("trailing", key[:-1], value)
        if key.startswith(".") and len(key) > 1:
            return MapEntry("domain", key, value)
    return MapEntry("exact", key, value)


def _regex_entry(line: Statement, value: Template, setting: Setting) -> MapEntry | None:
    text = line.name.text
    kind = "regex_any_case" if text.startswith("~*") else "regex"
    pattern = text.removeprefix("~").removeprefix("*")
    try:
        compile_regex(pattern, ignore_case=kind == "regex_any_case")
        check_captures(captures(pattern), line.name, setting)
    except BadValue as error:
        setting.report.error(line.name, f'"map" must have {error.expected}', error.hint)
        return None
    return MapEntry(kind, pattern, value)


def _with_moments(
    found: dict[str, Map], nodes: dict[str, Node], setting: Setting
) -> dict[str, Map]:
    """Each map's moment: the latest of what it reads. A map that leads back to itself is an error;
    a `set` cannot be part of a loop, since it is worked out once, where it stands."""
    reads = {name: _reads(entry) for name, entry in found.items()}
    moments: dict[str, When] = {}

    def moment(name: str, path: tuple[str, ...]) -> When:
        if name not in found:
            return setting.known.when(name) or "request"
        if len(path) >= CHAIN_MAX:
            message = f"more than {CHAIN_MAX} maps read each other in a row"
            setting.report.error(nodes[name].token("variable"), message)
            moments[name] = "request"
        elif name in path:
            loop = " -> ".join(f"${step}" for step in (*path[path.index(name) :], name))
            setting.report.error(nodes[name].token("variable"), f"maps go round in a loop: {loop}")
            moments[name] = "request"
        if name not in moments:
            later = [moment(read, (*path, name)) for read in reads[name]]
            moments.setdefault(name, max(later, key=ORDER.index, default="request"))
        return moments[name]

    for name in found:
        setting.known.own[name] = moment(name, ())
    return {name: replace(entry, when=moments[name]) for name, entry in found.items()}


def _reads(entry: Map) -> tuple[str, ...]:
    templates = (entry.source, entry.default, *(line.value for line in entry.entries))
    return tuple(dict.fromkeys(name for text in templates for name in variables_of(text)))


def resolve_sets(block: Node, maps: dict[str, Map], setting: Setting) -> tuple[Assign, ...]:
    """The `set` lines of one block that run: those before its `return`."""
    found: list[Assign] = []
    for node in block.children:
        if node.spec.name == "return":
            break
        if node.spec.name != "set":
            continue
        name, at = node.get("variable"), node.token("variable")
        if name in maps:
            setting.report.error(at, f"{quoted('$' + name)} is a map's variable", "rename one")
        elif _is_free(name, at, setting):
            misplaced_variables(node.get("value"), node.token("value"), "request", setting)
            found.append(Assign(name, node.get("value")))
    return tuple(found)
