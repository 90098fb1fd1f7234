"""The reference where narrower arithmetic would overflow, and on arrays of other libraries."""

import numpy as np
import pytest
import torch

from mha_backends.reference import attention, create

ONE = np.ones((1, 2, 3), dtype="float32")


@pytest.mark.parametrize(
    "options", [{"scale": 0}, {"scale": 1e300}, {"scale": 1e-60}, {"softcap": 1e300}, {"softcap": 1e-300}], ids=str
)
@pytest.mark.parametrize("size", [0, 1, 1e25, 3e38])
def test_numbers_beyond_float32_are_taken_at_their_word(options, size):
    q = ONE * np.float32(size)
    np.testing.assert_array_equal(attention(q, q, ONE * 2, **options), ONE * 2)


def test_products_beyond_float32_cancel():
    q = np.asarray([[[3e38, 3e38]]], dtype="float32")
    k = np.asarray([[[3e38, -3e38], [0, 0]]], dtype="float32")
    np.testing.assert_array_equal(attention(q, k, np.asarray([[[1], [3]]], dtype="float32")), [[[2]]])


def test_the_scale_zero_wins_over_an_overflow_of_float64():
    q = np.full((1, 2, 3), 1e300)
    np.testing.assert_array_equal(attention(q, q, ONE.astype("float64"), scale=0), ONE)


def test_a_visible_row_never_has_the_lse_of_an_empty_one():
    lse = attention(ONE, ONE, ONE, bias=np.asarray([[-1e300, -1e300], [-np.inf, -np.inf]]), return_lse=True).lse
    np.testing.assert_array_equal(lse, [[np.finfo("float32").min, -np.inf]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_any_array_goes_to_the_host_with_its_values(dtype):
    x = torch.tensor([0, 1, 1], dtype=dtype)
    host = create().to_host(x)
    np.testing.assert_array_equal(host, [0, 1, 1])
    assert str(host.dtype) == {torch.bfloat16: "float32"}.get(dtype, str(dtype).removeprefix("torch."))
    host[:] = 0
    assert x[1] == 1, "a copy"
