"""The backend as a value: its functions and what it claims."""

from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mha_backends.cupy.backward import attend_vjp
from mha_backends.cupy.cublas import linear
from mha_backends.cupy.cutile_choice import explain as explain_tiled
from mha_backends.cupy.devices import Cuda, devices, find_cuda, from_host, to_host
from mha_backends.cupy.forward import attend, explain
from mha_core.backend import FORWARD, STRICTEST, Backend, Claims
from mha_core.errors import BackendUnavailable


def create(**settings: Any) -> Backend:
    """The CuPy backend. ``tf32=True`` lets float32 products round their factors to TF32 (profile PTF32). ``kernel="cutile"``
    gives the cuTile kernels every call that they take; ``explain`` says which, and for the others why not."""
    known = "backend 'cupy' knows tf32=True or False and kernel='cutile' or None"
    if unknown := settings.keys() - {"tf32", "kernel"}:
        raise TypeError(f"unknown settings {sorted(unknown)}; {known}")
    tf32, kernel = settings.get("tf32", False), settings.get("kernel")
    if not isinstance(tf32, bool):
        raise TypeError(f"tf32={tf32!r}; {known}")
    if kernel not in (None, "cutile"):
        raise TypeError(f"kernel={kernel!r}; {known}")
    return _create(tf32, kernel == "cutile")


@lru_cache
def _create(tf32: bool, cutile: bool) -> Backend:
    return build(find_cuda(), tf32, cutile)


def build(cuda: Cuda, tf32: bool, cutile: bool = False) -> Backend:
    """The backend on this machine.

    ``strict`` is False because it has not been run: the kernels are written to keep hidden data from moving any bit
    (MHA-MASK-19), but nobody has yet seen cuBLAS and these kernels do so on a device, and a claim is a statement of fact.
    """
    profiles = dict(STRICTEST)
    if tf32:
        profiles["float32"] = "PTF32"
    if find_spec("ml_dtypes") is None:
        del profiles["bfloat16"]
    claims = Claims(
        arrays="cupy",
        dtypes=tuple(profiles),
        features=FORWARD | {"dropout", "vjp"},
        profiles=profiles,
        strict=False,
        determinism="run-to-run",
        flushes_subnormals=True,  # the exponential of its kernels does: ex2.approx.ftz
    )
    backend = Backend(
        name="cupy",
        attend=partial(attend, cuda, tf32),
        attend_vjp=partial(attend_vjp, cuda, tf32),
        linear=partial(linear, cuda, tf32),
        to_host=partial(to_host, cuda),
        from_host=partial(from_host, cuda),
        devices=partial(devices, cuda),
        explain=explain,
        claims=claims,
    )
    return with_cutile(cuda, backend) if cutile else backend


def with_cutile(cuda: Cuda, backend: Backend) -> Backend:
    """The same backend, in which the cuTile kernels get every call that they take."""
    try:
        tiles = import_module("mha_backends.cupy.cutile")
    except ImportError as missing:
        reason = f"cuda-tile cannot be imported ({missing})"
        raise BackendUnavailable("cupy", reason, "pip install 'mha-core[cutile]'") from missing
    vjp = backend.attend_vjp
    return replace(
        backend,
        attend=partial(tiles.attend, cuda, backend.attend),
        attend_vjp=None if vjp is None else partial(tiles.attend_vjp, cuda, vjp),
        explain=partial(explain_tiled, backend.explain),
    )
