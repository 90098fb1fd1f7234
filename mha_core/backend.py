"""A backend is a value: functions and what they claim. No base class, no current backend, no registration by side effect."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from mha_core.errors import Unsupported
from mha_spec.call import Array, AttentionGradients, AttentionResult, Call, Cotangents, Tangents
from mha_spec.profiles import Grade

Determinism: TypeAlias = Literal["none", "run-to-run", "batch-invariant", "bit-exact"]
Memory: TypeAlias = Literal["linear"]

FEATURES = (
    "mask", "bias", "causal", "offset", "window", "lengths", "segments", "grouped", "d_v",
    "scale", "softcap", "sink", "weights", "lse", "dropout", "vjp", "jvp", "layer",
)  # fmt: skip
"""Every option is one feature; plain attention over heads is the core, which has no name because it cannot be unclaimed."""

FORWARD = frozenset(FEATURES) - {"dropout", "vjp", "jvp"}
"""Every feature of the forward call but dropout, which is a claim of its own because it needs a generator."""

STRICTEST: Mapping[str, str] = MappingProxyType({"float64": "P64", "float32": "P32", "float16": "P16", "bfloat16": "PB16"})
"""The strictest numeric profile of each dtype (MHA-NUM-5)."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a backend says of itself, and is held to.

    ``grade`` is how it rounds (MHA-NUM-19): "RN" claims that every operation rounds to nearest.
    ``arrays`` is the root module of the arrays it takes (None: any one array-API library); ``profiles`` names the numeric
    profile of each dtype (chapter 4); ``strict`` claims bitwise non-interference (MHA-MASK-19); ``determinism`` is MHA-EXEC-8.
    ``flushes_subnormals`` says that what is smaller than the smallest normal number may become 0 (MHA-NUM-23).
    ``memory`` "linear" claims extra memory linear in n + m for calls that return no weights (MHA-COST-7).
    """

    arrays: str | None
    dtypes: tuple[str, ...]
    features: frozenset[str]
    profiles: Mapping[str, str]
    strict: bool
    determinism: Determinism
    grade: Grade = "ANY"
    flushes_subnormals: bool = False
    memory: Memory | None = None

    def __post_init__(self) -> None:
        if unknown := self.features - set(FEATURES):
            raise ValueError(f"unknown features {sorted(unknown)}; known are {', '.join(FEATURES)}")
        if self.determinism not in get_args(Determinism):
            raise ValueError(f"determinism {self.determinism!r}; the classes are {', '.join(get_args(Determinism))}")
        if self.grade not in get_args(Grade):
            raise ValueError(f"grade {self.grade!r}; the grades are {', '.join(get_args(Grade))}")
        if self.memory not in (None, *get_args(Memory)):
            raise ValueError(f"memory {self.memory!r}; the class is {', '.join(get_args(Memory))}, and None claims nothing")
        if set(self.profiles) != set(self.dtypes):
            raise ValueError(f"profiles for {sorted(self.profiles)}, dtypes {sorted(self.dtypes)}: one profile per dtype")


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """Who computes: ``attend`` takes a legal call and gives the arrays it asks for; it never judges legality.

    ``linear(x (..., i), w (i, o), b (o,) | None) -> (..., o)`` accumulates in float32 or better and returns x's dtype.
    ``to_host(array)`` gives a NumPy array of the exact values (bfloat16 widened to float32);
    ``from_host(values, dtype)`` gives the library's array of the named dtype; ``devices()`` lists what can be used now.
    ``attend_vjp(call, cotangents, forward)`` gives the gradients of chapter 5, each in its operand's shape and dtype, the bias's in
    that of ``call.bias``; ``forward`` holds output and lse where the caller has kept them, and is None where they must be computed
    again. ``attend_jvp(call, tangents)`` gives the results and how fast they move, both with what the call asks for. A backend
    without one of them does not claim ``vjp`` or ``jvp``.
    ``explain(call)`` names the kernel that ``attend`` would run, by options, shapes, dtype and device, and computes nothing.
    """

    name: str
    attend: Callable[[Call], AttentionResult]
    linear: Callable[[Array, Array, Array | None], Array]
    to_host: Callable[[Array], Any]
    from_host: Callable[[Any, str], Array]
    devices: Callable[[], tuple[str, ...]]
    claims: Claims
    explain: Callable[[Call], str] = lambda call: "its only kernel"
    attend_vjp: Callable[[Call, Cotangents, AttentionResult | None], AttentionGradients] | None = None
    attend_jvp: Callable[[Call, Tangents], tuple[AttentionResult, AttentionResult]] | None = None

    def __post_init__(self) -> None:
        for feature, function in (("vjp", self.attend_vjp), ("jvp", self.attend_jvp)):
            if feature in self.claims.features and function is None:
                raise ValueError(f"backend {self.name!r} claims the feature {feature} and has no attend_{feature}")


def check_claimed(backend: Backend, features: Set[str]) -> None:
    """MHA-EXEC-9: what a backend does not claim it is not asked for. Raises ``Unsupported``."""
    claimed = backend.claims.features
    if missing := sorted(features - claimed):
        raise Unsupported(
            backend.name, ", ".join(missing), ", ".join(sorted(claimed)) or "plain attention alone", tuple(missing)
        )
