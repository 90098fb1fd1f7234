"""The NumPy gradients where they are cut into blocks: borders, threads, batch items, memory."""

import tracemalloc

import numpy as np
import pytest
from test_gradients_of_backends import drawn

from mha_backends import reference
from mha_backends.numpy import attention_vjp
from mha_backends.numpy.backward import attend_vjp
from mha_backends.numpy.plan import Blocks
from mha_core import Cotangents, load
from mha_spec.contract import attention_call


def in_blocks(arrays, options, blocks, threads=1):
    options = dict(options)
    arriving = Cotangents(arrays[3], options.pop("grad_lse", None), options.pop("grad_weights", None))
    return attend_vjp(attention_call(*arrays[:3], **options), arriving, None, blocks=blocks, threads=threads)


@pytest.mark.parametrize("nan", [0.0, 0.06])
@pytest.mark.parametrize("blocks", [Blocks(2, 2, 0), Blocks(3, 1, 0), Blocks(1, 3, 0)], ids=str)
def test_blocks_of_any_size_give_the_same(blocks, nan):
    for seed in range(60):
        arrays, options = drawn(1000 + seed, nan=nan)
        for a, b in zip(in_blocks(arrays, options, blocks), reference.attention_vjp(*arrays, **options), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_allclose(a.reshape(b.shape), b, rtol=1e-10, atol=1e-10, err_msg=f"seed {seed}")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def bits(found):
    return [x.tobytes() for x in found if x is not None]


@pytest.mark.parametrize("h_kv", [1, 4])
def test_the_number_of_threads_moves_no_bit(h_kv):
    q, g = normal(2, 4, 700, 16), normal(2, 4, 700, 16, seed=1)
    k, v = normal(2, h_kv, 600, 16, seed=2), normal(2, h_kv, 600, 16, seed=3)
    options = {"is_causal": True, "query_offset": -50}
    alone = load("numpy", threads=1).attention_vjp(q, k, v, g, **options)
    assert bits(alone) == bits(load("numpy", threads=3).attention_vjp(q, k, v, g, **options))


@pytest.mark.parametrize("size", [6, 600])
def test_an_item_has_the_same_bits_alone_and_in_company(size):
    arrays = [normal(5, 2, size, 8, seed=at) for at in range(4)]
    options = {"key_lengths": np.asarray([size, 3, 0, size // 2, 1])}
    together = attention_vjp(*arrays, **options)
    for item in range(5):
        alone = attention_vjp(*(x[item : item + 1] for x in arrays), key_lengths=options["key_lengths"][item : item + 1])
        assert bits(alone) == bits(x[item : item + 1] for x in together[:3])


def test_a_bias_that_tasks_share_is_summed_over_all_of_them():
    q, k, v, g = (normal(3, 4, 300, 8, seed=at) for at in range(4))
    bias = normal(300, 300, seed=5)
    wide = [x.astype(float) for x in (q, k, v, g)]
    wanted = load("numpy").attention_vjp(*wide, bias=np.broadcast_to(bias.astype(float), (3, 4, 300, 300)))
    for threads in (1, 3, None):
        found = load("numpy", threads=threads).attention_vjp(q, k, v, g, bias=bias)
        np.testing.assert_allclose(found.bias, wanted.bias.sum((0, 1)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"sink_logits": normal(2)}], ids=str)
def test_memory_is_linear(options):
    """At n = m = 4096 one matrix of float32 scores has 64 MB. Operands, gradients and tiles together stay far below one."""
    arrays = [normal(1, 2, 4096, 8, seed=at) for at in range(4)]
    attention_vjp(*(x[..., :600, :] for x in arrays), **options)
    tracemalloc.start()
    attention_vjp(*arrays, **options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.mark.parametrize("size", [1e-30, 1e18, 3e38])
def test_scores_that_overflow_are_no_nan(size):
    q = np.full((1, 3, 4), size, "float32")
    found = attention_vjp(q, q, np.ones_like(q), np.ones_like(q))
    assert np.isfinite(found.value).all() and not np.isnan(found.query).any() and not np.isnan(found.key).any()


def test_many_batch_axes_and_strides_that_no_view_joins():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(2, 3, 2, 4, 5)) for _ in range(4)]
    options = {
        "mask": rng.random((1, 3, 1, 4, 4)) < 0.7,
        "bias": rng.normal(size=(2, 1, 2, 1, 4)),
        "sink_logits": rng.normal(size=2),
    }
    turned = [np.swapaxes(np.swapaxes(x, 0, 1).copy(), 0, 1) for x in arrays]
    for a, b in zip(attention_vjp(*turned, **options), reference.attention_vjp(*arrays, **options), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
