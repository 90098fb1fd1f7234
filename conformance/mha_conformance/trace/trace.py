"""One trace: the steps of a sentence or of given heads, the same channels as one head, what it costs, and the merged form."""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mha_backends.numpy import multi_head_attention
from mha_conformance.trace import seeded
from mha_conformance.trace.read import CannotTrace
from mha_conformance.trace.tokens import Tokens
from mha_core import Projections, SmallHeadWarning, head_size
from mha_spec import equations
from mha_spec.contract import attention_call
from mha_spec.cost import attention_flops, layer_flops
from mha_spec.numerics import PROFILES, error_ratio, layer_bound
from mha_spec.steps import Step, Steps, attention_steps, steps

LARGEST = 1 << 22
"""The most weights, over all heads, that are computed: the equations are slow on purpose."""


class Agreement(NamedTuple):
    """The merged form against the loop over heads: the largest difference, and in units of its bound (MHA-PROJ-5)."""

    difference: float
    ratio: float
    compared: int
    """How many elements of the output have a bound; where numbers overflow there is none (MHA-NUM-6)."""
    loop_products: int
    merged_products: int

    @property
    def within(self) -> bool:
        return self.ratio <= 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What is shown. ``one_head`` are the weights (1, n, m) of the same channels read as a single head."""

    title: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    notes: tuple[str, ...]
    steps: Steps
    one_head: Any
    flops: tuple[int, int]
    """Of the heads as they are, and of one head of the same channels (MHA-COST-4)."""
    agreement: Agreement | None
    """None without projections: there is nothing to merge."""

    @property
    def weights(self) -> Any:
        return self.steps.array("weights")

    @property
    def top(self) -> float:
        """The largest share of all heads and of the single one: the end of the scale on which all are drawn."""
        both = np.concatenate([self.weights, self.one_head])
        return float(np.max(both, initial=0.0, where=~np.isnan(both)))

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by the names of the notation: h, h_kv, n, m, d_k, d_v, and d_model where there is one."""
        (h, n, d_k), (h_kv, m, d_v) = self.steps.array("query").shape, self.steps.array("value").shape
        first: Step = self.steps[0]
        width = {"d_model": int(first.shape[-1])} if first.name == "input" else {}
        return {**width, "h": h, "h_kv": h_kv, "n": n, "m": m, "d_k": d_k, "d_v": d_v}


