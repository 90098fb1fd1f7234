"""What each option costs: the same attention with it and without, as competitors of one contest.

Every one is judged by the bound of its own call before it meets the clock. Beside its time stands the share of pairs that it leaves
visible, which says how much a kernel could have spared.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mha_conformance.bench.competitor import Competitor, backend
from mha_conformance.bench.workload import Heads, Truth
from mha_spec import equations
from mha_spec.contract import attention_call
from mha_spec.numerics import PROFILES, attention_bound

PLAIN = "plain"

Options = dict[str, Any]

OPTIONS: dict[str, Callable[["WithOption", np.random.Generator], Options]] = {
    PLAIN: lambda w, random: {},
    "causal": lambda w, random: {"is_causal": True},
    "window": lambda w, random: {"window": (w.n // 8, 0)},
    "key_lengths": lambda w, random: {"key_lengths": np.full(w.batch, 3 * w.n // 4)},
    "segments": lambda w, random: dict.fromkeys(("query_segments", "key_segments"), _quarters(w)),
    "mask": lambda w, random: {"mask": random.random((w.n, w.n)) < 0.5},
    "bias": lambda w, random: {"bias": random.standard_normal((1, w.heads, w.n, w.n)).astype(w.dtype)},
    "softcap": lambda w, random: {"softcap": 30.0},
    "sink_logits": lambda w, random: {"sink_logits": random.standard_normal(w.heads).astype(w.dtype)},
    "one key head": lambda w, random: {},
    "scale of 1": lambda w, random: {"scale": 1.0},
    "lse": lambda w, random: {"return_lse": True},
    "weights": lambda w, random: {"return_weights": True},
    "float16": lambda w, random: {},
}
"""The options of a call by name. A scale of 1 makes scores so large that no bound proves them harmless to a softmax."""


@dataclass(frozen=True, slots=True)
class WithOption(Heads):
    """Attention on heads with one option, or with one key head for all, or in a half type."""

    option: str = PLAIN

    def operands(self) -> tuple[Any, Any, Any]:
        query, key, value = Heads.operands(self)
        return (query, key[:, :1], value[:, :1]) if self.option == "one key head" else (query, key, value)

    def options(self) -> Options:
        return OPTIONS[self.option](self, np.random.default_rng(1))

    @property
    def visible_share(self) -> float:
        """The share of all pairs that are visible."""
        return float(np.mean(equations.visible(self._call())))

    def truth(self, profile: str) -> Truth:
        call = self._call()
        shape = (self.batch, self.heads, self.n, self.n)
        visible, bias = (
            None if x is None else np.broadcast_to(x, shape)[..., self.rows, :] for x in (equations.visible(call), call.bias)
        )
        found = attention_bound(
            call.query[..., self.rows, :], call.key, call.value, PROFILES[profile],
            scale=call.scale, softcap=call.softcap, bias=bias, visible=visible, sink=call.sink_logits,
        )  # fmt: skip
        return Truth(found.truth.output, found.output)

    def small(self) -> "WithOption":
        return replace(self, batch=1, heads=1, n=8)

    def _call(self) -> Any:
        operands = (x.astype(np.float64) for x in self.operands())
        return attention_call(*operands, **{name: _double(x) for name, x in self.options().items()})


def competitors(name: str, workload: Heads) -> tuple[Competitor, ...]:
    """A backend with each option; the plain call is the first."""
    b, h, n, d, causal, dtype = workload.batch, workload.heads, workload.n, workload.d, workload.causal, workload.dtype
    found = []
    for option in OPTIONS:
        own = WithOption(b, h, n, d, causal, "float16" if option == "float16" else dtype, option)
        found.append(Competitor(option, partial(backend, name), workload=own))
    return tuple(found)


def _quarters(w: "WithOption") -> Any:
    """(batch, n): four segments of one length."""
    return np.broadcast_to(np.arange(w.n) * 4 // w.n, (w.batch, w.n)).copy()


def _double(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
