"""Chapter 5, the numerics: how far a correct gradient may lie from the truth (MHA-GRAD-19).

The steps of ``numerics_steps`` are carried on by those of ``numerics_backward_steps``: the weight that the backward computes again, what
arrives at it, the mean D of the row, the gradient of the score, and the sums over keys and queries. Each grants the worst that its
roundings can do, in any mode and order, to kernels that take weights from the lse or from the row sum, and D from dO and O
or from the weights. Nothing is fitted.

Arrays are NumPy float64. A bound of infinity here means that nothing is required (MHA-GRAD-20), and the truth beside it is NaN.
"""

from typing import Any

import numpy as np

from mha_spec.call import Cotangents
from mha_spec.numerics_backward_exact import GradientBounds, exactly
from mha_spec.numerics_backward_steps import (
    Forward,
    OperandErrors,
    arriving_errors,
    beyond,
    bias_gradient_error,
    over_group,
    scaled,
    seen_by,
    sink_gradient_error,
    spread,
    summed,
    weight_error,
    weights_in_sum,
)  # fmt: skip
from mha_spec.numerics_steps import (
    LARGEST,
    Reals,
    Scores,
    Truths,
    bias_error,
    carried,
    eta,
    flushed,
    gamma,
    of_factors,
    output_error,
    overflows,
    product_error,
    rescalings,
    rounded,
    softcap_error,
    softmax_error,
    u,
)  # fmt: skip
from mha_spec.profiles import COUNTS, Profile

__all__ = ["GradientBounds", "doubled", "gradient_bound", "heads_bound"]


def gradient_bound(
    query: Reals,
    key: Reals,
    value: Reals,
    arriving: Cotangents,
    profile: Profile,
    *,
    scale: float,
    softcap: float | None = None,
    bias: Reals | None = None,
    visible: Truths | None = None,
    sink: Reals | None = None,
    factors: Reals | None = None,
) -> GradientBounds:
    """query (*b h n d_k), key (*b h_kv m d_k), value (*b h_kv m d_v) and what arrives -> GradientBounds (MHA-GRAD-19).

    ``bias`` has the rank of the scores; ``visible`` broadcasts to them; ``factors`` are those of dropout
    (MHA-NUM-24). For P64 every bound is doubled (MHA-NUM-15). Raises ``Violation`` (MHA-NUM-4) where the profile has no bound
    for so many keys, queries or channels.
    """
    scales = (scale, scale, 1.0, 1.0)
    operands = (query, key, value, arriving.output)
    exact = OperandErrors(*(flushed(x, profile, by) for x, by in zip(operands, scales, strict=True)))
    found, _ = heads_bound((query, key, value), arriving, exact, profile, scale, softcap, bias, visible, sink, factors)
    judged: GradientBounds = doubled(found, profile)
    return judged


def heads_bound(
    operands: tuple[Reals, Reals, Reals], arriving: Cotangents, errors: OperandErrors, p: Profile, scale: float,
    softcap: float | None, bias: Reals | None, visible: Truths | None, sink: Reals | None, factors: Reals | None = None,
) -> tuple[GradientBounds, Forward]:  # fmt: skip
    """The same of operands and a grad_output that are off by ``errors``; nothing is doubled here."""
    query, key, value = operands
    h, h_kv = query.shape[-3], key.shape[-3]
    shape = (*query.shape[:-1], key.shape[-2])
    b = np.broadcast_to(np.zeros(()) if bias is None else bias, shape)
    see = np.broadcast_to(np.ones((), dtype=np.bool_) if visible is None else visible, shape) & (b != -np.inf)
    with np.errstate(all="ignore"):
        f, lost = _forward(operands, errors, b, see, p, scale, softcap, sink, factors)
        M, of_M = np.ones(()) if factors is None else factors, of_factors(factors, p)
        e_O = errors.grad_output
        dO, dL, dA = (np.zeros(()) if x is None else _tame(x) for x in arriving)
        dL, dA = np.broadcast_to(dL, see.shape[:-1]), np.broadcast_to(dA, see.shape)
        A, dA_ = f.soft.A, weight_error(f.soft, see, p)

        size = M * ((np.abs(dO) + e_O) @ (np.abs(f.V) + f.dV).mT)
        through = M * (dO @ f.V.mT)
        arrived = see * (through + dA)
        D = np.sum(A * arrived, axis=-1, keepdims=True)  # (*b h n 1)
        e_arrived, e_D = arriving_errors(f, dO, e_O, dA, size, through, arrived, dA_, M, of_M, p)
        r = arrived - D + dL[..., None]
        room = np.abs(arrived) + np.abs(dA) + np.abs(D) + np.abs(dL)[..., None] + e_arrived + e_D
        e_r = e_arrived + e_D + gamma(COUNTS["row_gradient"], u(p.softmax)) * room
        dS = np.where(see, A * r, 0.0)
        e_S = dA_ * np.abs(r) + (A + dA_) * e_r
        e_S = np.where(see, carried(dS, e_S, gamma(COUNTS["score_gradient"], u(p.softmax))) + eta(p.softmax, p), 0.0)
        dX, e_X = dS * f.slope, e_S * (f.slope + f.dslope) + np.abs(dS) * f.dslope
        stored = carried(dX, e_X, gamma(1, u(p.weights))) + eta(p.weights, p) * max(1.0, 1.0 / abs(scale) if scale else 1.0)
        stored = np.where(see, stored, 0.0)

        rows = seen_by(see, h_kv)  # how many (query, head) see each key: (*b h_kv m 1)
        keys = np.asarray(np.sum(see, axis=-1, keepdims=True, dtype=np.float64))  # (*b h n 1)
        a, dq = summed(dX, stored, f.K, f.dK, keys, p)
        c, dk = summed(dX.mT, stored.mT, f.Q, f.dQ, spread(rows, h), p)
        weights = M * weights_in_sum(f.soft, A, spread(rows, h), of_M, p)
        weights, kept = np.swapaxes(np.where(see, weights, 0.0), -1, -2), np.swapaxes(M * A, -1, -2)
        dv = over_group(weights @ (np.abs(dO) + e_O) + kept @ e_O, h_kv) + rows * eta(p.accumulator, p) * np.max(M, initial=1.0)
        truth = [scale * a, scale * over_group(c, h_kv), over_group(kept @ dO, h_kv)]
        bounds = [scaled(dq, truth[0], scale, p), scaled(over_group(dk, h_kv), truth[1], scale, p), dv]
        bounds[2] = rounded(dv, truth[2], p.output, p)
        found: dict[str, Any] = dict(zip(("query", "key", "value"), zip(truth, bounds, strict=True), strict=True))
        e_b = carried(dS, e_S, gamma(1, u(p.weights))) + eta(p.weights, p)
        found["bias"] = None if bias is None else bias_gradient_error(dS, np.where(see, e_b, 0.0), see, bias.shape, p)
        found["sink_logits"] = None if sink is None else sink_gradient_error(f.row, D[..., 0], e_D[..., 0], dL, see, sink, p)
        lost = lost | (see & beyond(size, p))
        return exactly(found, query, key, value, arriving, b, see, sink, h_kv, lost), f


