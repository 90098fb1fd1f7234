"""Chapter 4, the numerics: how far a correct result may lie from the truth, element by element, and no further.

Truth is computed here in float64 on the host, and not by chapter 3's ``equations``. A bound grants every step the worst that
its roundings can do, in any rounding mode and any order of summation (``numerics_steps``); nothing is fitted
(``profiles``). A bound is never NaN:

* bound 0: the truth itself, NaN included;
* bound infinity: any number, but no NaN; where the truth is NaN as well, nothing is required.

Arrays are NumPy float64: whatever judges runs on the host.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mha_spec.call import AttentionResult
from mha_spec.numerics_filter import filtered
from mha_spec.numerics_random import Sigma, Statistics, attention_sigma, statistics
from mha_spec.numerics_steps import (
    LARGEST,
    Reals,
    Scores,
    Truths,
    bias_error,
    carried,
    flushed,
    gamma,
    lse_error,
    output_error,
    overflows,
    product_error,
    projection_error,
    rescalings,
    rounded,
    softcap_error,
    softmax_error,
    u,
    weights_error,
)  # fmt: skip
from mha_spec.profiles import (
    CONSTANTS_VERSION,
    COUNTS,
    PROFILES,
    STATISTICS,
    TYPES,
    FloatType,
    Profile,
    constants,
    constants_hash,
    profile_of,
)  # fmt: skip

__all__ = [
    "CONSTANTS_VERSION", "COUNTS", "PROFILES", "STATISTICS", "TYPES", "Bounds", "FloatType", "Profile", "Sigma", "Statistics",
    "attention_bound", "attention_sigma", "constants", "constants_hash", "error_ratio", "filtered", "gamma", "layer_bound",
    "merge_bound", "profile_of", "statistics", "usable",
]  # fmt: skip


class Bounds(NamedTuple):
    """Bounds of output (*b h n d_v), lse (*b h n) and weights (*b h n m), and the truth that they surround.

    A merge has no weights. Of a layer, the output is (*b n d_out) and the rest are those of the heads inside it.
    """

    output: Reals
    lse: Reals
    weights: Reals | None
    truth: AttentionResult


def attention_bound(
    query: Reals,
    key: Reals,
    value: Reals,
    profile: Profile,
    *,
    scale: float,
    softcap: float | None = None,
    bias: Reals | None = None,
    visible: Truths | None = None,
    sink: Reals | None = None,
    factors: Reals | None = None,
) -> Bounds:
    """query (*b h n d_k), key (*b h_kv m d_k), value (*b h_kv m d_v) -> Bounds (MHA-NUM-6, MHA-NUM-7, MHA-NUM-8).

    ``visible`` and ``bias`` broadcast to (*b h n m); a bias of -inf hides too. ``sink`` (h,) is one more visible key, of
    value 0. ``factors`` (*b h n m) are those of dropout (MHA-NUM-24). For P64 every
    bound is doubled (MHA-NUM-15). Raises ``Violation`` (MHA-NUM-4) where the profile has no bound for so many keys or channels.
    """
    exact = flushed(query, profile, scale), flushed(key, profile, scale), flushed(value, profile)
    return _doubled(_heads((query, key, value), exact, profile, scale, softcap, bias, visible, sink, factors), profile)


def layer_bound(
    query: Reals,
    key: Reals,
    value: Reals,
    projections: Sequence[Any],
    profile: Profile,
    *,
    scale: float,
    softcap: float | None = None,
    bias: Reals | None = None,
    visible: Truths | None = None,
    sink: Reals | None = None,
    factors: Reals | None = None,
) -> Bounds:
    """query (*b n d_q), key (*b m d_k), value (*b m d_v), the eight Projections -> Bounds of the layer (MHA-NUM-13).

    Each projection passes its value and its bound on to the next step.
    """
    w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o = projections
    p = profile
    with np.errstate(all="ignore"):
        inputs = ((query, w_q, b_q), (key, w_k, b_k), (value, w_v, b_v))
        steps = [_projected(x[..., None, :, :], np.zeros(()), w, b, p.io, p) for x, w, b in inputs]
        (q, dq), (k, dk), (v, dv) = steps  # (*b h n d)
        heads = _heads((q, k, v), (dq, dk, dv), p, scale, softcap, bias, visible, sink, factors)
        o, B = _concatenated(heads.truth.output), _concatenated(heads.output)  # (*b 1 n h*d_v)
        W_O = np.reshape(w_o, (1, w_o.shape[0] * w_o.shape[1], w_o.shape[-1]))
        y, dy = _projected(o, B, W_O, None if b_o is None else b_o[None], p.output, p)
        required = np.any(np.isnan(o) & (B == 0.0), axis=-1, keepdims=True) & ~np.any(np.isinf(B), axis=-1, keepdims=True)
        dy = np.where(required, 0.0, dy)
    truth = heads.truth._replace(output=y[..., 0, :, :])
    return _doubled(heads._replace(output=dy[..., 0, :, :], truth=truth), p)


def merge_bound(parts: Sequence[tuple[Reals, Reals]], errors: Sequence[tuple[Reals, Reals]] | None, profile: Profile) -> Bounds:
    """True parts (output (*b h n d_v), lse (*b h n)) -> Bounds of their merge (MHA-NUM-9).

    ``errors`` are bounds of the parts' own output and lse; None where the parts are exact. A merge is a softmax over the
    lse of the parts, so the formula is the same. One part beside empty ones passes unchanged (MHA-AUX-8).
    """
    p = replace(
        profile, multiplicand=profile.io, accumulator=profile.lse, softmax=profile.lse, scores=None,
        weights=profile.lse, weight_scale=None,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        exact = [(flushed(o, profile), np.zeros_like(lse)) for o, lse in parts]
        outputs, lses = _stacked(parts)  # (*b h n p d_v), (*b h n 1 p)
        dV, delta = _stacked(exact if errors is None else errors)
        see = lses != -np.inf
        s, V = np.where(see, _tame(lses), 0.0), _tame(outputs)
        soft = softmax_error(Scores(s, carried(s, delta, gamma(1, u(p.softmax)))), see, 0, p)
        o = soft.A @ V
        alone = np.sum(see, axis=-1, keepdims=True) <= 1  # (*b h n 1 1)
        B = np.where(alone, np.sum(np.where(see.mT, dV, 0.0), axis=-2, keepdims=True), output_error(soft, V, dV, see, o, p))
        lse_B = np.where(alone[..., 0], np.sum(np.where(see, delta, 0.0), axis=-1), lse_error(soft, p))
        nan = np.any(np.isnan(lses), axis=-1)  # (*b h n 1)
        nan_o = nan[..., None] | (see @ np.isnan(outputs))
        truth = AttentionResult(np.where(nan_o, np.nan, o)[..., 0, :], None, np.where(nan, np.nan, soft.lse[..., 0])[..., 0])
        bounds = Bounds(np.where(nan_o, 0.0, _known(B))[..., 0, :], np.where(nan, 0.0, lse_B)[..., 0], None, truth)
    return _doubled(bounds, profile)


def error_ratio(got: Any, truth: Any, bound: Any, largest: float = np.inf) -> Reals:
    """|got - truth| / bound, element by element: at most 1 where the bound is kept (MHA-NUM-6).

    NaN is right where the truth is NaN and nowhere else. Where truth and bound reach beyond ``largest``, the largest number
    of the output's type, the infinity of that side is legal (MHA-NUM-17). Where the bound is 0 only the truth has ratio 0.
    """
    got, truth, bound = (np.asarray(x, dtype=np.float64) for x in (got, truth, bound))
    with np.errstate(all="ignore"):
        right = (got == truth) | (np.isnan(got) & np.isnan(truth)) | (np.isnan(truth) & np.isinf(bound))
        beyond = np.isinf(got) & (np.where(got > 0, truth, -truth) + bound > largest)
        ratio = np.where(np.isinf(bound) & np.isfinite(got), 0.0, np.abs(got - truth) / bound)
    ratio = np.where(np.isnan(got) | np.isnan(truth) | np.isinf(got), np.inf, ratio)
    return np.where(right | beyond, 0.0, ratio)


def usable(bound: Reals, bound_64: Reals) -> bool:
    """Whether float64 is good enough a truth for a case: everywhere B of P64 is at most B / 64 (MHA-NUM-16).

    ``bound_64`` is B itself: half of what ``attention_bound`` returns for P64.
    """
    with np.errstate(all="ignore"):
        return bool(np.all((COUNTS["usable"] * bound_64 <= bound) | (bound == 0.0)))


# The heads inside


def _heads(
    operands: tuple[Reals, Reals, Reals], errors: tuple[Reals, Reals, Reals], p: Profile, scale: float,
    softcap: float | None, bias: Reals | None, visible: Truths | None, sink: Reals | None, factors: Reals | None,
) -> Bounds:  # fmt: skip
    """Attention over heads whose operands are off by ``errors``; nothing is doubled here."""
    query, h = operands[0], operands[0].shape[-3]
    group = h // max(operands[1].shape[-3], 1)
    key, value, dk, dv = (np.repeat(x, group, axis=-3) for x in (*operands[1:], *errors[1:]))
    m = key.shape[-2]
    shape = (*query.shape[:-1], m)  # (*b h n m)
    b = np.broadcast_to(np.zeros(()) if bias is None else bias, shape)
    see = np.broadcast_to(np.ones((), dtype=np.bool_) if visible is None else visible, shape) & (b != -np.inf)

    with np.errstate(all="ignore"):
        Q, K, V, dQ, dK, dV = (_tame(x) for x in (query, key, value, errors[0], dk, dv))
        scores, seen = _scores(Q, K, _tame(b), dQ, dK, p, scale, softcap), see
        if sink is not None:
            scores, seen = _with_sink(scores, see, sink, p)
        row = softmax_error(scores, seen, rescalings(m), p)
        soft = row._replace(A=row.A[..., :m], log_A=row.log_A[..., :m], E=row.E[..., :m])  # without the sink
        o = (soft.A if factors is None else soft.A * factors) @ V
        bounds = Bounds(
            _known(output_error(soft, V, dV, see, o, p, factors)),
            lse_error(soft, p),
            np.where(see, weights_error(soft, p), 0.0),
            AttentionResult(o, soft.A, soft.lse[..., 0]),
        )
        return _special(bounds, query, key, value, b, see, sink)


def _scores(Q: Reals, K: Reals, b: Reals, dQ: Reals, dK: Reals, p: Profile, scale: float, softcap: float | None) -> Scores:
    """(*b h n d_k), (*b h m d_k) -> (*b h n m), in the order of MHA-ATTN-9. Errors of Q and K widen G and delta alike."""
    moved = abs(scale) * (dQ @ (np.abs(K) + dK).mT + np.abs(Q) @ dK.mT)
    G = abs(scale) * (np.abs(Q) @ np.abs(K).mT) + moved
    s = x = scale * (Q @ K.mT)
    delta = product_error(G, x, Q.shape[-1], scale, p) + moved * (1.0 + gamma(COUNTS["stored"], u(p.scores)))
    if softcap is not None:
        s, delta = softcap * np.tanh(x / softcap), softcap_error(delta, softcap, p)
    s = np.clip(s + b, -LARGEST, LARGEST)
    return Scores(s, np.where(overflows(G, x, b, s, scale, p), np.inf, bias_error(delta + flushed(b, p), s, b, p)))


def _with_sink(scores: Scores, see: Truths, sink: Reals, p: Profile) -> tuple[Scores, Truths]:
    """(*b h n m) -> (*b h n m+1): the sink is one more visible key (MHA-ATTN-12); a sink of -inf is none."""
    s = np.broadcast_to(_tame(sink)[:, None, None], (*see.shape[:-1], 1))
    delta = bias_error(flushed(s, p), s, s, p)
    wide = Scores(np.concatenate([scores.s, s], axis=-1), np.concatenate([scores.delta, delta], axis=-1))
    there = np.broadcast_to((sink != -np.inf)[:, None, None], s.shape)
    return wide, np.concatenate([see, there], axis=-1)


def _special(bounds: Bounds, query: Reals, key: Reals, value: Reals, b: Reals, see: Truths, sink: Reals | None) -> Bounds:
    """Empty rows and NaN are judged exactly, infinities not at all (MHA-NUM-12, MHA-MASK-15 to 17, 20 to 22, 24)."""
    some = np.any(see, axis=-1)  # (*b h n)
    logit = np.full((1, 1), -np.inf) if sink is None else sink[:, None]

    def reaches(bad: Callable[[Any], Any]) -> Truths:
        """(*b h n): the rows whose q_i, visible k_j or b_ij, or sink is bad."""
        pairs = np.any(bad(key), axis=-1)[..., None, :] | bad(b)
        rows = np.any(bad(query), axis=-1) | np.any(see & pairs, axis=-1)
        return np.asarray(some & (rows | bad(np.maximum(logit, -LARGEST))))

    def where(x: Any, empty: Any, nan: Truths, wild: Truths, at_nan: float, at_wild: float) -> Reals:
        none = some if nan.ndim == some.ndim else some[..., None]
        return np.where(none, np.where(wild, at_wild, np.where(nan, at_nan, x)), empty)

    nan, wild = reaches(np.isnan), reaches(np.isinf)
    in_output = nan[..., None] | (see @ np.isnan(value)), wild[..., None] | (see @ np.isinf(value))
    in_weights = see & nan[..., None], see & wild[..., None]
    logit_B = np.where(np.isfinite(logit), bounds.lse, 0.0)
    o, A, lse = bounds.truth
    return Bounds(
        where(bounds.output, 0.0, *in_output, 0.0, np.inf),
        where(bounds.lse, logit_B, nan, wild, 0.0, np.inf),
        where(bounds.weights, 0.0, *in_weights, 0.0, np.inf),
        AttentionResult(
            where(o, 0.0, *in_output, np.nan, np.nan),
            where(A, 0.0, *in_weights, np.nan, np.nan),
            where(lse, logit, nan, wild, np.nan, np.nan),
        ),
    )


def _projected(x: Reals, dx: Reals, w: Reals, b: Reals | None, name: str, p: Profile) -> tuple[Reals, Reals]:
    """(*b h n i), (h i o), (h o) -> the projection (*b h n o), rounded once to the type ``name``, and its bound."""
    add = np.zeros((1, 1)) if b is None else b[:, None, :]
    y = x @ w + add
    error = projection_error(x, flushed(x, p) + dx, w, add, p)
    return y, _known(rounded(error, y, name, p))


def _concatenated(x: Reals) -> Reals:
    """(*b h n d) -> (*b 1 n h*d): head 0 first."""
    x = np.moveaxis(x, -3, -2)
    return np.reshape(x, (*x.shape[:-3], 1, x.shape[-3], x.shape[-2] * x.shape[-1]))


def _stacked(parts: Sequence[tuple[Reals, Reals]]) -> tuple[Reals, Reals]:
    """p of ((*b h n d_v), (*b h n)) -> (*b h n p d_v), (*b h n 1 p)."""
    outputs, lses = zip(*parts, strict=True)
    return np.stack(outputs, axis=-2), np.stack(lses, axis=-1)[..., None, :]


def _tame(x: Reals) -> Reals:
    """What is not finite becomes 0; ``_special`` says what it means."""
    return np.where(np.isfinite(x), x, 0.0)


def _known(B: Reals) -> Reals:
    """0 times infinity, in a bound, is no promise."""
    return np.where(np.isnan(B), np.inf, B)


def _doubled(bounds: Bounds, p: Profile) -> Bounds:
    """P64 is judged with 2B: the truth is float64 arithmetic and obeys B, and so does the result (MHA-NUM-15)."""
    factor = COUNTS["float64_factor"] if p.io == "float64" else 1
    with np.errstate(over="ignore"):
        weights = None if bounds.weights is None else factor * bounds.weights
        return bounds._replace(output=factor * bounds.output, lse=factor * bounds.lse, weights=weights)
