"""Every backend against the reference, on random option sets, within the bound of chapter 4."""

import importlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_calls import request

from mha_backends import reference
from mha_core import bind
from mha_spec.contract import attention_call
from mha_spec.equations import visible
from mha_spec.numerics import PROFILES, TYPES, attention_bound, error_ratio

ALL = {"return_weights": True, "return_lse": True}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1), most=st.integers(1, 9))
def test_a_backend_is_within_the_bound_of_the_reference(name, dtype, seed, most):
    query, key, value, options = request(np.random.default_rng(seed), dtype, most)
    api = bind(importlib.import_module(f"mha_backends.{name}").create())

    def native(x):
        return api.backend.from_host(x, str(x.dtype)) if isinstance(x, np.ndarray) else x

    got = api.attention(*map(native, (query, key, value)), **{k: native(x) for k, x in options.items()}, **ALL)
    wide = {k: x.astype(float) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for k, x in options.items()}
    operands = [x.astype(float) for x in (query, key, value)]
    truth = reference.attention(*operands, **wide, **ALL)
    call = attention_call(*operands, **wide)
    profile = PROFILES[api.backend.claims.profiles[dtype]]
    see = np.broadcast_to(visible(call), truth.weights.shape)
    bounds = attention_bound(
        *operands, profile, scale=call.scale, softcap=call.softcap, bias=call.bias, visible=see, sink=call.sink_logits
    )
    for array in ("output", "weights", "lse"):
        host = np.asarray(api.backend.to_host(getattr(got, array)), dtype=float)
        largest = TYPES[profile.lse if array == "lse" else profile.output].largest
        ratios = error_ratio(host, getattr(truth, array), getattr(bounds, array), largest)
        assert not ratios.size or ratios.max() <= 1, f"{array}: {ratios.max():.3g} times the bound"
