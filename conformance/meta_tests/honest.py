"""An honest attention in NumPy, cut into steps that a saboteur can replace one at a time, and a way to judge either."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from mha_backends import reference
from mha_conformance.cases import Case, Level, catalogue
from mha_conformance.judge.alone import alone
from mha_conformance.judge.around import around
from mha_conformance.judge.blame import blamed
from mha_conformance.judge.judge import judge, unclaimed
from mha_conformance.judge.verdict import FAILING, Verdict
from mha_conformance.run.implementation import Implementation
from mha_conformance.run.perform import Asked, perform
from mha_core import AttentionResult, Backend, Call, Claims, KVCache, bind
from mha_spec.clauses import load
from mha_spec.equations_dropout import philox

ALL = reference.create().claims


class Honest:
    """Attention by the text, in float64, rounded once. Every method is a step of MHA-ATTN-9."""

    claims: Claims = replace(ALL, arrays="numpy", determinism="run-to-run", features=ALL.features - {"vjp", "jvp"})
    attend_vjp: Callable[..., Any] | None = None

    def attend(self, call: Call) -> AttentionResult:
        with np.errstate(all="ignore"):
            q, k, v = (np.asarray(x).astype(np.float64) for x in (call.query, call.key, call.value))
            k, v = self.heads(k, q.shape[-3]), self.heads(v, q.shape[-3])
            s = self.biased(self.capped(self.scores(q, k, self.scale(call)), call.softcap), call.bias)
            see = np.broadcast_to(self.visible(call), s.shape)
            sink = np.full((*s.shape[:-1], 1), -np.inf) if call.sink_logits is None else self.sink(call.sink_logits, s)
            a, lse = self.softmax(np.clip(s, -1.7e308, 1.7e308), see, sink)
            output = self.values(self.dropped(call, a), v, see)
            return self.result(call, output, a, lse)

    def heads(self, x: Any, h: int) -> Any:
        return np.repeat(x, h // x.shape[-3] if x.shape[-3] else 1, axis=-3)

    def scale(self, call: Call) -> float:
        return call.scale

    def scores(self, q: Any, k: Any, scale: float) -> Any:
        return scale * (q @ np.swapaxes(k, -1, -2))

    def capped(self, s: Any, c: float | None) -> Any:
        return s if c is None else c * np.tanh(s / c)

    def biased(self, s: Any, bias: Any) -> Any:
        return s if bias is None else s + bias.astype(np.float64)

    def sink(self, sink_logits: Any, s: Any) -> Any:
        return np.broadcast_to(sink_logits.astype(np.float64)[:, None, None], (*s.shape[:-1], 1))

    def visible(self, call: Call) -> Any:
        see = np.ones((1, 1), dtype=bool)
        for constraint in (self.by_mask, self.by_bias, self.by_band, self.by_length, self.by_segment):
            found = constraint(call)
            see = see if found is None else see & found
        return see

    def by_mask(self, call: Call) -> Any:
        return call.mask

    def by_bias(self, call: Call) -> Any:
        return None if call.bias is None else call.bias != -np.inf

    def by_band(self, call: Call) -> Any:
        if call.band is None:
            return None
        left, right = self.sides(call)
        distance = self.key_positions(call) - self.query_positions(call)
        return (distance >= (-np.inf if left is None else -left)) & (distance <= (np.inf if right is None else right))

    def sides(self, call: Call) -> Any:
        return call.band

    def key_positions(self, call: Call) -> Any:
        return np.arange(call.key.shape[-2])[None]

    def query_positions(self, call: Call) -> Any:
        offset = self.offset(call)
        offset = np.asarray(offset)[..., None, None, None] if np.ndim(offset) else offset
        return np.clip(offset, -(2**62), 2**62) + np.arange(call.query.shape[-2])[:, None]

    def offset(self, call: Call) -> Any:
        return call.query_offset

    def by_length(self, call: Call) -> Any:
        if call.key_lengths is None:
            return None
        lengths = np.asarray(call.key_lengths)
        return np.arange(call.key.shape[-2]) < (lengths[..., None, None, None] if lengths.ndim else lengths)

    def by_segment(self, call: Call) -> Any:
        if call.query_segments is None:
            return None
        return call.query_segments[..., None, :, None] == call.key_segments[..., None, None, :]

    def softmax(self, s: Any, see: Any, sink: Any) -> Any:
        wide = np.concatenate([np.where(see, s, -np.inf), sink], axis=-1)
        top = wide.max(axis=-1, keepdims=True)
        e = np.exp(wide - np.where(top == -np.inf, 0.0, top))
        total = e.sum(axis=-1, keepdims=True)
        a = np.where(see, e[..., :-1] / np.where(total == 0, 1.0, total), 0.0)
        lse = np.where(total == 0, -np.inf, np.where(top == -np.inf, 0.0, top) + np.log(np.where(total == 0, 1.0, total)))
        return a, lse[..., 0]

    def dropped(self, call: Call, a: Any) -> Any:
        """The weights that meet the values, forward and backward."""
        return a if call.dropout is None else a * self.factors(call)

    def factors(self, call: Call) -> Any:
        rate = call.dropout.rate
        return np.where(self.keeps(call), self.factor(rate), 0.0) if rate < 1 else np.zeros((1, 1))

    def factor(self, rate: float) -> float:
        return 1 / (1 - rate)

    def keeps(self, call: Call) -> Any:
        if call.dropout.keep is not None:
            return call.dropout.keep
        b, h, i, j = self.indices(call)
        lanes = philox((j // 4, i, h, b), self.seed(call))
        return np.choose(np.broadcast_to(j % 4, lanes[0].shape), lanes) >= self.threshold(call.dropout.rate)

    def seed(self, call: Call) -> int:
        return call.dropout.seed  # type: ignore[return-value]

    def threshold(self, rate: float) -> int:
        return int(rate * 2**32)

    def indices(self, call: Call) -> tuple[Any, Any, Any, Any]:
        """Of batch item, head, query and key, each over the axes of the scores."""
        *batch, h, n, _ = call.query.shape
        drop = call.dropout
        items = np.arange(int(np.prod(batch))).reshape(*batch, 1, 1, 1)
        return (
            drop.batch_start + items, drop.head_start + np.arange(h)[:, None, None], drop.query_start + np.arange(n)[:, None],
            drop.key_start + np.arange(call.key.shape[-2]),
        )  # fmt: skip

    def values(self, a: Any, v: Any, see: Any) -> Any:
        return np.where(see[..., None], a[..., None] * v[..., None, :, :], 0.0).sum(axis=-2)

    def result(self, call: Call, output: Any, a: Any, lse: Any) -> AttentionResult:
        kind = call.query.dtype
        wide = np.float64 if kind == np.float64 else np.float32
        return AttentionResult(
            output.astype(kind), a.astype(kind) if call.weights else None, lse.astype(wide) if call.lse else None
        )

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            y = x.astype(np.float64) @ w.astype(np.float64)
            return (y if b is None else y + b.astype(np.float64)).astype(x.dtype)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """attention, layer and merge: behind the door, unless a saboteur stands in front of it."""
        own = reference.create()
        api = bind(
            Backend(
                name=type(self).__name__,
                attend=self.attend,
                attend_vjp=self.attend_vjp,
                linear=self.linear,
                to_host=own.to_host,
                from_host=own.from_host,
                devices=own.devices,
                claims=self.claims,
            )
        )
        return {
            "attention": lambda *arrays, **options: self.after(api.attention(*arrays, **self.before(options))),
            "layer": lambda *arrays, **options: api.multi_head_attention(*self.layer_arrays(*arrays), **self.before(options)),
            "merge": self.merge,
            "varlen": lambda *arrays, **options: self.varlen(api.attention_varlen, *arrays, **options),
            "statistics": lambda *arrays, **options: self.statistics(api.attention_statistics, *arrays, **options),
            "cache": self.cache,
            **({} if self.attend_vjp is None else {"vjp": api.attention_vjp, "layer_vjp": self.layer_vjp(api)}),
        }

    def layer_vjp(self, api: Any) -> Callable[..., Any]:
        return api.multi_head_attention_vjp  # type: ignore[no-any-return]

    def before(self, options: dict[str, Any]) -> dict[str, Any]:
        """What a saboteur does in front of the door."""
        return options

    def after(self, result: Any) -> Any:
        """What a saboteur does behind it."""
        return result

    def layer_arrays(self, query: Any, key: Any, value: Any, projections: Any) -> Any:
        return query, key, value, projections

    def merge(self, parts: Any) -> Any:
        return reference.merge_partials(parts)

    def varlen(self, function: Any, *arrays: Any, **options: Any) -> Any:
        return function(*arrays, **options)

    def statistics(self, function: Any, *arrays: Any, **options: Any) -> Any:
        return function(*arrays, **options)

    cache: Callable[..., Any] = KVCache


def implementation(subject: Honest) -> Implementation:
    return Implementation(
        name=type(subject).__name__, convert=lambda x, name: x, claims=subject.claims, doors=True, **subject.functions()
    )


def judged(subject: Honest, level: Level = "core") -> list[Verdict]:
    """The verdicts of the catalogue up to ``level``, in this process."""
    under_test = implementation(subject)
    return [_verdict(case, under_test) for case in built(level) if not unclaimed(case, subject.claims)]


def _verdict(case: Case, under_test: Implementation, loud: bool = True) -> Verdict:
    return judge(case, perform(under_test, Asked.by(case, loud)), under_test.claims, rivals=False, explain=False)


@lru_cache(maxsize=3)
def built(level: Level) -> list[Case]:
    """The catalogue up to ``level`` with its inputs built once for all subjects; each call gets copies of them."""
    return [replace(case, make=partial(tuple, case.make())) for case in catalogue() if case.wanted_at(level)]


def diagnosis(make: Callable[[], Honest], verdicts: list[Verdict] | None = None) -> list[Verdict]:
    """The blamed clauses, the first one first, from ``verdicts`` where they are known; what holds alone is judged anew."""

    def again(case_id: str, loud: bool = True) -> Verdict:
        return next(_verdict(case, implementation(make()), loud) for case in built("core") if case.id == case_id)

    found = alone(blamed(judged(make()) if verdicts is None else verdicts, load()), again)
    return around(found, lambda case_id: again(case_id, loud=False))


def failures(verdicts: list[Verdict]) -> list[str]:
    return [f"{v.case}: {v.reason} {v.pattern}" for v in verdicts if v.status in FAILING]
