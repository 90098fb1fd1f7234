"""The backend as a value: its functions and what it claims."""

from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

from mha_backends.cupy.backward import attend_vjp
from mha_backends.cupy.cublas import linear
from mha_backends.cupy.devices import Cuda, devices, find_cuda, from_host, to_host
from mha_backends.cupy.forward import attend, explain
from mha_core.backend import FORWARD, STRICTEST, Backend, Claims


def create(**settings: Any) -> Backend:
    """The CuPy backend. ``tf32=True`` lets float32 products round their factors to TF32 (profile PTF32)."""
    if unknown := settings.keys() - {"tf32"}:
        raise TypeError(f"unknown settings {sorted(unknown)}; backend 'cupy' knows tf32=True or False")
    tf32 = settings.get("tf32", False)
    if not isinstance(tf32, bool):
        raise TypeError(f"tf32={tf32!r}; backend 'cupy' knows tf32=True or False")
    return _create(tf32)


@lru_cache
def _create(tf32: bool) -> Backend:
    return build(find_cuda(), tf32)


def build(cuda: Cuda, tf32: bool) -> Backend:
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
    return Backend(
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
