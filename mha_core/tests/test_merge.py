"""``merge_partials`` at its ends: the identity, either order, and numbers that a careless formula would lose."""

from itertools import permutations

import ml_dtypes
import numpy as np
import pytest
import torch

from mha_backends.reference import attention
from mha_core import merge_partials

DTYPES = [("float64", "float64"), ("float32", "float32"), ("float16", "float32"), (ml_dtypes.bfloat16, "float32")]
LSES = [0.0, -0.0, 5.0, -1e30, 1e30, 1e-40, np.nan, np.inf]
OUTPUTS = [[1.0, 2.0], [-0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [3e4, -3e4]]


def part(output, lse, dtype="float64", lse_dtype="float64"):
    return np.asarray([output], dtype="float64").astype(dtype), np.asarray([lse], dtype=lse_dtype)


def bits(result):
    return [x.tobytes() for x in result]


@pytest.mark.parametrize(("dtype", "lse_dtype"), DTYPES, ids=[np.dtype(dtype).name for dtype, _ in DTYPES])
def test_the_identity_leaves_every_bit(dtype, lse_dtype):
    identity = part([0.0, 0.0], -np.inf, dtype, lse_dtype)
    for lse in LSES:
        for output in OUTPUTS:
            other = part(output, lse, dtype, lse_dtype)
            for parts in ([other], [other, identity], [identity, other], [identity, other, identity]):
                assert bits(merge_partials(parts)) == bits(other), (output, lse)
    assert bits(merge_partials([identity] * 3)) == bits(identity)


@pytest.mark.parametrize(("dtype", "lse_dtype"), DTYPES, ids=[np.dtype(dtype).name for dtype, _ in DTYPES])
def test_two_parts_merge_to_the_same_bits_in_either_order(dtype, lse_dtype):
    rng = np.random.default_rng(0)
    for spread in (1e-3, 1.0, 30.0, 1e30):
        a, b = ((rng.normal(size=(50, 3)).astype(dtype), (spread * rng.normal(size=50)).astype(lse_dtype)) for _ in range(2))
        assert bits(merge_partials([a, b])) == bits(merge_partials([b, a]))


def test_an_empty_row_and_a_nan_sink_merge_to_what_attention_gives():
    x, none = np.ones((1, 1, 2)), np.ones((1, 0, 2))
    sink = np.zeros((1, 1, 2)), np.full((1, 1), np.nan)
    empty = attention(x, none, none, return_lse=True)
    whole = attention(x, none, none, sink_logits=np.asarray([np.nan]), return_lse=True)
    for merged in (merge_partials([(empty.output, empty.lse), sink]), merge_partials([sink])):
        np.testing.assert_array_equal(merged[0], whole.output)
        np.testing.assert_array_equal(merged[1], whole.lse)


def test_large_outputs_and_far_lses_stay_finite():
    top = np.finfo("float64").max
    output, lse = merge_partials([part([top, -top], 0.0)] * 2)
    np.testing.assert_array_equal(output, [[top, -top]])
    np.testing.assert_array_equal(lse, np.log([2.0]))
    output, lse = merge_partials([part([1.0, 2.0], top), part([3.0, 4.0], -top)])
    np.testing.assert_array_equal(output, [[1.0, 2.0]])
    np.testing.assert_array_equal(lse, [top])


def test_the_error_mode_of_numpy_does_not_matter():
    with np.errstate(all="raise"):
        output, _ = merge_partials([part([1.0, 2.0], 0.0), part([3.0, 4.0], -800.0)])
    np.testing.assert_array_equal(output, [[1.0, 2.0]])


def test_a_part_of_weight_zero_still_shows_its_nan():
    """MHA-MASK-21: whether a small weight becomes 0 depends on the arithmetic."""
    output, _ = merge_partials([part([1.0, 2.0], 0.0), part([np.nan, 3.0], -5000.0)])
    np.testing.assert_array_equal(output, [[np.nan, 2.0]])


def test_many_parts_in_any_order():
    parts = [part([float(p), 1.0], np.log(p + 1)) for p in range(4)]
    for order in permutations(parts):
        output, lse = merge_partials(order)
        np.testing.assert_allclose(output, [[2.0, 1.0]], rtol=1e-14)  # (1*0 + 2*1 + 3*2 + 4*3) / 10
        np.testing.assert_allclose(lse, np.log([10.0]), rtol=1e-14)
    output, lse = merge_partials([part([4.0, 2.0], 0.0)] * 1000)
    np.testing.assert_allclose(output, [[4.0, 2.0]], rtol=1e-13)
    np.testing.assert_allclose(lse, np.log([1000.0]), rtol=1e-13)


def test_gradients_of_empty_rows_are_finite():
    outputs = [torch.ones(2, 3, requires_grad=True) for _ in range(2)]
    lses = [torch.tensor([-torch.inf, 1.0], requires_grad=True), torch.tensor([-torch.inf, -torch.inf], requires_grad=True)]
    output, lse = merge_partials(list(zip(outputs, lses, strict=True)))
    (output.sum() + lse[1]).backward()
    for x in (*outputs, *lses):
        assert torch.isfinite(x.grad).all()
    torch.testing.assert_close(outputs[0].grad, torch.tensor([[0.0] * 3, [1.0] * 3]))
    torch.testing.assert_close(lses[0].grad, torch.tensor([0.0, 1.0]))
