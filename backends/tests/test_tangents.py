"""``attention_jvp`` of every backend: the reference's numbers, the slope of its own forward, and the other side of its own vjp."""

import tracemalloc

import numpy as np
import pytest
from test_gradients_of_backends import drawn

from mha_backends import reference
from mha_backends.numpy.plan import Blocks
from mha_backends.numpy.tangents import attend_jvp
from mha_core import Dropout, Tangents, load
from mha_spec.contract import attention_call
from mha_spec.contract_gradients import checked_tangents

ASK = {"return_weights": True, "return_lse": True}


def posed(seed, nan=0.0, still=0.2):
    """(operands, options, tangents by name): some operands stay as they are."""
    arrays, options = drawn(seed, nan=nan)
    options = {name: x for name, x in options.items() if not name.startswith("grad_")}
    rng = np.random.default_rng(seed)
    operands = dict(zip(("query", "key", "value"), arrays, strict=False))
    operands |= {name: options[name] for name in ("bias", "sink_logits") if name in options}
    moving = {name: rng.normal(size=x.shape).astype(x.dtype) for name, x in operands.items() if rng.random() >= still}
    return arrays[:3], options, {name: np.where(rng.random(x.shape) < nan, np.nan, x) for name, x in moving.items()}


def near(got, wanted, message, host=np.asarray):
    for which, a, b in zip(("result", "rate"), got, wanted, strict=True):
        for name, x, y in zip(a._fields, a, b, strict=True):
            assert (x is None) == (y is None), f"{message}: {name}"
            if x is not None:
                np.testing.assert_allclose(host(x), y, rtol=1e-10, atol=1e-10, err_msg=f"{message}: {name} of the {which}")


@pytest.mark.parametrize("nan", [0.0, 0.06])
def test_any_call_moves_as_the_reference_says(api, give, nan):
    for seed in range(60):
        arrays, options, moving = posed(seed, nan)
        ask = {"return_weights": seed % 3 > 0, "return_lse": seed % 4 > 0}
        if seed % 5 == 0:
            ask["dropout"] = Dropout(0.3, seed, query_start=seed)
        wanted = reference.attention_jvp(*arrays, Tangents(**moving), **ask, **options)
        tangents = Tangents(**{name: give(x) for name, x in moving.items()})
        got = api.attention_jvp(*map(give, arrays), tangents, **ask, **{name: give(x) for name, x in options.items()})
        near(got, wanted, f"seed {seed}", api.backend.to_host)


@pytest.mark.parametrize("nan", [0.0, 0.06])
@pytest.mark.parametrize("blocks", [Blocks(2, 2, 0), Blocks(3, 1, 0), Blocks(1, 3, 0)], ids=str)
def test_blocks_of_any_size_move_alike(blocks, nan):
    for seed in range(500, 550):
        arrays, options, moving = posed(seed, nan)
        if seed % 2:
            options["dropout"] = Dropout(0.4, seed, key_start=3)
        call = attention_call(*arrays, **ASK, **options)
        got = attend_jvp(call, checked_tangents(call, Tangents(**moving), "numpy"), blocks=blocks)
        near(got, reference.attention_jvp(*arrays, Tangents(**moving), **ASK, **options), f"seed {seed}")


def test_forwards_and_backwards_are_one_derivative(api, give):
    """<u, J v> = <J^T u, v> for every direction u of the results and v of the operands, each by the same backend."""
    for seed in range(200, 240):
        arrays, options, moving = posed(seed, still=0.0)
        rng = np.random.default_rng(seed)
        options = {name: give(x) for name, x in options.items()}
        given = list(map(give, arrays))
        _, rate = api.attention_jvp(*given, Tangents(**{name: give(x) for name, x in moving.items()}), **ASK, **options)
        rates = [api.backend.to_host(x) for x in rate]
        u = [rng.normal(size=x.shape) for x in rates]
        arriving = {"grad_weights": give(u[1]), "grad_lse": give(u[2])}
        found = api.attention_vjp(*given, give(u[0]), **arriving, **options)._asdict()
        parts = [api.backend.to_host(found[name]) * x for name, x in moving.items()]
        forwards, backwards = sum(np.sum(a * b) for a, b in zip(u, rates, strict=True)), sum(np.sum(x) for x in parts)
        assert abs(forwards - backwards) <= 1e-12 * (1 + sum(np.sum(np.abs(x)) for x in parts)), f"seed {seed}"


