"""Chapter 5, the steps: one function per line of the derivation, each the error that one step of the backward may add.

They carry on ``numerics_steps``: arrays are NumPy float64, (*b h n m) unless a line says otherwise, ``p`` is the profile. ``row`` axes of
size 1 are kept. No result is NaN unless an input is.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mha_spec.numerics_steps import (
    LARGEST,
    Reals,
    Softmax,
    Truths,
    both,
    carried,
    eta,
    excess,
    exp_error,
    gamma,
    lse_error,
    rounded,
    u,
    u_m,
    weight_floor,
)  # fmt: skip
from mha_spec.profiles import COUNTS, TYPES, Profile


class OperandErrors(NamedTuple):
    """By how much the operands of the heads, and what arrives at their output, may be off already; in their shapes."""

    query: Reals
    key: Reals
    value: Reals
    grad_output: Reals


@dataclass(frozen=True, slots=True)
class Forward:
    """What the backward begins with: operands as every query head reads them, without what is not finite, and the true forward."""

    Q: Reals
    K: Reals
    V: Reals
    dQ: Reals
    dK: Reals
    dV: Reals
    """Their errors."""
    see: Truths
    slope: Reals
    dslope: Reals
    soft: Softmax
    """Without the sink."""
    row: Softmax
    """With the sink, the last column, where there is one."""
    o: Reals
    B_o: Reals


def weight_error(soft: Softmax, see: Truths, p: Profile) -> Reals:
    r"""The weight that the backward computes: :math:`A (e^{X} - 1) + floor`, X the worse of two ways.

    From the row sum, as in the forward: :math:`X = E + L + \gamma_{n+R}(u_s) + \gamma_3(u_s)`. From the lse, as
    :math:`\exp(s - lse)`: :math:`X = E + \Delta lse + \gamma_3(u_s) |lse| + \gamma_1(u_s) T + \epsilon(T)` with
    :math:`T = -\log A + E + \Delta lse`, since :math:`s - lse` is the logarithm of the weight.
    """
    return np.where(see, excess(soft.A, soft.log_A, log_error(soft, p)) + weight_floor(p), 0.0)


def log_error(soft: Softmax, p: Profile) -> Reals:
    us = u(p.softmax)
    by_sum = soft.L + gamma(soft.terms, us) + gamma(COUNTS["normalise"], us)
    dlse = lse_error(soft, p)[..., None]
    T = np.minimum(-soft.log_A + soft.E + dlse, LARGEST)
    by_lse = dlse + gamma(COUNTS["lse_again"], us) * np.abs(np.where(np.isfinite(soft.lse), soft.lse, 0.0))
    by_lse = by_lse + gamma(COUNTS["shift"], us) * T + exp_error(T, 0, p)
    return np.asarray(np.minimum(soft.E + np.maximum(by_sum, by_lse), LARGEST))


def arriving_errors(
    f: Forward, dO: Reals, e_O: Reals, dA: Reals, size: Reals, through: Reals, arrived: Reals, dA_: Reals, M: Reals, of_M: Any, p: Profile,
) -> tuple[Reals, Reals]:  # fmt: skip
    r"""Of dP and of D (*b h n 1).

    :math:`\Delta dP = (\gamma_{d_v}(u_a) \oplus \gamma_2(u_m)) |dO| |V|^T`, stored with the scores where these are.
    :math:`\Delta D` is the worse of two ways: :math:`|dO| \cdot B + \gamma_{d_v}(u_s) |dO| \cdot (|O| + B)`, where B is the bound of the
    rounded output, which kernels use; and the sum of the errors of :math:`A \, dP`. What dO and V are off by already, e_O and dV, is added.
    With dropout size and through hold its factors M, which round ``of_M``.
    """
    d_v, A, us = f.V.shape[-1], f.soft.A, u(p.softmax)
    e = both(gamma(d_v, u(p.accumulator)), gamma(COUNTS["operands"], u_m(p)), of_M) * size + M * d_v * eta(p.accumulator, p)
    e = e + M * ((np.abs(dO) + e_O) @ f.dV.mT + e_O @ np.abs(f.V).mT)
    e = carried(through, e, gamma(COUNTS["stored"], u(p.scores)))
    e = np.where(f.see, e + gamma(1, us) * (np.abs(arrived) + np.abs(dA)), 0.0)

    def summed(x: Any, error: Any) -> Reals:
        """The error of the sum of A x over the row."""
        terms = (A + dA_) * error + dA_ * np.abs(x)
        rest = gamma(f.soft.terms + 1, us) * np.sum(
            np.where(f.see, (A + dA_) * (np.abs(x) + error), 0.0), axis=-1, keepdims=True
        )
        return np.asarray(np.sum(np.where(f.see, terms, 0.0), axis=-1, keepdims=True) + rest)

    size_o = np.abs(f.o) + f.B_o
    by_output = np.sum(np.abs(dO) * f.B_o + e_O * size_o, axis=-1, keepdims=True)
    by_output = by_output + gamma(d_v, us) * np.sum((np.abs(dO) + e_O) * size_o, axis=-1, keepdims=True)
    by_output = by_output + summed(dA, np.zeros(()))
    return np.asarray(e), np.maximum(by_output, summed(arrived, e)) + (d_v + 1) * eta(p.softmax, p)


def summed(dX: Reals, error: Reals, Y: Reals, dY: Reals, terms: Any, p: Profile) -> tuple[Reals, Reals]:
    r"""(... r c), (... c d) -> dX Y (... r d), and its error for a dX that is off by ``error``, here :math:`\Delta`:

    :math:`\Delta |Y| + (\gamma_{terms}(u_a) \oplus \gamma_2(u_m)) (|dX| + \Delta) |Y| + terms \, \eta_a`;
    a Y that is off by dY adds to it.
    """
    r = both(gamma(terms, u(p.accumulator)), gamma(COUNTS["operands"], u_m(p)))
    size = np.abs(Y) + dY
    moved = error @ size + np.abs(dX) @ dY
    return dX @ Y, moved + r * ((np.abs(dX) + error) @ size) + terms * eta(p.accumulator, p)


def weights_in_sum(soft: Softmax, A: Reals, rows: Reals, of_M: Any, p: Profile) -> Reals:
    r"""Of a weight that is stored and summed over queries: :math:`A (e^{X + \rho} - 1) + (floor + \eta_P) e^\rho`,
    :math:`\rho = \gamma_1(u_P) + \gamma_2(u_m) + \gamma_{rows}(u_a)`, and ``of_M`` more with dropout; rows (*b h m 1)."""
    rho = gamma(1, u(p.weights)) + gamma(COUNTS["operands"], u_m(p)) + np.swapaxes(gamma(rows, u(p.accumulator)), -1, -2)
    rho = rho + of_M
    grown = excess(A, soft.log_A, np.minimum(log_error(soft, p) + rho, LARGEST))
    return np.asarray(grown + (weight_floor(p) + eta(p.weights, p)) * np.exp(rho))


def scaled(error: Reals, value: Reals, scale: float, p: Profile) -> Reals:
    """The product with the scale, wherever it stands, and the rounding to the operand's type."""
    return rounded(carried(value, abs(scale) * error, gamma(COUNTS["scale"], u(p.softmax))), value, p.output, p)


