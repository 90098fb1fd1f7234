"""What is judged: a callable with its array library, its layout and its claims."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mha_conformance.run.arrays import converter, to_host
from mha_conformance.run.declaration import Declaration, read
from mha_conformance.run.differentiated import differentiated
from mha_core import Api, BackendUnavailable, Claims, KVCache, load, merge_partials
from mha_core.backend import FORWARD

OPTION_FEATURES = {
    "mask": "mask", "bias": "bias", "is_causal": "causal", "query_offset": "offset", "window": "window", "key_lengths": "lengths",
    "query_segments": "segments", "scale": "scale", "softcap": "softcap", "sink_logits": "sink", "return_weights": "weights",
    "return_lse": "lse", "dropout": "dropout",
}  # fmt: skip
EMULATOR = "emulator"
"""The device on which the kernels of the backend cupy run on a CPU: conformance/emulator, in a checkout."""

OPERANDS = ("query", "key", "value")


@dataclass(frozen=True, slots=True)
class Target:
    """How to find an implementation; it travels to the process that runs it.

    ``name`` is a backend's name or ``module:callable``. ``arrays``, ``device`` and ``layout`` are for callables, and the device
    ``emulator`` for the backend cupy; ``claims`` is a TOML file. Where ``vectors`` names a directory, the outputs that lie there
    are judged, and ``name`` is what the user calls them.
    """

    name: str
    arrays: str = "numpy"
    device: str | None = None
    layout: str = "bhnd"
    claims: str | None = None
    vectors: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Implementation:
    """What runs a request, and what it says of itself.

    ``convert(array, name)`` makes its array of a NumPy array, ``host`` the way back. ``prepare(shapes)`` is called before every
    call, for a system that compiles for its shapes. ``explain`` names the kernel that
    answers a call. ``varlen`` and ``statistics`` are attributes of a callable that has functions of its own for them.
    """

    name: str
    attention: Callable[..., Any]
    claims: Claims
    convert: Callable[[Any, str], Any]
    host: Callable[[Any], Any] = to_host
    layer: Callable[..., Any] | None = None
    merge: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | None = None
    layer_vjp: Callable[..., Any] | None = None
    explain: Callable[..., str] | None = None
    prepare: Callable[[dict[str, tuple[int, ...]]], Any] | None = None
    varlen: Callable[..., Any] | None = None
    statistics: Callable[..., Any] | None = None
    cache: Callable[..., Any] = KVCache
    """What holds keys and values for it."""
    layout: str = "bhnd"
    declared: Declaration = field(default_factory=Declaration)
    inferred: bool = False
    """Whether its features were read off its signature."""
    doors: bool = False
    """Whether it refuses by clause, behind the door of this project."""


def open_target(target: Target) -> Implementation:
    """The implementation that ``target`` names. Imports it, so this runs in the process under test only."""
    declared = read(target.claims)
    declared.apply_environment()
    found = _callable(target) if ":" in target.name else _backend(target.name, target.device)
    to_native, from_native = declared.hook("to_native"), declared.hook("from_native")
    return replace(
        found,
        claims=declared.over(found.claims),
        declared=declared,
        layout=declared.layout or found.layout,
        inferred=found.inferred and declared.features is None,
        convert=to_native or found.convert,
        host=from_native or found.host,
        vjp=_gradients(found, declared, target),
    )


def _gradients(found: Implementation, declared: Declaration, target: Target) -> Callable[..., Any] | None:
    """Where its gradients come from: its own door, a function that it names, or the differentiation of its arrays' library."""
    if (declared.vjp or declared.differentiable) and ":" not in target.name:
        raise ValueError(
            f"{target.claims}: vjp and differentiable are for callables; the backend {target.name} claims its own gradients"
        )
    if declared.differentiable:
        return differentiated(found.attention, target.arrays)
    return declared.hook("vjp") or found.vjp


def _backend(name: str, device: str | None) -> Implementation:
    if device is not None:
        _emulate(name, device)
    api = _usable(name)
    claims = api.backend.claims
    return Implementation(
        name=name, attention=api.attention, layer=api.multi_head_attention, merge=api.merge_partials, explain=api.explain,
        varlen=api.attention_varlen, statistics=api.attention_statistics,
        vjp=api.attention_vjp if "vjp" in claims.features else None,
        layer_vjp=api.multi_head_attention_vjp if claims.features >= {"vjp", "layer"} else None,
        convert=converter(claims.arrays or "numpy", None), claims=claims, doors=True,
    )  # fmt: skip


def _usable(name: str) -> Api:
    """A backend that can compute here. Raises ``BackendUnavailable`` with what is missing, and with what can be run instead."""
    try:
        api = load(name)
        if not api.backend.devices():
            raise BackendUnavailable(name, "NOT_RUN: it finds no device", "run on a machine that has one, with its driver")
    except BackendUnavailable as missing:
        if name != "cupy":
            raise
        instead = f"{missing.install}; or run its kernels on a CPU, in a checkout: mha conform cupy --device {EMULATOR}"
        raise BackendUnavailable(name, missing.reason, instead) from missing
    return api


def _emulate(name: str, device: str) -> None:
    """From now on this process finds an emulated CuPy, of which this repository has the source and the package nothing."""
    if (name, device) != ("cupy", EMULATOR):
        raise ValueError(
            f"given the device {device} for the backend {name}: a backend takes those it finds, and cupy also {EMULATOR}"
        )
    try:
        emulator = importlib.import_module("emulator")
    except ImportError as missing:
        raise ImportError(f"the emulator is no part of the package ({missing}); pip install -e . in a checkout") from missing
    emulator.install()


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
    """A callable as an implementation: it claims exactly the options that its signature names; ``**kwargs`` claims all but dropout."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        features = FORWARD - {"layer"}
    else:
        features = frozenset(OPTION_FEATURES[p.name] for p in parameters if p.name in OPTION_FEATURES)
    claims = Claims(
        arrays=arrays, dtypes=("float32",), features=features, profiles={"float32": "P32"}, strict=False, determinism="none"
    )
    return Implementation(
        name=name, attention=function, merge=merge_partials if "lse" in features else None, inferred=True,
        explain=getattr(function, "explain", None), prepare=getattr(function, "prepare", None),
        varlen=getattr(function, "varlen", None), statistics=getattr(function, "statistics", None),
        convert=converter(arrays, device), claims=claims, layout=layout,
    )  # fmt: skip
