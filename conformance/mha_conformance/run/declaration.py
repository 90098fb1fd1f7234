"""What an implementation says of itself in a claims file (TOML), in place of what its signature shows.

features = ["mask", "causal"]                 # of mha_core.FEATURES
dtypes = ["float32", "bfloat16"]
profiles = { float32 = "P32", bfloat16 = "PB16" }
strict = false                                # MHA-MASK-19
determinism = "run-to-run"                    # MHA-EXEC-8
grade = "ANY"                                 # MHA-NUM-19: RN rounds to nearest everywhere, ANY in any mode
flushes_subnormals = false                    # MHA-NUM-23: true where subnormal numbers may be taken for 0
memory = "linear"                             # MHA-COST-7: no call without weights holds an array of n by m
layout = "bnhd"                               # its axes, where not (batch, heads, positions, channels)
layouts = ["contiguous", "transposed"]        # the memory layouts it takes; all where absent
excludes = [["mask", "causal"]]               # features that cannot be asked for together
native_offset = "top-left"                    # or "bottom-right": where its causal mask begins, without query_offset
heads_mix = false                             # products over all channels stand around its heads
measured_on = "torch 2.13.0"                  # the version that these claims speak of
limits = { d_k = { max = 256, multiple_of = 8 }, batch_axes = { min = 1, max = 1 } }
environment = { JAX_ENABLE_X64 = "1" }        # set before it is imported
hooks = { to_native = "my_module:to_native", from_native = "my_module:from_native" }
vjp = "my_module:attention_vjp"               # its gradients, called as MHA-GRAD-1 has it; this claims the feature vjp
differentiable = true                         # or: they come by automatic differentiation of its arrays' library
xfail = [...]                                 # failures that are known: mha_conformance.run.xfail

``to_native(array, name)`` makes its array of a NumPy array, and raises ``mha_conformance.run.arrays.Inexpressible`` for what its
library cannot hold; ``from_native(array)`` gives the exact values back as a NumPy array.
"""

import importlib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mha_conformance.cases.execution import LAYOUTS
from mha_conformance.run.xfail import Expected
from mha_conformance.run.xfail import read as read_expected
from mha_core import Claims
from mha_core.backend import STRICTEST
from mha_spec.numerics import PROFILES

SIZES = ("batch_axes", "h", "h_kv", "n", "m", "d_k", "d_v")
BOUNDS = ("min", "max", "multiple_of")


@dataclass(frozen=True, slots=True)
class Declaration:
    """A claims file, read and checked. What it leaves out is None, or the value that asks for nothing."""

    features: frozenset[str] | None = None
    dtypes: tuple[str, ...] | None = None
    profiles: Mapping[str, str] | None = None
    strict: bool | None = None
    determinism: str | None = None
    grade: str | None = None
    flushes_subnormals: bool | None = None
    memory: str | None = None
    layout: str | None = None
    layouts: tuple[str, ...] | None = None
    excludes: tuple[frozenset[str], ...] = ()
    native_offset: str | None = None
    heads_mix: bool = False
    measured_on: str | None = None
    version: str | None = None
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    hooks: Mapping[str, str] = field(default_factory=dict)
    vjp: str | None = None
    differentiable: bool = False
    xfail: tuple[Expected, ...] = ()

    def over(self, claims: Claims) -> Claims:
        """``claims``, with what is declared in the place of what was inferred."""
        dtypes = claims.dtypes if self.dtypes is None else self.dtypes
        inferred = {dtype: claims.profiles.get(dtype, STRICTEST[dtype]) for dtype in dtypes}
        return Claims(
            arrays=claims.arrays,
            dtypes=dtypes,
            features=(claims.features if self.features is None else self.features) | self._trained,
            profiles=inferred if self.profiles is None else self.profiles,
            strict=claims.strict if self.strict is None else self.strict,
            determinism=self.determinism or claims.determinism,  # type: ignore[arg-type]  # Claims refuses a strange one
            grade=self.grade or claims.grade,  # type: ignore[arg-type]
            flushes_subnormals=claims.flushes_subnormals if self.flushes_subnormals is None else self.flushes_subnormals,
            memory=self.memory or claims.memory,  # type: ignore[arg-type]
        )

    @property
    def _trained(self) -> frozenset[str]:
        """Who says where its gradients come from claims them."""
        return frozenset({"vjp"} if self.vjp is not None or self.differentiable else ())

    def apply_environment(self) -> None:
        """Set the variables, before the implementation is imported."""
        os.environ.update(self.environment)

    def hook(self, name: str) -> Callable[..., Any] | None:
        """The function that the hook names; the current directory is importable by then."""
        named = self.vjp if name == "vjp" else self.hooks.get(name)
        if named is None:
            return None
        module, _, attribute = named.partition(":")
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]


