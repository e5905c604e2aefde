"""Where a request would go, and why: the prompt and pick phases without a request.

Invariant: nothing is counted, charged or sent, but that an engine may be asked for token ids; the
numbers are those that the same request would be decided by at this moment, in this worker.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson

from gateway import errors, pick, prompt
from gateway.conf.model import PolicyHeader
from gateway.conf.policies import BY_NAME, full_name, read
from gateway.conf.units import BadValue
from gateway.fleet.catalog import Catalog
from gateway.kv.routed import TIERS, Routed
from gateway.paths import plain
from gateway.site import policy
from native._core import Row, rewrite, scan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import EngineTable, Group
    from gateway.fleet.models import Models
    from gateway.fleet.team import Team
    from gateway.kv.decisions import Decisions
    from gateway.kv.tokens import TokenSources

Document = dict[str, Any]
DEFAULT_PATHS = (("messages", "/v1/chat/completions"), ("prompt", "/v1/completions"),
                 ("input", "/v1/embeddings"))  # fmt: skip
# Policy headers that change the decision.
WISHES = ("policy", "session", "overlap-weight", "ttft-slo", "tpot-slo", "cache-scope")
SHOWN_MAX = 200  # characters of what was asked in a message


class Explainer:
    def __init__(
        self, table: EngineTable, models: Models, tokens: TokenSources, decisions: Decisions
    ) -> None:
        self._table = table
        self._models = models
        self._tokens = tokens
        self._decisions = decisions

    async def document(self, asked: Mapping[str, Any]) -> Document:
        """`asked`: `request`, the body of an inference request (an object, or its text), and
        maybe `path`, `upstream`, `headers`. Raises GatewayError.
        """
        body = _body(asked.get("request"))
        found = scan(body)
        path = _path(asked.get("path"), found)
        wishes = _wishes(asked.get("headers") or {})
        model = found.model or ""
        group, real = self._group(asked.get("upstream"), model)
        kv = Routed(path, group, self._tokens.by_upstream[group.name])
        kv.scan, kv.body = found, body
        salt = policy.salt(wishes, found.cache_salt) if "cache-scope" in wishes else None
        kv.salt = salt or found.cache_salt or None
        kv.lora = real if real in self._models.adapters(group.name) else None
        kv.sent = rewrite(body, found, model=orjson.dumps(real)) if real != model else body
        if not prompt.begin(kv):
            await prompt.finish(kv)
        kv.wishes, kv.session = wishes, policy.key(wishes)
        method = policy.method(wishes, group.conf.balance.method)
        return self._written(kv, group, model, method)

    def _group(self, upstream: object, model: str) -> tuple[Group, str]:
        """The upstream that decides, and the name that its engines know the model by."""
        aware = [g for g in self._table.groups.values() if g.conf.kv.aware]
        if isinstance(upstream, str):
            aware = [group for group in aware if group.name == upstream]
        if not aware:
            which = f"upstream `{str(upstream)[:SHOWN_MAX]}`" if upstream else "upstream"
            raise errors.BadRequest(what=f"there is no {which} that is kv_aware")
        catalog = Catalog(aware)
        for group in aware:
            catalog.learn(group, [card["id"] for card in self._models.cards(group.name)])
        named = catalog.find(model)
        if named is not None:
            return named.group, named.model
        if len(aware) == 1 and not (model and aware[0].conf.models):
            return aware[0], model
        raise errors.ModelNotFound("model", model=model[:SHOWN_MAX])

    def _written(self, kv: Routed, group: Group, model: str, method: str) -> Document:
        now = monotonic()
        teams = [self._team(team, kv, now) for team in group.teams]
        spent_s = monotonic() - now
        best = (rows[0] for rows in teams if rows and _weighed(rows[0]))
        chosen = next(best, None) if method == "kv" else None
        how = "kv" if chosen is not None else "least_conn" if method == "kv" else method
        return {
            "upstream": group.name,
            "model": model,
            "path": kv.path.decode("ascii", "replace"),
            "policy": how,
            "prompt": {
                "source": kv.source,
                "reason": kv.reason,
                "tokens": None if kv.prompt is None else kv.prompt.tokens,
                "exact": kv.prompt is not None and kv.prompt.exact,
                "tokenize_ms": round(kv.tokenize_s * 1000, 3),
            },
            "engine": None if chosen is None else chosen["engine"],
            "disaggregate": _pair(group, kv, now),
            "decide_us": round(spent_s * 1e6, 1),
            "engines": [row for rows in teams for row in rows],
        }

    def _team(self, team: Team, kv: Routed, now: float) -> list[Document]:
        """The engines of a team, the cheapest first, those that were left out last."""
        rows: list[Row] | None = None
        if team.scorer is not None and kv.prompt is not None:
            mask = pick.mask(team, (), now)
            rows = team.scorer.explain(kv.prompt, mask, now, pick.ask(team, kv, mask))
        written = [
            self._engine(engine, None if rows is None else rows[engine.place], now)
            for engine in team.engines
        ]
        return sorted(written, key=lambda e: (bool(e["filtered"]), e.get("cost_ms", 0.0)))

    def _engine(self, engine: Engine, row: Row | None, now: float) -> Document:
        state, why = self._decisions.trust(engine)
        up = engine.state(now)
        out: Document = {
            "engine": engine.address,
            "state": up,
            "backup": engine.line.backup,
            "trust": state,
            "trust_reason": why,
            "in_flight": self._table.ledger.in_flight(engine.slot),
            "filtered": "" if up == "up" else up,
        }
        if row is None:
            return out
        if row.filtered and row.filtered != "masked":
            out["filtered"] = row.filtered
        return out | {
            "matched": {tier: getattr(row, tier) for tier in TIERS},
            "matched_tokens": sum(getattr(row, tier) for tier in TIERS),
            "uncached_tokens": row.uncached,
            "cost_ms": round(row.cost_ms, 3),
            "terms_ms": {name: round(value, 3) for name, value in row.terms},
            "ttft_ms": round(row.ttft_ms, 3),
            "waiting": row.waiting,
            "running": row.running,
            "kv_tokens": row.kv_tokens,
        }


def _pair(group: Group, kv: Routed, now: float) -> Document | None:
    """Where the prompt would be computed and answered, were it to cost alone; None where that is
    no question.
    """
    team = group.teams[0]
    if not group.conf.disaggregation.wanted or team.scorer is None or kv.prompt is None:
        return None
    mask = pick.mask(team, (), now)
    asked = pick.ask(team, kv, mask)
    found = team.scorer.pair(kv.prompt, team.may_prefill(now), mask, now, 0, asked)
    if found is None:
        return None
    first = None if found.prefill is None else team.engines[found.prefill.place].address
    return {
        "why": found.reason if first else pick.ONE.get(found.reason, found.reason),
        "prefill": first,
        "decode": team.engines[found.decode.place].address,
        "one_ms": _finite(found.local_ms),
        "two_ms": _finite(found.remote_ms),
        "transfer_tokens": found.transfer_tokens,
        "transfer_ms": round(found.transfer_ms, 3),
    }


def _finite(cost_ms: float) -> float | None:
    return round(cost_ms, 3) if math.isfinite(cost_ms) else None


def _weighed(row: Document) -> bool:
    return "cost_ms" in row and not row["filtered"]


def _body(request: object) -> bytes:
    if isinstance(request, dict):
        return orjson.dumps(request)
    if not isinstance(request, str):
        raise errors.BadRequest(what="`request` must be the body of a request, as object or text")
    body = request.encode("utf-8", "surrogatepass")
    try:
        scan(body)
    except ValueError as error:
        raise errors.InvalidJson(what=str(error)) from None
    return body


def _path(path: object, found: Any) -> bytes:
    if path is None:
        guess = next((p for name, p in DEFAULT_PATHS if found.span(name) is not None), "")
        if not guess:
            raise errors.BadRequest(what="`path` must be given: the body has no prompt")
        return guess.encode()
    seen = plain(path.encode("utf-8", "surrogatepass")) if isinstance(path, str) else None
    if seen is None:
        raise errors.BadRequest(what="`path` must be a request path such as /v1/chat/completions")
    return seen


def _wishes(headers: object) -> dict[str, str | float]:
    """Policy headers as a location without bounds would read them."""
    if not isinstance(headers, dict):
        raise errors.BadRequest(what="`headers` must be an object")
    wishes: dict[str, str | float] = {}
    for name, value in headers.items():
        known = BY_NAME.get(str(name).lower())
        if known is None:
            if str(name).lower().startswith(policy.OWN_PREFIX.decode()):
                said = str(name)[:SHOWN_MAX]
                raise errors.BadRequest(what=f"there is no policy header `{said}`")
            continue
        short = known.name.lower()
        header = PolicyHeader(full_name(known), known.kind, known.words, known.low, known.high)
        try:
            wishes[short] = read(header, str(value).strip())
        except BadValue as error:
            name = header.name
            raise errors.BadPolicy(name, header=name, expected=error.expected) from None
    return {name: value for name, value in wishes.items() if name in WISHES}