def _forward(
    operands: tuple[Reals, Reals, Reals], errors: OperandErrors, b: Reals, see: Truths, p: Profile, scale: float,
    softcap: float | None, sink: Reals | None, factors: Reals | None,
) -> tuple[Forward, Truths]:  # fmt: skip
    """The true forward with its errors, and the pairs (*b h n m) whose score may leave the profile's range."""
    group = operands[0].shape[-3] // max(operands[1].shape[-3], 1)
    Q, dQ = _tame(operands[0]), errors.query
    K, V, dK, dV = (np.repeat(_tame(x), group, axis=-3) for x in (*operands[1:], errors.key, errors.value))
    moved = abs(scale) * (dQ @ (np.abs(K) + dK).mT + np.abs(Q) @ dK.mT)
    G = abs(scale) * (np.abs(Q) @ np.abs(K).mT) + moved
    x = s = scale * (Q @ K.mT)
    delta = product_error(G, x, Q.shape[-1], scale, p) + moved * (1.0 + gamma(COUNTS["stored"], u(p.scores)))
    slope, dslope = np.ones(()), np.zeros(())
    if softcap is not None:
        t = np.tanh(x / softcap)
        s, delta = softcap * t, softcap_error(delta, softcap, p)
        dt = delta / softcap + gamma(1, u(p.softmax)) * np.abs(t)
        slope = 1.0 - t * t
        dslope = np.minimum(2.0 * np.abs(t) * dt + dt * dt, 1.0) + gamma(COUNTS["slope"], u(p.softmax))
    s = np.clip(s + _tame(b), -LARGEST, LARGEST)
    lost = see & overflows(G, x, _tame(b), s, scale, p)
    scores, seen = Scores(s, bias_error(delta + flushed(b, p), s, _tame(b), p)), see
    if sink is not None:
        column = np.broadcast_to(_tame(sink)[:, None, None], (*see.shape[:-1], 1))
        wide = bias_error(flushed(column, p), column, column, p)
        scores = Scores(np.concatenate([s, column], axis=-1), np.concatenate([scores.delta, wide], axis=-1))
        there = np.broadcast_to((sink != -np.inf)[:, None, None], column.shape)
        seen = np.concatenate([see, there], axis=-1)
    row = softmax_error(scores, seen, rescalings(see.shape[-1]), p)
    m = see.shape[-1]
    soft = row._replace(A=row.A[..., :m], log_A=row.log_A[..., :m], E=row.E[..., :m])
    o = (soft.A if factors is None else soft.A * factors) @ V
    B_o = output_error(soft, V, dV, see, o, p, factors)
    return Forward(Q, K, V, dQ, dK, dV, see, slope, dslope, soft, row, o, B_o), lost


def _tame(x: Reals) -> Reals:
    """What is not finite becomes 0; ``exactly`` says what it means."""
    return np.where(np.isfinite(x), x, 0.0)


def doubled(bounds: Any, p: Profile) -> Any:
    """P64 is judged with twice the bound: the truth is float64 arithmetic as well (MHA-NUM-15)."""
    factor = COUNTS["float64_factor"] if p.io == "float64" else 1
    return bounds._replace(**{name: factor * x for name, x in bounds._asdict().items() if isinstance(x, np.ndarray)})