def read(path: str | None) -> Declaration:
    """The declaration in a file; without one, nothing is declared. Raises ``ValueError`` for what means nothing."""
    return Declaration() if path is None else parse(tomllib.loads(Path(path).read_text(encoding="utf-8")), path)


def parse(found: Mapping[str, Any], file: str) -> Declaration:
    """The declaration that these keys make. ``file`` is named in errors."""
    known = sorted(f.name for f in fields(Declaration))
    if unknown := sorted(set(found) - set(known)):
        raise ValueError(f"{file}: unknown keys {unknown}; known are {', '.join(known)}")
    given = dict(found)
    _one_of(file, "native_offset", given, ("top-left", "bottom-right"))
    _one_of(file, "layout", given, ("bhnd", "bnhd"))
    _one_of(file, "grade", given, ("RN", "ANY"))
    _one_of(file, "memory", given, ("linear",))
    for name in ("strict", "heads_mix", "flushes_subnormals", "differentiable"):
        if not isinstance(given.get(name, False), bool):
            raise ValueError(f"{file}: {name} is true or false; given {given[name]!r}")
    if strange := sorted(set(given.get("layouts", ())) - {"contiguous", *LAYOUTS}):
        raise ValueError(f"{file}: layouts {strange}; known are contiguous, {', '.join(LAYOUTS)}")
    if strange := sorted(set(given.get("hooks", ())) - {"to_native", "from_native"}):
        raise ValueError(f"{file}: hooks {strange}; known are to_native and from_native, each a module:function")
    _check_gradients(file, given)
    if strange := sorted(set(given.get("dtypes", ())) - set(STRICTEST)):
        raise ValueError(f"{file}: dtypes {strange}; known are {', '.join(STRICTEST)}")
    _check_limits(file, given.get("limits", {}))
    _check_profiles(file, given.get("profiles", {}))
    shaped: dict[str, Callable[[Any], Any]] = {
        "features": frozenset,
        "dtypes": tuple,
        "layouts": tuple,
        "excludes": lambda pairs: tuple(frozenset(pair) for pair in pairs),
        "environment": lambda variables: {name: str(value) for name, value in variables.items()},
        "xfail": lambda entries: read_expected(entries, file),
    }
    return Declaration(**{name: shaped.get(name, lambda x: x)(value) for name, value in given.items()})


def _one_of(file: str, name: str, given: Mapping[str, Any], values: tuple[str, ...]) -> None:
    if given.get(name) not in (None, *values):
        raise ValueError(f"{file}: {name} is {' or '.join(values)}; given {given[name]!r}")


def _check_gradients(file: str, given: Mapping[str, Any]) -> None:
    vjp = given.get("vjp")
    if vjp is not None and not (isinstance(vjp, str) and all(vjp.partition(":"))):
        raise ValueError(f"{file}: vjp is a module:function; given {vjp!r}")
    if vjp is not None and given.get("differentiable"):
        raise ValueError(f"{file}: vjp and differentiable; gradients come from one of them")
    if "vjp" in given.get("features", ()) and vjp is None and not given.get("differentiable"):
        raise ValueError(
            f'{file}: the feature vjp without its function; name it, vjp = "module:function", or say differentiable = true'
        )


def _check_profiles(file: str, profiles: Mapping[str, str]) -> None:
    for dtype, profile in profiles.items():
        fitting = [name for name, known in PROFILES.items() if known.io == dtype]
        if profile not in fitting:
            raise ValueError(
                f"{file}: profile {profile!r} for {dtype}; known are {', '.join(fitting) or 'none for this dtype'}"
            )


def _check_limits(file: str, limits: Mapping[str, Mapping[str, int]]) -> None:
    for size, bounds in limits.items():
        if size not in SIZES:
            raise ValueError(f"{file}: a limit on {size!r}; sizes are {', '.join(SIZES)}")
        if not isinstance(bounds, dict) or not bounds or set(bounds) - set(BOUNDS):
            raise ValueError(f"{file}: the limit on {size} is a table of {', '.join(BOUNDS)}; given {bounds!r}")
        if (
            any(isinstance(x, bool) or not isinstance(x, int) or x < 0 for x in bounds.values())
            or bounds.get("multiple_of") == 0
        ):
            raise ValueError(f"{file}: the limit on {size} counts; given {bounds!r}")
