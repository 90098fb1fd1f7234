"""Chapter 5: what is judged exactly, and what is not judged at all (MHA-GRAD-13, MHA-GRAD-16, MHA-GRAD-20)."""

from typing import Any, NamedTuple

import numpy as np

from mha_spec.call import AttentionGradients, Cotangents
from mha_spec.numerics_backward_steps import over_group, seen_by
from mha_spec.numerics_steps import LARGEST, Reals, Truths


class GradientBounds(NamedTuple):
    """The bound of each gradient, in its shape, and the truth that it surrounds."""

    query: Reals
    key: Reals
    value: Reals
    bias: Reals | None
    sink_logits: Reals | None
    truth: AttentionGradients


def exactly(
    found: dict[str, Any], query: Reals, key: Reals, value: Reals, arriving: Cotangents, b: Reals, see: Truths,
    sink: Reals | None, h_kv: int, lost: Truths,
) -> GradientBounds:  # fmt: skip
    """Emptiness and NaN are judged exactly, infinities and overflows not at all (MHA-GRAD-13, MHA-GRAD-16, MHA-GRAD-20)."""
    group = query.shape[-3] // max(h_kv, 1)
    K, V = np.repeat(key, group, axis=-3), np.repeat(value, group, axis=-3)
    some = np.any(see, axis=-1)
    dO, dL, dA = arriving
    logit = np.zeros(query.shape[-3]) if sink is None else np.where(sink == -np.inf, 0.0, sink)

    def reaches(bad: Any) -> tuple[Truths, Truths]:
        """Rows (*b h n) whose weights are bad, and rows whose gradient of scores is."""
        pairs = np.any(bad(K), axis=-1)[..., None, :] | bad(b)
        weights = np.any(bad(query), axis=-1) | np.any(see & pairs, axis=-1) | bad(logit)[:, None]
        later = np.any(bad(dO), axis=-1) | np.any(see & np.any(bad(V), axis=-1)[..., None, :], axis=-1)
        if dL is not None:
            later = later | bad(dL)
        if dA is not None:
            later = later | np.any(see & bad(dA), axis=-1)
        return some & weights, some & (weights | later)

    def keys_of(rows: Truths) -> Truths:
        """(*b h n) -> (*b h_kv m 1): keys that such a row sees."""
        return seen_by(see & rows[..., None], h_kv) > 0

    def channels(bad: Any, rows: Truths) -> Truths:
        hit = rows[..., None] | (bad(dO) & some[..., None])
        return over_group((np.swapaxes(see, -1, -2).astype(float) @ hit.astype(float)), h_kv) > 0

    nan_w, nan_s = reaches(np.isnan)
    wild_w, wild_s = reaches(np.isinf)
    over = np.any(lost, axis=-1)
    wild_w, wild_s = wild_w | over, wild_s | over
    seen = seen_by(see, h_kv) > 0
    marks = {
        "query": (some[..., None], nan_s[..., None], wild_s[..., None]),
        "key": (seen, keys_of(nan_s), keys_of(wild_s)),
        "value": (seen, channels(np.isnan, nan_w), channels(np.isinf, wild_w)),
    }
    if found["bias"] is not None:
        shape = found["bias"][0].shape
        marks["bias"] = tuple(any_use(see & x[..., None], shape) for x in (some, nan_s, wild_s))  # type: ignore[assignment]
    if sink is not None:
        there = sink != -np.inf
        empty_nan = np.zeros_like(some) if dL is None else ~some & np.isnan(dL)
        empty_wild = np.zeros_like(some) if dL is None else ~some & np.isinf(dL)
        axes = (*range(some.ndim - 2), some.ndim - 1)
        heads = (np.any(nan_s | empty_nan, axis=axes), np.any(wild_s | empty_wild, axis=axes))
        marks["sink_logits"] = (there, there & heads[0], there & heads[1])
    truth, bounds = {}, {}
    for name, (some_, nan, wild) in marks.items():
        x, B = found[name]
        B = np.where(np.isnan(B) | (B >= LARGEST), np.inf, B)
        truth[name] = np.where(some_, np.where(nan | wild | np.isinf(B), np.nan, x), 0.0)
        bounds[name] = np.where(some_, np.where(wild, np.inf, np.where(nan, 0.0, B)), 0.0)
    return GradientBounds(
        bounds["query"],
        bounds["key"],
        bounds["value"],
        bounds.get("bias"),
        bounds.get("sink_logits"),
        AttentionGradients(**truth),
    )


def any_use(x: Truths, shape: tuple[int, ...]) -> Truths:
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] != 1)
    return np.asarray(np.any(x, axis=axes, keepdims=True)) if axes else x
