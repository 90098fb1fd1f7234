"""Chapter 5, the numerics of the layer: each step hands its value and its bound to the next, backwards (MHA-GRAD-19).

The projections are carried forwards as in MHA-NUM-13, with one rounding to the inputs' type each; the heads take operands and a
grad_output that are off already; and every product after them is a sum over heads and channels, or over tokens.
A NaN in a layer is not judged: a projection is a product, which hands it on.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mha_spec.call import Cotangents
from mha_spec.numerics_backward import doubled, heads_bound
from mha_spec.numerics_backward_steps import OperandErrors, summed
from mha_spec.numerics_steps import Reals, Truths, flushed, projection_error, rounded
from mha_spec.profiles import Profile


class LayerGradientBounds(NamedTuple):
    """The bound of each gradient of a layer; ``truth`` has the same names, and the numbers that they surround."""

    query: Reals
    key: Reals
    value: Reals
    w_q: Reals
    w_k: Reals
    w_v: Reals
    w_o: Reals
    b_q: Reals | None
    b_k: Reals | None
    b_v: Reals | None
    b_o: Reals | None
    bias: Reals | None
    sink_logits: Reals | None
    truth: Any


def layer_gradient_bound(
    query: Reals, key: Reals, value: Reals, projections: Sequence[Any], arriving: Cotangents, profile: Profile, *, scale: float,
    softcap: float | None = None, bias: Reals | None = None, visible: Truths | None = None, sink: Reals | None = None,
    factors: Reals | None = None,
) -> LayerGradientBounds:  # fmt: skip
    """query (*b n d_q), key (*b m d_k), value (*b m d_v), the eight Projections, dY (*b n d_out) -> LayerGradientBounds."""
    p = profile
    w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o = projections
    dY = arriving.output
    with np.errstate(all="ignore"):
        steps = [_projected(x, w, b, p) for x, w, b in ((query, w_q, b_q), (key, w_k, b_k), (value, w_v, b_v))]
        (q, e_q), (k, e_k), (v, e_v) = steps  # (*b h n d)
        dheads, e_heads = _projected(dY, w_o.mT, None, p)
        inner, f = heads_bound(
            (q, k, v), arriving._replace(output=dheads), OperandErrors(e_q, e_k, e_v, e_heads), p, scale, softcap, bias, visible, sink,
            factors,
        )  # fmt: skip
        found: dict[str, Any] = {}
        for name, x, w, b in (("query", query, w_q, b_q), ("key", key, w_k, b_k), ("value", value, w_v, b_v)):
            dq, e = getattr(inner.truth, name), getattr(inner, name)
            letter = name[0]
            found[name] = _backwards(dq, e, w, p)
            found[f"w_{letter}"] = _over_tokens(dq, e, x, p)
            found[f"b_{letter}"] = None if b is None else _over_tokens(dq, e, np.ones((*x.shape[:-1], 1)), p)
        turned, e = _over_tokens(f.o, f.B_o, dY, p)
        found["w_o"] = turned.mT, e.mT
        ones = np.ones((*dY.shape[:-1], 1))
        found["b_o"] = None if b_o is None else _over_tokens(ones[..., None, :, :], 0.0 * ones[..., None, :, :], dY, p)
        for name in ("b_q", "b_k", "b_v"):
            found[name] = None if found[name] is None else tuple(x[:, 0, :] for x in found[name])
        found["b_o"] = None if b_o is None else tuple(x[0, :, 0] for x in found["b_o"])
    for name in ("bias", "sink_logits"):
        B = getattr(inner, name)
        found[name] = None if B is None else (getattr(inner.truth, name), B)
    values: dict[str, Any] = {name: None if x is None else x[0] for name, x in found.items()}
    bounds: dict[str, Any] = {
        name: None if x is None else np.where(np.isnan(x[0]) | np.isnan(x[1]), np.inf, x[1]) for name, x in found.items()
    }
    judged: LayerGradientBounds = doubled(LayerGradientBounds(**bounds, truth=LayerGradientBounds(**values, truth=None)), p)
    return judged


def _projected(x: Reals, w: Reals, b: Reals | None, p: Profile) -> tuple[Reals, Reals]:
    """(*b n i), (h i o), (h o) -> the projection (*b h n o), rounded once to the inputs' type, and its bound."""
    x = x[..., None, :, :]
    add = np.zeros((1, 1)) if b is None else b[:, None, :]
    y = x @ w + add
    return y, rounded(projection_error(x, flushed(x, p), w, add, p), y, p.io, p)


def _backwards(dq: Reals, error: Reals, w: Reals, p: Profile) -> tuple[Reals, Reals]:
    """(*b h n d), (h e d) -> (*b n e): the sum over heads and channels."""
    joined, e = (np.reshape(np.moveaxis(x, -3, -2), (*x.shape[:-3], x.shape[-2], -1)) for x in (dq, error))
    merged = np.reshape(np.moveaxis(w, -1, -2), (-1, w.shape[-2]))  # (h*d, e)
    y, B = summed(joined, e, merged, flushed(merged, p), float(merged.shape[0]), p)
    return y, rounded(B, y, p.output, p)


def _over_tokens(dq: Reals, error: Reals, x: Reals, p: Profile) -> tuple[Reals, Reals]:
    """(*b h n d), (*b n e) -> x^T dq (h e d): the sum over all tokens of all batch items."""
    h, d = dq.shape[-3], dq.shape[-1]
    left, e = (np.moveaxis(a, -3, 0).reshape(h, -1, d).mT for a in (dq, error))  # (h d tokens)
    tokens = x.reshape(-1, x.shape[-1])
    y, B = summed(left, e, tokens, flushed(tokens, p), float(tokens.shape[0]), p)
    return y.mT, rounded(B, y, p.output, p).mT
