"""Backends by name, and what a missing, unknown or broken one says."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import EntryPoint

import numpy as np
import pytest

import mha_core
from mha_backends import reference
from mha_core import BackendUnavailable, Unsupported, door, registry
from mha_core.gradients import bind_gradients


def entry(name, value):
    return EntryPoint(name=name, value=value, group=registry.GROUP)


def needs_a_library():
    import no_such_library  # noqa: F401


@pytest.fixture
def plugins(monkeypatch):
    """Entry points of a test: a good one, one that fails on import, one that lacks a library, one that is no backend."""
    found = [
        entry("reference", "mha_backends.reference:create"),
        entry("explodes", "mha_core.tests.no_such_module:create"),
        entry("nothing", "builtins:dict"),
        entry("lazy", f"{__name__}:needs_a_library"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: found)
    return found


def test_a_name_gives_the_objects_that_the_package_exports():
    assert mha_core.load("reference").attention is reference.attention
    assert mha_core.load("reference").multi_head_attention is reference.multi_head_attention


def test_threads_that_bind_a_backend_at_once_share_its_functions(monkeypatch):
    """Each that starts to build waits for the other to start too; where one builds for both, it waits in vain and goes on."""
    both = threading.Barrier(2)

    def slow(*arguments):
        with suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.5)
        return bind_gradients(*arguments)

    monkeypatch.setattr(door, "bind_gradients", slow)
    backend = replace(reference.create(), name="new")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(mha_core.bind, [backend] * 2)
    assert first is second and first.attention is second.attention


def test_an_unknown_name_is_answered_with_the_known_ones(plugins):
    with pytest.raises(
        LookupError, match=r"MHA-EXEC-10: given backend 'torhc'; expected one of explodes, lazy, nothing, reference"
    ):
        mha_core.load("torhc")


def test_a_missing_library_is_an_import_error_that_says_what_to_install(plugins):
    for name, missing in (("explodes", "no_such_module"), ("lazy", "no_such_library")):
        with pytest.raises(BackendUnavailable, match=f"MHA-EXEC-10.*{missing}"):
            mha_core.load(name)


def test_an_unknown_setting_is_a_type_error():
    with pytest.raises(TypeError, match="colour"):
        mha_core.load("reference", colour="blue")


def test_a_broken_plugin_is_reported_and_harms_no_other(plugins):
    states = {status.name: status.state for status in mha_core.available()}
    assert states == {"reference": "ready", "explodes": "unavailable", "lazy": "unavailable", "nothing": "broken"}


def test_the_projects_own_backend_wins_over_a_plugin_of_the_same_name(plugins):
    plugins.append(entry("reference", "builtins:dict"))
    assert mha_core.load("reference").backend is reference.create()


def test_what_a_backend_does_not_claim_is_unsupported():
    own = reference.create()
    claims = replace(
        own.claims, features=own.claims.features - {"softcap", "layer"}, dtypes=("float32",), profiles={"float32": "P32"}
    )
    api = mha_core.bind(replace(own, name="small", claims=claims))
    x = np.ones((1, 2, 4), dtype="float32")
    assert api.attention(x, x, x).dtype == "float32"
    with pytest.raises(Unsupported, match=r"MHA-EXEC-9: backend 'small' was given softcap"):
        api.attention(x, x, x, softcap=1.0)
    with pytest.raises(Unsupported, match="float64 arrays"):
        api.attention(*[x.astype("float64")] * 3)


def test_the_layer_asks_an_unclaimed_dtype_of_nobody():
    own = reference.create()
    claims = replace(own.claims, dtypes=("float32",), profiles={"float32": "P32"})
    api = mha_core.bind(replace(own, claims=claims, linear=lambda x, w, b: pytest.fail("it was asked")))
    x, w = np.ones((3, 4)), np.ones((2, 4, 4))
    with pytest.raises(Unsupported, match="float64 arrays"):
        api.multi_head_attention(x, x, x, mha_core.Projections(w, w, w, w))


def test_the_default_scale_is_no_feature():
    own = reference.create()
    api = mha_core.bind(replace(own, claims=replace(own.claims, features=frozenset())))
    for d_k in range(70):
        x = np.ones((1, 1, d_k))
        assert api.attention(x, x, x).shape == x.shape
    with pytest.raises(Unsupported, match="scale"):
        api.attention(x, x, x, scale=1.0)


def test_importing_the_core_is_light():
    code = "import sys, mha_core, mha_backends; print(sorted({'torch', 'cupy', 'mha_spec.equations'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
