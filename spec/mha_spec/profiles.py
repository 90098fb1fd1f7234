"""Chapter 4, the constants: number types, numeric profiles, and how often each step may round.

Everything here is counted or looked up, nothing is fitted. ``constants_hash`` names the whole of it, and every report
prints that name (MHA-NUM-14).
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from types import MappingProxyType

CONSTANTS_VERSION = "0.2"
"""Changes whenever a number of this module changes, and never in the commit that changes a kernel."""


@dataclass(frozen=True, slots=True)
class FloatType:
    """A binary number type: ``bits`` significand bits p with the hidden one, normal from 2^e_min, at most ``largest``."""

    name: str
    bits: int
    e_min: int
    largest: float

    @property
    def u(self) -> float:
        """The unit roundoff u = 2^-p: rounding to nearest moves a number by at most this part of it."""
        return math.ldexp(1.0, -self.bits)

    @property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, self.e_min)

    @property
    def smallest_subnormal(self) -> float:
        return math.ldexp(1.0, self.e_min - self.bits + 1)

    def eta(self, flush: bool = False) -> float:
        """The most that one rounding can lose near zero, in any rounding mode: the smallest subnormal number.

        Where flush-to-zero is declared it is the smallest normal number. Rounding to nearest loses half as much.
        """
        return self.smallest_normal if flush else self.smallest_subnormal


def _largest(bits: int, e_max: int) -> float:
    return math.ldexp(2.0 - 2.0 ** (1 - bits), e_max)


TYPES = MappingProxyType(
    {
        t.name: t
        for t in (
            FloatType("float64", 53, -1022, _largest(53, 1023)),
            FloatType("float32", 24, -126, _largest(24, 127)),
            FloatType("tf32", 11, -126, _largest(11, 127)),  # a multiplicand only
            FloatType("float16", 11, -14, _largest(11, 15)),
            FloatType("bfloat16", 8, -126, _largest(8, 127)),
            FloatType("float8_e4m3fn", 4, -6, 448.0),  # no infinity: the last code of the top binade is NaN
            FloatType("float8_e5m2", 3, -14, _largest(3, 15)),
            FloatType("acc14", 14, -126, _largest(14, 127)),  # the accumulator of some fp8 matrix units
        )
    }
)
"""The number types by name."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Where a call may round, and to which type: the promise that a backend makes about its arithmetic (MHA-NUM-5)."""

    name: str
    io: str
    """Inputs, and outputs unless ``output`` says otherwise."""
    multiplicand: str
    """What a product reads; another type than ``io`` means that operands are rounded once more."""
    accumulator: str
    softmax: str
    scores: str | None
    """What the score matrix is stored in; None where it never leaves the softmax type."""
    weights: str
    """What the weights are stored in before they meet V."""
    output: str
    weight_scale: float | None = None
    """A declared constant on e^(s - max) before the weights are stored; None where they may be normalised first."""
    flush: bool = False
    """Whether subnormal numbers may become zero."""

    @property
    def lse(self) -> str:
        """The type of the log-sum-exp (MHA-AUX-5)."""
        return "float64" if self.io == "float64" else "float32"


def _profile(name: str, io: str, multiplicand: str, accumulator: str, scores: str | None, weights: str) -> Profile:
    fp8 = io.startswith("float8")
    return Profile(
        name, io, multiplicand, accumulator, "float64" if io == "float64" else "float32", scores, weights,
        "bfloat16" if fp8 else io, 256.0 if fp8 else None,
    )  # fmt: skip


PROFILES = MappingProxyType(
    {
        p.name: p
        for p in (
            _profile("P64", "float64", "float64", "float64", None, "float64"),
            _profile("P32", "float32", "float32", "float32", None, "float32"),
            _profile("PTF32", "float32", "tf32", "float32", None, "tf32"),
            _profile("P16", "float16", "float16", "float32", None, "float16"),
            _profile("PB16", "bfloat16", "bfloat16", "float32", None, "bfloat16"),
            _profile("P16-eager", "float16", "float16", "float32", "float16", "float16"),
            _profile("PB16-eager", "bfloat16", "bfloat16", "float32", "bfloat16", "bfloat16"),
            _profile("P16-acc16", "float16", "float16", "float16", None, "float16"),
            _profile("PE4M3", "float8_e4m3fn", "float8_e4m3fn", "float32", None, "float8_e4m3fn"),
            _profile("PE5M2", "float8_e5m2", "float8_e5m2", "float32", None, "float8_e5m2"),
            _profile("PE4M3-acc14", "float8_e4m3fn", "float8_e4m3fn", "acc14", None, "float8_e4m3fn"),
        )
    }
)
"""The closed list of profiles by name. A new one needs a new minor version of the specification."""

COUNTS = MappingProxyType(
    {
        "operands": 2,  # q and k, where the multiplicand is another type
        "scale": 4,  # the constant and its product; both twice where sqrt(scale) goes to q and to k
        "bias": 3,  # conversion, log2(e), product with it
        "score": 3,  # sum with the bias, log2(e), product with it
        "softcap": 6,  # of c: tanh within 4 ulp (4), the constant, the product; the quotient hides in tanh's slope
        "stored_softcap": 3,  # of c: quotient, tanh, product, where scores are stored
        "stored": 1,  # the scaled product once, the finished score once, a bias once
        "shift": 1,  # s - max
        "exp_ulps": 3,  # exp within 3 + 2|t| ulp, as OpenCL grants it in its relaxed mode
        "exp_ulps_per_unit": 2,
        "block": 8,  # keys: online softmax may rescale once for every block after the first
        "normalise": 3,  # division, or reciprocal and product, and a last conversion
        "lse": 3,  # logarithm within 3 ulp; log(2), product, sum with the maximum
        "lse_again": 3,  # backward: the lse converted, log2(e), product with it
        "row_gradient": 3,  # backward: dP + dA, minus D, plus dL
        "score_gradient": 2,  # backward: product with the weight, and a conversion
        "slope": 3,  # backward: the square of tanh, the difference, the product with it
        "float64_factor": 2,  # the truth is itself computed in float64 (MHA-NUM-15)
        "usable": 64,  # a case is used where the truth is this much better than the bound (MHA-NUM-16)
    }
)
"""How many roundings, each worth 2u, the bounds grant to a step."""


def constants() -> dict[str, object]:
    """Every constant of the tolerance rule as plain values."""
    return {
        "version": CONSTANTS_VERSION,
        "types": {name: asdict(t) for name, t in TYPES.items()},
        "profiles": {name: asdict(p) for name, p in PROFILES.items()},
        "counts": dict(COUNTS),
    }


def constants_hash() -> str:
    """The SHA-256 of ``constants()`` as JSON with sorted keys and no spaces, in hexadecimal (MHA-NUM-14)."""
    text = json.dumps(constants(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
