"""The bound of a layer's gradients: our backends keep it in every type, zeros do not, and its truth is the reference's."""

import importlib

import numpy as np
import pytest

from mha_backends import reference
from mha_core import Projections, bind
from mha_spec.call import Cotangents
from mha_spec.numerics import PROFILES, TYPES, error_ratio
from mha_spec.numerics_backward_layer import layer_gradient_bound

PROFILE = {"float64": "P64", "float32": "P32", "float16": "P16"}


def layer(seed, dtype):
    """(x, y, projections, what arrives, options) of a layer with everything."""
    rng = np.random.default_rng(seed)
    h, h_kv = 4, 2 + 2 * (seed % 2)
    shapes = ((h, 5, 3), (h_kv, 6, 3), (h_kv, 6, 2), (h, 2, 7))
    weights = [0.5 * rng.normal(size=shape) for shape in shapes]
    biases = [rng.normal(size=(shape[0], shape[-1])) for shape in shapes[:3]] + [rng.normal(size=7)]
    arriving = [rng.normal(size=(2, 3, 7)), rng.normal(size=(2, h, 3)), rng.normal(size=(2, h, 3, 4))]
    options = {"bias": rng.normal(size=(1, 1, 3, 4)), "sink_logits": rng.normal(size=h)}
    wide = "float64" if dtype == "float64" else "float32"
    kinds = (dtype, wide, dtype)
    return (
        rng.normal(size=(2, 3, 5)).astype(dtype),
        rng.normal(size=(2, 4, 6)).astype(dtype),
        Projections(*(x.astype(dtype) for x in (*weights, *biases))),
        [x.astype(kind) for x, kind in zip(arriving, kinds, strict=True)],
        {name: x.astype(dtype) for name, x in options.items()},
    )


def gradients(api, x, y, p, arriving, options):
    """Every gradient by name, on the host."""

    def native(a):
        return api.backend.from_host(a, str(a.dtype))

    dY, dL, dA = map(native, arriving)
    given = {name: native(a) for name, a in options.items()}
    found = api.multi_head_attention_vjp(
        native(x), native(y), native(y), Projections(*map(native, p)), dY, grad_lse=dL, grad_weights=dA, softcap=2.0, **given
    )
    flat = {**found._asdict(), **found.projections._asdict()}
    return {name: np.asarray(api.backend.to_host(a), dtype=float) for name, a in flat.items() if name != "projections"}


@pytest.mark.parametrize("dtype", list(PROFILE))
@pytest.mark.parametrize("name", ["reference", "numpy", "torch"])
def test_the_gradients_of_a_layer(name, dtype):
    api = bind(importlib.import_module(f"mha_backends.{name}").create())
    for seed in range(4):
        x, y, p, arriving, options = layer(seed, dtype)
        wide = [a.astype(float) for a in (x, y)], [a.astype(float) for a in p], [a.astype(float) for a in arriving]
        extra = {name: a.astype(float) for name, a in options.items()}
        bounds = layer_gradient_bound(
            wide[0][0], wide[0][1], wide[0][1], wide[1], Cotangents(*wide[2]), PROFILES[PROFILE[dtype]], scale=3**-0.5, softcap=2.0,
            bias=extra["bias"], sink=extra["sink_logits"],
        )  # fmt: skip
        truth = gradients(bind(reference.create()), *wide[0], Projections(*wide[1]), wide[2], extra)
        for which, got in gradients(api, x, y, p, arriving, options).items():
            expected, bound = getattr(bounds.truth, which), getattr(bounds, which)
            np.testing.assert_allclose(expected, truth[which], rtol=1e-10, atol=1e-10, err_msg=which)
            assert error_ratio(got, expected, bound, TYPES[dtype].largest).max() <= 1, which
            assert error_ratio(0 * got, expected, bound).max() > 1, which
