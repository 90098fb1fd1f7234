"""The backends that compute on this machine, each as its bound functions; and the CuPy backend on an emulated CuPy."""

import importlib
import sys

import numpy as np
import pytest
from cupy_machine import Machine
from emulator.arrays import fake_cupy
from emulator.compiler import missing

from mha_core import bind

NAMES = ("reference", "numpy", "torch")


@pytest.fixture(params=NAMES)
def api(request):
    """Each backend in turn."""
    return bind(importlib.import_module(f"mha_backends.{request.param}").create())


@pytest.fixture
def give(api):
    """A function that turns a NumPy array into one of the backend's library, and leaves anything else alone."""

    def convert(x):
        return api.backend.from_host(x, str(x.dtype)) if hasattr(x, "dtype") and getattr(x, "shape", None) is not None else x

    return convert


@pytest.fixture(scope="module")
def backend_package():
    """``mha_backends.cupy`` imported on a fake CuPy; what was imported before is put back afterwards."""
    ours = [name for name in sys.modules if name == "cupy" or name.startswith("mha_backends.cupy")]
    saved = {name: sys.modules.pop(name) for name in ours}
    sys.modules["cupy"] = fake_cupy()
    yield importlib.import_module("mha_backends.cupy")
    for name in [name for name in sys.modules if name == "cupy" or name.startswith("mha_backends.cupy")]:
        del sys.modules[name]
    sys.modules.update(saved)


@pytest.fixture
def machine(backend_package):
    """A function that builds the backend on the emulated CuPy; ``machine.cublas`` and ``machine.cupy`` tell what was asked of them."""
    if why := missing():
        pytest.skip(f"no kernel is run here: {why}")
    return Machine()


@pytest.fixture
def rng():
    return np.random.default_rng(20260725)
