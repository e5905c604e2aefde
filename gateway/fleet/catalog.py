"""Which upstream serves a model name, and what the engine calls it.

Invariant: a name that the configuration declares beats one learnt from an engine, and the first
upstream in file order keeps a name that several have. Learnt names replace that upstream's former
ones, so a model that an engine no longer lists is no longer routed there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import orjson

from native.relay import Edits

if TYPE_CHECKING:
    from gateway.fleet.engines import Group


class Named:
    """One name: its upstream, and where it is an alias, the edits there and back."""

    __slots__ = ("alias", "edits", "group", "model", "quoted")

    def __init__(self, group: Group, model: str, alias: str) -> None:
        self.group = group
        self.model = model  # as the engine knows it
        self.alias = alias  # as clients know it
        self.quoted: bytes | None = None  # the engine's name as JSON, where the request must change
        self.edits: Edits | None = None
        if alias != model:
            self.quoted = orjson.dumps(model)
            self.edits = Edits(model_to=alias.encode())


class Catalog:
    """The names of one upstream or of several."""

    __slots__ = ("_declared", "_learnt", "_open", "aware", "groups", "names")

    def __init__(self, groups: Iterable[Group]) -> None:
        self.groups = tuple(groups)
        self.aware = any(group.conf.kv.aware for group in self.groups)  # of prompts
        self.names: dict[str, Named] = {}
        self._declared: dict[str, Named] = {}
        self._learnt: dict[str, dict[str, Named]] = {}
        for group in self.groups:
            for model in group.conf.models:
                self._declared.setdefault(model, Named(group, model, model))
            for alias, model in group.conf.aliases:
                self._declared.setdefault(alias, Named(group, model, alias))
        self._open = {group.name for group in self.groups if not group.conf.models}
        self.names = dict(self._declared)

    @property
    def closed(self) -> bool:
        """Whether a name that is not here is an error: every upstream says what it serves."""
        return not self._open

    @property
    def renames(self) -> bool:
        """Whether a request may name an alias, so that its body must be read."""
        return any(named.edits is not None for named in self._declared.values())

    def learn(self, group: Group, models: Iterable[str]) -> None:
        """Takes the names that the engines of an upstream without `model` listed."""
        if group.name not in self._open:
            return
        self._learnt[group.name] = {model: Named(group, model, model) for model in models}
        names: dict[str, Named] = {}
        for member in self.groups:
            names = {**self._learnt.get(member.name, {}), **names}
        self.names = {**names, **self._declared}

    def find(self, model: str) -> Named | None:
        return self.names.get(model)
