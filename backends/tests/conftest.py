"""The backends that compute on this machine, each as its bound functions."""

import importlib

import pytest

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
