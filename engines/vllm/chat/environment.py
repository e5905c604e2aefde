"""The Jinja2 environment Hugging Face renders chat templates in: same text for the same input.

Sandboxed and immutable, `trim_blocks`, `lstrip_blocks`, loop controls, `{% generation %}`, a
`tojson` that is `json.dumps`, `raise_exception`, `strftime_now`. Some things are faster here and
equal in effect: attributes and methods of plain strings, dicts, loops and namespaces that the
sandbox always grants are not asked for one by one, and JSON of tool definitions is remembered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from engines.vllm.chat.tools import FORMS_MAX, ToolSets

Clock = Callable[[], datetime]

_DICT_NAMES = frozenset(dir(dict))
# What the sandbox grants of these types; it wraps `format`, and keeps back what changes a dict.
_OF_TEXT = frozenset(n for n in dir(str) if n[0] != "_") - {"format", "format_map"}
_OF_DICT = frozenset({"get", "items", "keys", "values"})
_OF_LOOP = frozenset({"first", "last", "index", "index0", "length", "previtem", "nextitem"})


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model said; it renders its body.

    The body is a call block, so that a `set` inside does not reach outside, as in transformers.
    """

    tags = {"generation"}  # noqa: RUF012  (the name and type are Jinja2's)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_said"), [], [], body)
        return block.set_lineno(line)

    def _said(self, caller: Macro) -> str:
        said: str = caller()
        return said


class ChatEnvironment(ImmutableSandboxedEnvironment):
    def __init__(self, tool_sets: ToolSets, now: Clock) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        self._known = tool_sets.known
        self._now = now
        self.filters["tojson"] = self._tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime_now

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute not in _DICT_NAMES:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
            if attribute in _OF_DICT:
                return getattr(obj, attribute)
        elif kind is str:
            if attribute in _OF_TEXT:
                return getattr(obj, attribute)
        elif kind is LoopContext:
            if attribute in _OF_LOOP:
                return getattr(obj, attribute)
        elif kind is Namespace and attribute[0] != "_":
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is dict and type(argument) is str and argument not in _DICT_NAMES:
            try:
                return obj[argument]
            except KeyError:
                return self.undefined(obj=obj, name=argument)
        return super().getitem(obj, argument)

    # Positional names as in Jinja2: a template may pass any keyword.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if type(__obj) is BuiltinMethodType and type(__obj.__self__) in (str, dict):
            kwargs.pop("_block_vars", None)
            kwargs.pop("_loop_vars", None)
            return __obj(*args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def _strftime_now(self, format: str) -> str:
        return self._now().strftime(format)

    def _tojson(
        self,
        x: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        known = self._known.get(id(x))
        if known is None or known[0] is not x:
            return json.dumps(
                x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                sort_keys=sort_keys,
            )
        forms = known[1]
        form = repr((ensure_ascii, indent, separators, sort_keys))
        text = forms.get(form)
        if text is None:
            text = json.dumps(
                x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                sort_keys=sort_keys,
            )
            if len(forms) < FORMS_MAX:
                forms[form] = text
        return text


def variables(source: str) -> frozenset[str]:
    """Names a template takes from its context, as vLLM finds them: without our two globals."""
    environment = ImmutableSandboxedEnvironment(extensions=[Generation, loopcontrols])
    return frozenset(meta.find_undeclared_variables(environment.parse(source)))


def needs_leading_system(source: str) -> bool:
    """Whether a template refuses a system message after the first turn, as vLLM probes it.

    Its probe has none of the globals and extensions of rendering but loop controls: a template
    that needs them counts as refusing.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    messages = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        environment.from_string(source).render(messages=messages, add_generation_prompt=False)
    except TemplateError:
        return True
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        return True  # the engine would not start
    return False


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(message)