def test_the_rate_is_the_slope_of_the_forward(api, give):
    """Central differences in float64, all operands at once."""
    step = 1e-5
    for seed in range(300, 320):
        arrays, options, moving = posed(seed, still=0.0)
        operands = {**dict(zip(("query", "key", "value"), arrays, strict=True)), **options}

        def at(sign, operands=operands, moving=moving):
            moved = {name: give(x + sign * step * moving[name] if name in moving else x) for name, x in operands.items()}
            first = [moved.pop(name) for name in ("query", "key", "value")]
            return [api.backend.to_host(x) for x in api.attention(*first, **ASK, **moved)]

        tangents = Tangents(**{name: give(x) for name, x in moving.items()})
        given = {name: give(x) for name, x in options.items()}
        _, rate = api.attention_jvp(*map(give, arrays), tangents, **ASK, **given)
        for name, ahead, behind, found in zip(rate._fields, at(1), at(-1), rate, strict=True):
            with np.errstate(invalid="ignore"):  # the lse of an empty row stays -inf
                slope = np.where(np.isinf(ahead), 0.0, (ahead - behind) / (2 * step))
            np.testing.assert_allclose(slope, api.backend.to_host(found), rtol=1e-5, atol=1e-5, err_msg=f"seed {seed}: {name}")


@pytest.mark.parametrize("size", [5, 150], ids=["one tile", "many tiles"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_hidden_pairs_move_no_bit(api, give, size, dtype):
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=(2, 2, size, 3)).astype(dtype) for _ in range(6)]
    mask = rng.random((size, size)) < 0.6

    def rates(q, k, v, dq, dk, dv):
        found = api.attention_jvp(*map(give, (q, k, v)), Tangents(*map(give, (dq, dk, dv))), mask=give(mask), **ASK)[1]
        return [api.backend.to_host(x)[:, :, ~mask[:, 2]] for x in found]

    clean = [x.tobytes() for x in rates(*arrays)]
    for wild in (np.nan, np.inf, -1e30):
        spoiled = [x.copy() for x in arrays]
        for at in (1, 2, 4, 5):
            spoiled[at][..., 2, :] = wild
        assert [x.tobytes() for x in rates(*spoiled)] == clean


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_each_rate_has_the_type_of_its_result(api, dtype):
    rng = np.random.default_rng(3)
    give = api.backend.from_host
    values = {
        name: give(rng.normal(size=s), dtype) for name, s in (("q", (2, 4, 3, 5)), ("k", (2, 2, 6, 5)), ("v", (2, 2, 6, 2)))
    }
    bias = give(rng.normal(size=(3, 6)), "float64")
    result, rate = api.attention_jvp(*values.values(), Tangents(*values.values(), bias=bias), bias=bias, **ASK)
    for a, b in zip(result, rate, strict=True):
        assert type(a) is type(b) and a.dtype == b.dtype and tuple(a.shape) == tuple(b.shape)
    wide = {name: api.backend.to_host(x).astype("float64") for name, x in values.items()}
    bias = api.backend.to_host(bias)
    _, wanted = reference.attention_jvp(*wide.values(), Tangents(*wide.values(), bias=bias), bias=bias, **ASK)
    unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    for a, b in zip(rate, wanted, strict=True):
        np.testing.assert_allclose(api.backend.to_host(a).astype("float64"), b, rtol=4 * unit, atol=40 * unit)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def bits(found):
    return [x.tobytes() for pair in found for x in pair if x is not None]


def test_neither_threads_nor_company_move_a_bit():
    arrays = [normal(3, 4, 700, 16, seed=at) for at in range(6)]
    options = {"is_causal": True, **ASK}

    def moved(which, threads):
        given = [x[which] for x in arrays]
        return load("numpy", threads=threads).attention_jvp(*given[:3], Tangents(*given[3:]), **options)

    together = moved(slice(None), 1)
    assert bits(together) == bits(moved(slice(None), 3))
    assert bits(moved(slice(1, 2), 1)) == [x[1:2].tobytes() for pair in together for x in pair if x is not None]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"sink_logits": normal(2)}], ids=str)
def test_the_memory_of_numpy_is_linear(options):
    """At n = m = 4096 one matrix of float32 scores has 64 MB. Operands, rates and tiles together stay far below one."""
    arrays = [normal(1, 2, 4096, 8, seed=at) for at in range(6)]
    move = load("numpy").attention_jvp
    move(*(x[..., :600, :] for x in arrays[:3]), Tangents(*(x[..., :600, :] for x in arrays[3:])), **options)
    tracemalloc.start()
    move(*arrays[:3], Tangents(*arrays[3:]), **options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


def test_torch_differentiates_no_further_and_takes_leaves_that_want_gradients():
    import torch

    from mha_backends.torch import attention_jvp

    q = torch.from_numpy(normal(1, 2, 5, 4).astype("float64")).requires_grad_()
    result, rate = attention_jvp(q, q, q, Tangents(query=torch.ones_like(q)), return_lse=True)
    assert not any(x.requires_grad for x in (result.output, result.lse, rate.output, rate.lse))
    still, zero = attention_jvp(q, q, q, Tangents(), return_lse=True)
    assert torch.equal(still.output, result.output) and not zero.output.any() and not zero.lse.any()