def of_sentence(sentence: Tokens, d_model: int, h: int, seed: int, *, placed: bool, given: Projections | None) -> Trace:
    """The trace of a sentence with seeded embeddings, and with ``given`` projections or seeded ones.

    ``placed`` adds positions to the embeddings. Raises ``CannotTrace`` and ``Violation``.
    """
    tokens = sentence.tokens
    if not tokens:
        raise CannotTrace("given a sentence without tokens; expected at least one word")
    _check_text(tokens)
    if given is None:
        width_note = _width_note(d_model, h)
        _check_size(h, len(tokens), len(tokens))
        p, source = seeded.projections(d_model, h, d_model // h, seed), "the projections too: they are untrained"
    else:
        width_note, p, source = [], given, "the projections from the file, in float64"
        _check_size(p.w_q.shape[0], len(tokens), len(tokens))
    X = seeded.embeddings(tokens, d_model, seed) + (seeded.positions(len(tokens), d_model) if placed else 0.0)
    with np.errstate(all="ignore"):
        merged = multi_head_attention(X, X, X, p)  # the door looks at every shape here
        taken = steps(X, p)
        agreement = _agreement(X, p, taken.array("output"), merged)
    notes = (
        sentence.rule,
        f"the embeddings come from seed {seed}, {source}",
        "positions are added as in section 3.5" if placed else "no positions: the same token has the same row everywhere",
        *width_note,
        *_holes(**{name: x for name, x in p._asdict().items() if x is not None}),
    )
    n, d_k, d_v, d_out = len(tokens), p.w_q.shape[-1], p.w_v.shape[-1], p.w_o.shape[-1]
    h, h_kv = p.w_q.shape[0], p.w_k.shape[0]
    many = layer_flops(n, d_model, d_k, d_v, heads=h, kv_heads=h_kv, d_out=d_out).total
    one = layer_flops(n, d_model, h * d_k, h * d_v, heads=1, d_out=d_out).total
    return Trace(" ".join(tokens), tokens, tokens, notes, taken, _one_head(taken), (many, one), agreement)


def of_heads(title: str, q: Any, k: Any, v: Any, labels: dict[str, tuple[str, ...]]) -> Trace:
    """The trace of heads (h, n, d_k), (h_kv, m, d_k), (h_kv, m, d_v) that a model has projected.

    Raises ``CannotTrace`` and ``Violation``.
    """
    attention_call(q, k, v)
    (h, n, d_k), (_, m, d_v) = q.shape, v.shape
    if 0 in (h, n, m):
        raise CannotTrace(f"given q {q.shape}, k {k.shape}, v {v.shape}; expected at least one head, one query and one key")
    _check_size(h, n, m)
    queries = labels.get("tokens", tuple(map(str, range(n))))
    keys = labels.get("key_tokens", queries if n == m else tuple(map(str, range(m))))
    _check_text((*queries, *keys))
    for name, found, count in (("tokens", queries, n), ("key_tokens", keys, m)):
        if len(found) != count:
            named = "query" if name == "tokens" else "key"
            raise CannotTrace(f"given {name} of length {len(found)}; expected {count}, one for each {named}")
    with np.errstate(all="ignore"):
        taken = attention_steps(q, k, v)
        one_head = _one_head(taken)
    notes = (
        "queries, keys and values come from the file; all is computed in float64",
        "steps 1 and 6 need projections, which this file does not hold",
        *_holes(q=q, k=k, v=v),
    )
    flops = attention_flops(n, m, d_k, d_v, heads=h), attention_flops(n, m, h * d_k, h * d_v)
    return Trace(title, queries, keys, notes, taken, one_head, flops, None)


def _one_head(taken: Steps) -> Any:
    """Weights (1, n, m) of one head of width h*d_k: the heads' queries and keys side by side, as the merged matrices give them."""
    Q, K = taken.array("query"), taken.array("key")
    with np.errstate(all="ignore"):
        wide_q, wide_k = (equations.concatenate(x)[None] for x in (Q, equations.heads(K, Q.shape[0])))  # (1, n, h*d_k)
        return attention_steps(wide_q, wide_k, wide_k).array("weights")


def _agreement(X: Any, p: Projections, looped: Any, merged: Any) -> Agreement:
    (h, _, d_k), h_kv = p.w_q.shape, p.w_k.shape[0]
    products = h + 2 * h_kv + 1, 4
    if not looped.size:
        return Agreement(0.0, 0.0, 0, *products)
    bound = layer_bound(X, X, X, p, PROFILES["P64"], scale=d_k**-0.5 if d_k else 1.0).output
    bounded = np.isfinite(bound)
    difference = np.where(bounded & ~np.isnan(looped), np.abs(merged - looped), 0.0)
    ratio = np.where(bounded, error_ratio(merged, looped, bound), 0.0)
    return Agreement(float(difference.max()), float(ratio.max()), int(bounded.sum()), *products)


def _holes(**arrays: Any) -> list[str]:
    """NaN and infinity are legal, and show; they are worth a word."""
    names = [name for name, x in arrays.items() if not np.isfinite(x).all()]
    return [f"{', '.join(names)} not finite everywhere: a NaN reaches the rows that see it (MHA-MASK-20)"] if names else []


def _width_note(d_model: int, h: int) -> list[str]:
    """The warning of MHA-PROJ-11 as a note: a small example is narrow on purpose. Refuses what does not divide (MHA-PROJ-10)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SmallHeadWarning)
        d_k = head_size(d_model, h)
    return [f"d_k = {d_k} suits a picture; layers that are trained have 16 channels or more (MHA-PROJ-11)"] if caught else []


def _check_text(tokens: tuple[str, ...]) -> None:
    """Bytes that are no text reach Python as lone surrogates, which no file and no terminal can hold."""
    for token in tokens:
        try:
            token.encode()
        except UnicodeEncodeError as error:
            raise CannotTrace(f"given {token!r}; expected text in UTF-8; convert it first") from error


def _check_size(h: int, n: int, m: int) -> None:
    if h * n * m > LARGEST:
        raise CannotTrace(
            f"given {h} heads of {n} queries and {m} keys, {h * n * m} weights; expected at most {LARGEST}, for the equations "
            "are slow on purpose; take fewer tokens or fewer heads"
        )
