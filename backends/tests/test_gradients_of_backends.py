"""The gradients of every backend: the reference's numbers, its NaN, and no bit of what is hidden."""

import numpy as np
import pytest
from random_calls import request

from mha_backends import reference
from mha_core import Projections

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def drawn(seed, most=6, nan=0.0):
    """(operands with grad_output, options with the other arriving gradients)"""
    rng = np.random.default_rng(seed)
    query, key, value, options = request(rng, most=most)
    rows = query.shape[:-1]
    arrays = [query, key, value, rng.normal(size=(*rows, value.shape[-1]))]
    if seed % 3:
        options |= {"grad_lse": rng.normal(size=rows), "grad_weights": rng.normal(size=(*rows, key.shape[-2]))}
    if seed % 5 == 0:  # nothing hides: the paths of calls without options
        options = {name: options[name] for name in ("scale", "grad_lse") if name in options}
    return [np.where(rng.random(x.shape) < nan, np.nan, x) for x in arrays], options


def compare(api, got, wanted, message):
    for name, a, b in zip(got._fields, got, wanted, strict=True):
        assert (a is None) == (b is None), f"{message}: {name}"
        if a is not None:
            np.testing.assert_allclose(api.backend.to_host(a), b, **CLOSE, err_msg=f"{message}: {name}")


@pytest.mark.parametrize("nan", [0.0, 0.08])
def test_any_call_has_the_gradients_of_the_reference(api, give, nan):
    for seed in range(80):
        arrays, options = drawn(seed, nan=nan)
        wanted = reference.attention_vjp(*arrays, **options)
        got = api.attention_vjp(*map(give, arrays), **{name: give(x) for name, x in options.items()})
        compare(api, got, wanted, f"seed {seed}")


def test_what_the_forward_kept_gives_the_same_gradients(api, give):
    rng = np.random.default_rng(1)
    q, k, v, g = (give(rng.normal(size=(2, 3, 7, 4))) for _ in range(4))
    options = {"is_causal": True, "sink_logits": give(rng.normal(size=3))}
    kept = api.attention(q, k, v, return_lse=True, **options)
    again = api.attention_vjp(q, k, v, g, output=kept.output, lse=kept.lse, **options)
    compare(
        api, again, [api.backend.to_host(x) if x is not None else None for x in api.attention_vjp(q, k, v, g, **options)], ""
    )


@pytest.mark.parametrize("size", [5, 150], ids=["one tile", "many tiles"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_hidden_pairs_move_no_bit(api, give, size, dtype):
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=(2, 2, size, 3)).astype(dtype) for _ in range(4)]
    mask = rng.random((size, size)) < 0.6
    mask[1, 2] = False

    def gradients(arrays, mask):
        return [api.backend.to_host(x) for x in api.attention_vjp(*map(give, arrays), mask=give(mask), scale=-1.5)[:3]]

    clean = gradients(arrays, mask)
    for wild in (np.nan, np.inf, -1e30):
        q, k, v, g = (x.copy() for x in arrays)
        k[..., 2, :] = v[..., 2, :] = wild
        by_keys = gradients((arrays[0], k, v, arrays[3]), mask)
        blind = ~mask[:, 2]
        assert by_keys[0][..., blind, :].tobytes() == clean[0][..., blind, :].tobytes()
        q[..., 1, :] = g[..., 1, :] = wild
        by_rows = gradients((q, arrays[1], arrays[2], g), mask)
        unseen = ~mask[1]
        for a, b in zip(by_rows[1:], clean[1:], strict=True):
            assert a[..., unseen, :].tobytes() == b[..., unseen, :].tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_each_gradient_has_the_type_and_shape_of_its_operand(api, give, dtype):
    rng = np.random.default_rng(3)
    q, k, v, g = (rng.normal(size=s).astype(dtype) for s in ((2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 2), (2, 4, 3, 2)))
    bias, sink = rng.normal(size=(3, 6)), rng.normal(size=4).astype(dtype)
    given = [*map(give, (q, k, v)), give(bias), give(sink)]
    before = [api.backend.to_host(x).tobytes() for x in given]
    found = api.attention_vjp(*given[:3], give(g), bias=given[3], sink_logits=given[4])
    for operand, gradient in zip(given, found, strict=True):
        assert type(gradient) is type(operand) and gradient.dtype == operand.dtype
        assert tuple(gradient.shape) == tuple(operand.shape)
    assert [api.backend.to_host(x).tobytes() for x in given] == before


def test_strides_do_not_matter(api, give):
    rng = np.random.default_rng(4)
    packed = rng.normal(size=(2, 5, 4, 3, 6))  # (b, n, 4, h, d): query, key, value and what arrives in one buffer
    views = [np.moveaxis(packed[:, :, at], 1, 2) for at in range(4)]
    wanted = reference.attention_vjp(*(x.copy() for x in views), is_causal=True)
    if api.name == "torch":
        import torch

        given = list(torch.from_numpy(packed).permute(2, 0, 3, 1, 4))
    else:
        given = views
    compare(api, api.attention_vjp(*given, is_causal=True), wanted, "views of one buffer")


@pytest.mark.parametrize("h_kv", [4, 2])
def test_the_layer_has_the_gradients_of_the_reference(api, give, h_kv):
    rng = np.random.default_rng(h_kv)
    x, y, dY = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 4, 6)), rng.normal(size=(2, 3, 7))
    shapes = ((4, 5, 3), (h_kv, 6, 3), (h_kv, 6, 2), (4, 2, 7))
    p = Projections(
        *(rng.normal(size=s) for s in shapes), *(rng.normal(size=(s[0], s[-1])) for s in shapes[:3]), rng.normal(size=7)
    )
    options = {"bias": rng.normal(size=(3, 4)), "sink_logits": rng.normal(size=4), "softcap": 3.0}
    wanted = reference.multi_head_attention_vjp(x, y, y, p, dY, **options)
    native = Projections(*map(give, p))
    got = api.multi_head_attention_vjp(give(x), give(y), give(y), native, give(dY), **{n: give(o) for n, o in options.items()})
    compare(api, got._replace(projections=None), wanted._replace(projections=None), "layer")
    compare(api, got.projections, wanted.projections, "projections")
