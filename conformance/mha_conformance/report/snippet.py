"""A small request as Python that anyone can paste: literals, no import of the suite."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mha_conformance.cases import Request
from mha_conformance.run.implementation import EMULATOR, OPERANDS, Target
from mha_core import load

MOST_NUMBERS = 256
"""Numbers that a reader may still look at; beyond it the command that makes them is the better text."""

_MAKERS: Mapping[str, tuple[str, str, str]] = {
    "numpy": ("import numpy as np", "np.array", "np."),
    "torch": ("import torch", "torch.tensor", "torch."),
    "jax": ("import jax.numpy as jnp", "jnp.array", "jnp."),
    "cupy": ("import cupy as cp", "cp.array", "cp."),
}


def snippet(target: Target, request: Request) -> str:
    """Python that makes the call and prints what comes back; empty where it would be long, or no call of attention."""
    arrays = {**dict(zip(OPERANDS, request.operands, strict=False)), **request.arrays}
    library = _library(target)
    if request.target != "attention" or sum(x.size for x in arrays.values()) > MOST_NUMBERS or library not in _MAKERS:
        return ""
    module, maker, prefix = _MAKERS[library]
    emulated = ["import emulator", "", "emulator.install()"] if target.device == EMULATOR else []
    lines = [*emulated, module, *_imports(target), ""]
    if "dropout" in request.options:
        lines.insert(len(emulated) + 1, "from mha_core import Dropout")
    if library == "numpy" and "bfloat16" in (request.dtype, *request.dtypes.values()):
        lines.insert(1, "import ml_dtypes")
    special = {"nan": f"{prefix}nan", "inf": f"{prefix}inf"}
    lines += [f"{name} = {special[name]}" for name in _used(arrays) if name in special]
    for name, x in arrays.items():
        dtype = _dtype(name, x, request)
        spelled = "ml_dtypes.bfloat16" if dtype == "bfloat16" and library == "numpy" else f"{prefix}{_spelled(dtype, library)}"
        values = np.swapaxes(x, -2, -3) if name in OPERANDS and target.layout == "bnhd" else x
        lines.append(f"{name} = {maker}({_literal(values)}, dtype={spelled})")
        if 0 in values.shape:
            lines[-1] = f"{name} = {maker}({_literal(values)}, dtype={spelled}).reshape({values.shape})"
    options = [f"{name}={name}" for name in request.arrays if name != "keep"]
    options += [f"{name}={_option(value, request)}" for name, value in request.options.items()]
    lines.append(f"print(attention({', '.join((*OPERANDS, *options))}))")
    return "\n".join(lines)


def _option(value: Any, request: Request) -> str:
    """A Python value as one writes it; a ``Dropout`` names its mask."""
    return repr(value).replace("keep=None", "keep=keep") if "keep" in request.arrays else repr(value)


def _library(target: Target) -> str:
    if target.device == EMULATOR:
        return "cupy"
    return target.arrays if ":" in target.name else load(target.name).backend.claims.arrays or "numpy"


def _imports(target: Target) -> list[str]:
    if ":" not in target.name:
        return ["import mha_core", "", f'attention = mha_core.load("{target.name}").attention']
    module, _, attribute = target.name.partition(":")
    first, _, rest = attribute.partition(".")
    return [f"from {module} import {first} as attention" if not rest else f"import {module}", *(
        [f"attention = {module}.{attribute}"] if rest else []
    )]  # fmt: skip


def _dtype(name: str, x: Any, request: Request) -> str:
    if name in request.dtypes:
        return request.dtypes[name]
    return {"b": "bool", "i": "int64"}.get(x.dtype.kind, request.dtype)


def _spelled(dtype: str, library: str) -> str:
    return "bool_" if dtype == "bool" and library in ("numpy", "jax", "cupy") else dtype


def _used(arrays: Mapping[str, Any]) -> list[str]:
    floats = [x for x in arrays.values() if x.dtype.kind == "f"]
    return [
        *(["nan"] if any(np.isnan(x).any() for x in floats) else []),
        *(["inf"] if any(np.isinf(x).any() for x in floats) else []),
    ]


def _literal(values: Any) -> str:
    return repr(np.asarray(values).tolist())
