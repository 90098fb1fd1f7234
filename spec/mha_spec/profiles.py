"""Chapter 4, the constants: number types, numeric profiles, and how often each step may round.

They stand in one file, ``tolerance-1.json``, and this module gives them names. Everything there is counted or looked up,
nothing is fitted. ``constants_hash`` names the whole of it, and every report prints that name (MHA-NUM-14).
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

FILE = Path(__file__).with_name("tolerance-1.json")
"""The constants. A count or a limit stands beside its reason. Another number is another file, of another version."""

_READ: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))

CONSTANTS_VERSION: str = _READ["version"]
"""Changes whenever a number changes, and never in the commit that changes a kernel."""

Grade: TypeAlias = Literal["RN", "ANY"]
"""RN: every operation rounds to nearest. ANY: to nearest, toward zero, or at random (MHA-NUM-19)."""


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


TYPES = MappingProxyType({t["name"]: FloatType(**t) for t in _READ["types"]})
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


PROFILES = MappingProxyType({p["name"]: Profile(**p) for p in _READ["profiles"]})
"""The closed list of profiles by name. A new one needs a new minor version of the specification."""


FLUSHING = " flushing"
"""What follows the name of a profile where an implementation declares that it flushes subnormal numbers (MHA-NUM-23)."""


def profile_of(name: str) -> Profile:
    """The profile of that name; "P32 flushing" is P32 of who declares that it flushes. Raises ``KeyError`` for another name."""
    known = PROFILES[name.removesuffix(FLUSHING)]
    return replace(known, flush=True) if name.endswith(FLUSHING) else known


def _numbers(group: str) -> Mapping[str, Any]:
    """The numbers of a group without their reasons."""
    return MappingProxyType({name: number for name, (number, _) in _READ[group].items()})


COUNTS: Mapping[str, int] = _numbers("counts")
"""How many roundings, each worth 2u, the bounds grant to a step."""

STATISTICS: Mapping[str, Any] = _numbers("statistics")
"""What the statistics of ``numerics_random`` are held to."""


def constants() -> dict[str, Any]:
    """Every constant of the tolerance rule, as the file holds it."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def constants_hash() -> str:
    """The SHA-256 of the file, in hexadecimal: what ``sha256sum`` says of it (MHA-NUM-14)."""
    return hashlib.sha256(FILE.read_bytes()).hexdigest()
