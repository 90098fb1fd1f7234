"""Chapter 4, the steps: one function per line of the derivation, each the error that one step of attention may add.

Arrays are NumPy float64; (*b h n m) unless a line says otherwise. ``p`` is the profile; u_m, u_a, u_s, u_S, u_P, u_o are the
unit roundoffs of its multiplicand, accumulator, softmax, stored scores, stored weights and output. No result is NaN
unless an input is.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mha_spec.profiles import COUNTS, TYPES, Profile
from mha_spec.violation import Violation

Reals: TypeAlias = npt.NDArray[np.float64]
Truths: TypeAlias = npt.NDArray[np.bool_]

LARGEST = TYPES["float64"].largest


class Scores(NamedTuple):
    """The true scores s, and delta: the most by which a computed score may be off."""

    s: Reals
    delta: Reals


class Softmax(NamedTuple):
    """The softmax of a row and its error. The last four hold one number per row, (*b h n 1); terms is n + R."""

    A: Reals
    log_A: Reals
    E: Reals
    L: Reals
    lse: Reals
    log_ell: Reals
    terms: Reals


def u(name: str | None) -> float:
    """Unit roundoff of a type by name; 0 for None, a value that is not stored."""
    return TYPES[name].u if name else 0.0


def u_m(p: Profile) -> float:
    """Unit roundoff of reading an operand: 0 where the multiplicand is the type of the inputs."""
    return u(p.multiplicand) if p.multiplicand != p.io else 0.0


def eta(name: str, p: Profile) -> float:
    """What one rounding to the type may lose near zero."""
    return TYPES[name].eta(p.flush)


def flushed(x: Any, p: Profile, scale: float = 1.0) -> Reals:
    r"""What an operand may lose where flushing is declared: all of it where it, or its product with the scale, is subnormal.

    Nothing where it is not declared (MHA-NUM-23).
    """
    if not p.flush:
        return np.zeros_like(x)
    scaled = TYPES[p.accumulator].smallest_normal / min(1.0, abs(scale)) if scale else np.inf
    size = np.abs(np.where(np.isfinite(x), x, 0.0))
    return np.where(size < max(TYPES[p.io].smallest_normal, scaled), size, 0.0)


def gamma(k: Any, u: float) -> Any:
    r"""k roundings: :math:`\gamma_k(u) = 2ku / (1 - 2ku)` (MHA-NUM-4).

    Higham, Accuracy and Stability of Numerical Algorithms, lemma 3.1, bounds by it any product of k factors
    :math:`(1 + e)^{\pm 1}`; the factor 2 is that of Arm's TOSA and admits every rounding mode. k may be an array.
    Raises ``Violation`` where the formula has no meaning.
    """
    x = 2.0 * np.asarray(k, dtype=np.float64) * u
    if np.any(x >= 1.0):
        raise Violation(
            "MHA-NUM-4",
            f"{np.max(k):g} roundings of unit roundoff {u:g}",
            "2ku < 1",
            "the profile has no bound for this case: use fewer keys, a smaller d_k, or a wider accumulator",
        )
    return x / (1.0 - x)


def both(*errors: Any) -> Any:
    r"""Relative errors one after another: :math:`a \oplus b = (1 + a)(1 + b) - 1`."""
    total: Any = 0.0
    for e in errors:
        total = total + e + total * e
    return total


def carried(x: Any, delta: Any, r: Any) -> Reals:
    r"""The error of a value x that is already off by delta, after a step of relative error r.

    :math:`\delta (1 + r) + r |x|`.
    """
    return np.asarray(delta * (1.0 + r) + r * np.abs(x))


def rounded(B: Any, value: Reals, name: str, p: Profile) -> Reals:
    r"""One rounding to the type ``name``, in any mode: :math:`(1 + 2u) B + 2u |value| + \eta`."""
    return np.asarray(carried(value, B, 2.0 * u(name)) + eta(name, p))


def excess(A: Reals, log_A: Reals, X: Any) -> Reals:
    r""":math:`A (e^X - 1)` for :math:`A = e^{log\_A}`, which may have underflowed, and X of any size."""
    grown = np.exp(np.clip(log_A, -LARGEST, LARGEST) + np.minimum(X, LARGEST)) - A
    small = A * np.expm1(np.minimum(X, 1.0))
    return np.asarray(np.minimum(np.where(X < 1.0, small, grown), LARGEST))


# Scores


def product_error(G: Reals, x: Reals, d_k: int, scale: float, p: Profile) -> Reals:
    r"""The scaled product x, stored: :math:`(\gamma_d(u_a) \oplus \gamma_2(u_m) \oplus \gamma_4(u_s)) G + |scale| d \eta_a`.

    :math:`G = |scale| |Q| |K|^T` is the classic bound of a dot product (Higham, section 3.1; the ratio in the test
    programs of the BLAS; TOSA's ``bnd``). Where scores are stored, :math:`\gamma_1(u_S)` of x follows (MHA-NUM-6).
    """
    r = both(gamma(d_k, u(p.accumulator)), gamma(COUNTS["operands"], u_m(p)), gamma(COUNTS["scale"], u(p.softmax)))
    floor = abs(scale) * d_k * eta(p.accumulator, p)
    return carried(x, r * G + floor, gamma(COUNTS["stored"], u(p.scores)))


def softcap_error(delta: Reals, c: float, p: Profile) -> Reals:
    r""":math:`\min(\delta, 2c) + 12 u_s c + 6 u_S c` after :math:`c \tanh(s/c)` (MHA-ATTN-10).

    The slope is at most 1, two capped scores differ by at most 2c, and tanh is granted 4 ulp (MHA-NUM-6).
    """
    roundings = COUNTS["softcap"] * u(p.softmax) + COUNTS["stored_softcap"] * u(p.scores)
    return np.asarray(np.minimum(delta, 2.0 * c) + 2.0 * roundings * c)


def bias_error(delta: Reals, s: Reals, bias: Reals, p: Profile) -> Reals:
    r"""The finished score: :math:`\delta + (\gamma_3(u_s) + \gamma_1(u_S)) |b|`, then a step of
    :math:`\gamma_3(u_s) \oplus \gamma_1(u_S)` on s (MHA-NUM-6).

    The three roundings of b and of s serve kernels that work in base 2: log2(e) as a constant, its product, the sum.
    """
    store = gamma(COUNTS["stored"], u(p.scores))
    delta = delta + (gamma(COUNTS["bias"], u(p.softmax)) + store) * np.abs(bias)
    return carried(s, delta, both(gamma(COUNTS["score"], u(p.softmax)), store))


def overflows(G: Reals, x: Reals, bias: Reals, s: Reals, scale: float, p: Profile) -> Truths:
    """Where a partial sum or the score may leave the profile's range, so that no number can be promised.

    Not where the score lies so far below the others that its weight is 0 either way.
    """
    top = TYPES[p.softmax].largest
    limit = min(top, abs(scale) * TYPES[p.accumulator].largest)
    rises, falls = (G + x) / 2.0 <= limit, (G - x) / 2.0 <= limit
    lost = rises & (s <= -0.75 * top) & (bias <= 0.25 * top)
    return np.asarray(~((rises & falls) | lost))


# Softmax


def rescalings(m: int) -> int:
    r""":math:`R = \max(\lceil m / 8 \rceil - 1, 0)`: how often online softmax may rescale a row of m keys (MHA-NUM-6)."""
    return max(-(-m // COUNTS["block"]) - 1, 0)


def softmax_error(scores: Scores, see: Truths, R: int, p: Profile) -> Softmax:
    r"""Each row's A, and :math:`E = \delta + \gamma_1(u_s) T + \epsilon(T)`, :math:`L = \log \sum_j A_j e^{E_j}` (MHA-NUM-6).

    :math:`T = |t| + \delta + \max_j (t_j + \delta_j)` bounds the computed :math:`|s - \max s|`. Blanchard, Higham and
    Higham (2020) analyse the shifted softmax; that E + L is enough follows from Cauchy and Schwarz.
    """
    top = np.max(np.where(see, scores.s, -np.inf), axis=-1, keepdims=True, initial=-np.inf)  # (*b h n 1)
    top = np.where(np.isfinite(top), top, 0.0)
    t = np.where(see, np.clip(scores.s - top, -LARGEST, 0.0), 0.0)
    out_of_range = np.isnan(scores.delta) | (np.abs(top) >= 0.5 * TYPES[p.softmax].largest)
    delta = np.where(see, np.where(out_of_range, np.inf, scores.delta), 0.0)

    e = np.where(see, np.exp(t), 0.0)
    ell = np.sum(e, axis=-1, keepdims=True)  # (*b h n 1)
    some = np.where(ell > 0.0, ell, 1.0)
    A, log_A = e / some, t - np.log(some)

    drift = np.max(np.where(see, t + delta, 0.0), axis=-1, keepdims=True, initial=0.0)
    T = -t + delta + drift
    E = delta + gamma(COUNTS["shift"], u(p.softmax)) * T + exp_error(T, R, p)
    E = np.where(see, np.minimum(E, LARGEST), 0.0)
    L = np.minimum(np.log1p(np.sum(excess(A, log_A, E), axis=-1, keepdims=True)), LARGEST)
    lse = np.where(ell > 0.0, top + np.log(some), -np.inf)
    terms = np.sum(see, axis=-1, keepdims=True, dtype=np.float64) + R
    return Softmax(A, log_A, E, L, lse, np.asarray(np.log(some)), np.asarray(terms))


def exp_error(T: Reals, R: int, p: Profile) -> Reals:
    r"""1 + R exponentials whose arguments add up to T: :math:`\epsilon = y / (1 - \min(y, 1/2))`, :math:`y = 2 u_s (3 + 3R + 2T)`.

    Each is within 3 + 2|x| ulp, as OpenCL grants in its relaxed mode, and an ulp is 2u. The quotient makes it a bound of
    :math:`|\log(1 \pm y)|`; past y = 1/2 the weight has underflowed, and ``weight_floor`` pays.
    """
    y = 2.0 * u(p.softmax) * (COUNTS["exp_ulps"] * (1 + R) + COUNTS["exp_ulps_per_unit"] * T)
    return np.asarray(y / (1.0 - np.minimum(y, 0.5)))


def weight_floor(p: Profile) -> float:
    r"""What a weight may lose near zero before it is stored: :math:`(6 + 2 |\log \eta_s|) \eta_s`, ulps of exp and division."""
    near_zero = eta(p.softmax, p)
    ulps = COUNTS["exp_ulps"] + COUNTS["normalise"] + COUNTS["exp_ulps_per_unit"] * abs(np.log(near_zero))
    return float(ulps * near_zero)


# Results


def growth(terms: Reals, p: Profile) -> Reals:
    r"""After exp: :math:`\rho = \gamma_1(u_P) + \gamma_1(u_m) + \gamma_{n+R}(u_a) + \gamma_{n+R}(u_s) + \gamma_3(u_s)`.

    Store P, read V, sum PV, sum the row, divide (MHA-NUM-6).
    """
    reads = gamma(1, u(p.weights)) + gamma(1, u_m(p))
    sums = gamma(terms, u(p.accumulator)) + gamma(terms, u(p.softmax))
    return np.asarray(reads + sums + gamma(COUNTS["normalise"], u(p.softmax)))


def of_factors(M: Reals | None, p: Profile) -> Any:
    r"""What the factors M of dropout add to :math:`\rho`: :math:`\gamma_2(u_s)`, and nothing where there are none (MHA-NUM-24)."""
    return 0.0 if M is None else gamma(COUNTS["dropout"], u(p.softmax))


def output_error(soft: Softmax, V: Reals, dV: Reals, see: Truths, o: Reals, p: Profile, M: Reals | None = None) -> Reals:
    r"""(*b h n d_v), MHA-NUM-6:
    :math:`B = (1 + 2u_o)[A (e^{E+L+\rho} - 1) (|V| + \Delta V) + A \Delta V + F] + 2 u_o |o| + \eta_o`.

    :math:`F = (\eta_P + floor) e^{L + \rho} \sum_j |v_j| + (n + R) \eta_a + \eta_s` is lost near zero. Weights may be normalised
    before they are stored, hence no division by the row sum, unless the profile declares a scale for e^(s - max). With dropout each
    term, and what is lost with it, is multiplied by its factor M; a sum may be scaled when it is whole (MHA-NUM-24).
    """
    rho = growth(soft.terms, p) + of_factors(M, p)
    kept, most = (see, 1.0) if M is None else (np.where(see, M, 0.0), np.max(M, axis=-1, keepdims=True, initial=1.0))
    factor = 1.0 if M is None else M
    near_zero: Any = eta(p.weights, p)
    if p.weight_scale is not None:
        near_zero = near_zero / p.weight_scale * np.exp(-soft.log_ell)
    size = np.abs(V) + dV
    F = (near_zero + weight_floor(p)) * np.minimum(np.exp(soft.L + rho), LARGEST) * (kept @ size)
    F = F + most * (soft.terms * eta(p.accumulator, p) + eta(p.softmax, p))
    B = (factor * excess(soft.A, soft.log_A, soft.E + soft.L + rho)) @ size + (factor * soft.A) @ dV + F
    return rounded(B, o, p.output, p)


def lse_error(soft: Softmax, p: Profile) -> Reals:
    r"""(*b h n): :math:`L + \gamma_{n+R}(u_s) + \gamma_3(u_s)(1 + |lse| + \log \ell)` (MHA-NUM-7)."""
    size = 1.0 + np.abs(soft.lse) + soft.log_ell
    B = soft.L + gamma(soft.terms, u(p.softmax)) + gamma(COUNTS["lse"], u(p.softmax)) * size
    return np.asarray(B[..., 0])


def weights_error(soft: Softmax, p: Profile) -> Reals:
    r""":math:`(1 + 2u_o)[A (e^{E + L + \gamma_{n+R}(u_s) + \gamma_3(u_s)} - 1) + floor] + 2 u_o A + \eta_o` (MHA-NUM-8)."""
    rho = gamma(soft.terms, u(p.softmax)) + gamma(COUNTS["normalise"], u(p.softmax))
    return rounded(excess(soft.A, soft.log_A, soft.E + soft.L + rho) + weight_floor(p), soft.A, p.output, p)


def projection_error(x: Reals, dx: Reals, w: Reals, b: Reals, p: Profile) -> Reals:
    r"""x W + b for x off by dx (MHA-NUM-13):
    :math:`\Delta x |W| + (\gamma_{i+1}(u_a) \oplus \gamma_2(u_m))((|x| + \Delta x) |W| + |b|)`.

    x (*b h n i), w (h i o), b (h 1 o) -> (*b h n o). A running error analysis: Higham, section 3.3.
    """
    i = w.shape[-2]
    r = both(gamma(i + 1, u(p.accumulator)), gamma(COUNTS["operands"], u_m(p)))
    size = (np.abs(x) + dx) @ np.abs(w) + np.abs(b)
    lost = (np.abs(x) + dx) @ flushed(w, p) + flushed(b, p) if p.flush else 0.0
    return np.asarray(dx @ np.abs(w) + lost + r * size + i * eta(p.accumulator, p))