def bias_gradient_error(dS: Reals, error: Reals, see: Truths, shape: tuple[int, ...], p: Profile) -> tuple[Reals, Reals]:
    """The sum over the axes along which the bias was broadcast."""
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and dS.shape[axis] != 1)

    def total(x: Any) -> Reals:
        return np.asarray(np.sum(x, axis=axes, keepdims=True) if axes else x)

    uses = total(see.astype(np.float64))
    value = total(dS)
    e = total(error) + gamma(uses, u(p.accumulator)) * total(np.abs(dS) + error) + uses * eta(p.accumulator, p)
    return value, np.where(uses > 0, rounded(e, value, p.output, p), 0.0)


def sink_gradient_error(
    row: Softmax, D: Reals, e_D: Reals, dL: Reals, see: Truths, sink: Reals, p: Profile
) -> tuple[Reals, Reals]:
    """(h): the sum over batch and rows of p (dL - D), p the weight of the last column."""
    last = row._replace(A=row.A[..., -1:], log_A=row.log_A[..., -1:], E=row.E[..., -1:])
    share, e_p = last.A[..., 0], weight_error(last, np.ones((), dtype=np.bool_), p)[..., 0]
    some = np.any(see, axis=-1)
    share, e_p = np.where(some, share, 1.0), np.where(some, e_p, 0.0)
    D, e_D = np.where(some, D, 0.0), np.where(some, e_D, 0.0)
    r = dL - D
    e_r = e_D + gamma(1, u(p.softmax)) * (np.abs(dL) + np.abs(D) + e_D)
    terms = share * r
    e = carried(terms, e_p * np.abs(r) + (share + e_p) * e_r, gamma(1, u(p.softmax)))
    axes = (*range(terms.ndim - 2), terms.ndim - 1)
    count = terms.size // max(terms.shape[-2], 1)
    value = np.sum(terms, axis=axes)
    total = np.sum(e, axis=axes) + gamma(count, u(p.accumulator)) * np.sum(np.abs(terms) + e, axis=axes)
    there = sink != -np.inf
    B = rounded(total + count * eta(p.accumulator, p), value, p.output, p)
    return np.where(there, value, 0.0), np.where(there, B, 0.0)


def beyond(size: Reals, p: Profile) -> Truths:
    """Where a sum of dO and v may leave the profile's range."""
    return np.asarray(size > 0.25 * min(TYPES[p.softmax].largest, TYPES[p.accumulator].largest))


def over_group(x: Reals, h_kv: int) -> Reals:
    """(*b h m d) -> (*b h_kv m d): the sum over the query heads of a key head."""
    *b, h, m, d = x.shape
    return np.asarray(np.sum(np.reshape(x, (*b, h_kv, h // h_kv if h_kv else 1, m, d)), axis=-3))


def seen_by(see: Truths, h_kv: int) -> Reals:
    """(*b h n m) -> (*b h_kv m 1): how many queries of the group see each key."""
    return over_group(np.asarray(np.sum(see, axis=-2, dtype=np.float64))[..., None], h_kv)


def spread(x: Reals, h: int) -> Reals:
    """(*b h_kv m 1) -> (*b h m 1)."""
    return np.repeat(x, h // max(x.shape[-3], 1), axis=-3)
