"""What is judged: a callable with its array library, its layout and its claims."""

import importlib
import inspect
import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mha_conformance.run import xfail
from mha_conformance.run.arrays import converter
from mha_core import Claims, load, merge_partials
from mha_core.backend import FORWARD, STRICTEST
from mha_spec.numerics import PROFILES

OPTION_FEATURES = {
    "mask": "mask", "bias": "bias", "is_causal": "causal", "query_offset": "offset", "window": "window", "key_lengths": "lengths",
    "query_segments": "segments", "scale": "scale", "softcap": "softcap", "sink_logits": "sink", "return_weights": "weights",
    "return_lse": "lse",
}  # fmt: skip
OPERANDS = ("query", "key", "value")


@dataclass(frozen=True, slots=True)
class Target:
    """How to find an implementation; it travels to the process that runs it.

    ``name`` is a backend's name or ``module:callable``. ``arrays``, ``device`` and ``layout`` are for callables; ``claims`` is a
    TOML file.
    """

    name: str
    arrays: str = "numpy"
    device: str | None = None
    layout: str = "bhnd"
    claims: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Implementation:
    """What runs a request. ``excludes`` lists features that cannot be asked for together; ``native_offset`` is where a system
    without ``query_offset`` starts its causal mask: "top-left", "bottom-right" or None where it takes any."""

    name: str
    attention: Callable[..., Any]
    layer: Callable[..., Any] | None
    merge: Callable[..., Any] | None
    convert: Callable[[Any], Any]
    claims: Claims
    layout: str = "bhnd"
    excludes: tuple[frozenset[str], ...] = ()
    native_offset: str | None = None
    measured_on: str | None = None
    version: str | None = None
    expected_failures: tuple[xfail.Expected, ...] = ()
    heads_mix: bool = False
    """Whether products over all channels stand around the heads, so that a NaN of one head reaches the others."""
    doors: bool = False
    """Whether it refuses by clause, behind the door of this project."""


def open_target(target: Target) -> Implementation:
    """The implementation that ``target`` names. Imports it, so this runs in the process under test only."""
    declared = tomllib.loads(Path(target.claims).read_text(encoding="utf-8")) if target.claims else {}
    os.environ.update({key: str(value) for key, value in declared.get("environment", {}).items()})
    found = _callable(target) if ":" in target.name else _backend(target.name)
    return _declare(found, declared, target)


def _backend(name: str) -> Implementation:
    api = load(name)
    claims = api.backend.claims
    return Implementation(
        name=name, attention=api.attention, layer=api.multi_head_attention, merge=api.merge_partials,
        convert=converter(claims.arrays or "numpy", None), claims=claims, doors=True,
    )  # fmt: skip


def _callable(target: Target) -> Implementation:
    module_name, _, attribute = target.name.partition(":")
    sys.path.insert(0, os.getcwd())
    function: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        function = getattr(function, part)
    return wrap(function, target.name, target.arrays, target.device, target.layout)


def wrap(
    function: Callable[..., Any], name: str, arrays: str = "numpy", device: str | None = None, layout: str = "bhnd"
) -> Implementation:
    """A callable as an implementation: it claims exactly the options that its signature names; ``**kwargs`` claims all."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        features = FORWARD - {"layer"}
    else:
        features = frozenset(OPTION_FEATURES[p.name] for p in parameters if p.name in OPTION_FEATURES)
    claims = Claims(
        arrays=arrays, dtypes=("float32",), features=features, profiles={"float32": "P32"}, strict=False, determinism="none"
    )
    return Implementation(
        name=name, attention=function, layer=None, merge=merge_partials if "lse" in features else None,
        convert=converter(arrays, device), claims=claims, layout=layout,
    )  # fmt: skip


def _declare(found: Implementation, declared: dict[str, Any], target: Target) -> Implementation:
    """What a claims file says takes the place of what was inferred. Unknown keys are refused."""
    known = {
        "features", "dtypes", "profiles", "strict", "determinism", "excludes", "native_offset", "environment", "measured_on", "version",
        "layout", "heads_mix", "xfail", "grade",
    }  # fmt: skip
    if unknown := set(declared) - known:
        raise ValueError(f"{target.claims}: unknown keys {sorted(unknown)}; known are {', '.join(sorted(known))}")
    claims = found.claims
    dtypes = tuple(declared.get("dtypes", claims.dtypes))
    profiles = declared.get("profiles", {dtype: claims.profiles.get(dtype, STRICTEST[dtype]) for dtype in dtypes})
    for dtype, profile in profiles.items():
        fitting = [name for name, known_profile in PROFILES.items() if known_profile.io == dtype]
        if profile not in fitting:
            raise ValueError(
                f"{target.claims}: profile {profile!r} for {dtype}; known are {', '.join(fitting) or 'none for this dtype'}"
            )
    if declared.get("native_offset") not in (None, "top-left", "bottom-right"):
        raise ValueError(f"{target.claims}: native_offset is top-left or bottom-right; given {declared['native_offset']!r}")
    claims = replace(
        claims, features=frozenset(declared.get("features", claims.features)), dtypes=dtypes, profiles=profiles,
        strict=declared.get("strict", claims.strict), determinism=declared.get("determinism", claims.determinism),
        grade=declared.get("grade", claims.grade),
    )  # fmt: skip
    return replace(
        found, claims=claims, excludes=tuple(frozenset(pair) for pair in declared.get("excludes", ())),
        native_offset=declared.get("native_offset"), measured_on=declared.get("measured_on"), version=declared.get("version"),
        layout=declared.get("layout", found.layout),
        heads_mix=bool(declared.get("heads_mix", False)), expected_failures=xfail.read(declared.get("xfail", ()), str(target.claims)),
    )  # fmt: skip
