"""Projections in their two forms, and layers with empty axes."""

import numpy as np
import pytest
import torch

from mha_backends.reference import multi_head_attention
from mha_core import Projections

N, D_MODEL, D_OUT = 3, 8, 5


@pytest.mark.parametrize("layout", ["C", "F", "torch"])
def test_merged_and_split_are_views_of_one_memory(layout):
    w, w_o = np.arange(48.0).reshape(8, 6), np.arange(30.0).reshape(6, 5)
    bias = np.arange(6.0)
    if layout == "F":
        w, w_o = np.asfortranarray(w), np.asfortranarray(w_o)
    if layout == "torch":  # as in a linear layer, whose weight is (out, in)
        w, w_o, bias = torch.from_numpy(w.T.copy()).T, torch.from_numpy(w_o.T.copy()).T, torch.from_numpy(bias)
    given = (w, w, w, w_o)
    p = Projections.from_merged(*given, heads=np.int64(2), kv_heads=3, b_q=bias)
    assert [tuple(x.shape) for x in p[:5]] == [(2, 8, 3), (3, 8, 2), (3, 8, 2), (2, 3, 5), (2, 3)]
    for i in range(2):
        np.testing.assert_array_equal(p.w_q[i], w[:, 3 * i : 3 * i + 3])
        np.testing.assert_array_equal(p.w_o[i], w_o[3 * i : 3 * i + 3])
    for split, merged, whole in zip(p[:5], p.merged()[:5], (*given, bias), strict=True):
        np.testing.assert_array_equal(merged, whole)
        assert np.shares_memory(np.asarray(split), np.asarray(whole)) and np.shares_memory(
            np.asarray(merged), np.asarray(whole)
        )


SIZES = {
    "no heads": {"h": 0, "h_kv": 0},
    "no query heads": {"h": 0},
    "no d_k": {"d_k": 0},
    "no d_v": {"d_v": 0},
    "no d_model": {"d_model": 0},
    "no d_out": {"d_out": 0},
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_layer_with_an_empty_axis_gives_its_output_bias(sizes):
    s = {"h": 4, "h_kv": 2, "d_k": 3, "d_v": 2, "d_model": D_MODEL, "d_out": D_OUT} | sizes
    x = np.ones((N, s["d_model"]))
    w_q = np.zeros((s["h"], s["d_model"], s["d_k"]))
    w_k, w_v = np.zeros((s["h_kv"], s["d_model"], s["d_k"])), np.zeros((s["h_kv"], s["d_model"], s["d_v"]))
    p = Projections(w_q, w_k, w_v, np.ones((s["h"], s["d_v"], s["d_out"])), b_o=np.arange(float(s["d_out"])))
    got = multi_head_attention(x, x, x, p, return_weights=True)
    np.testing.assert_array_equal(got.output, [np.arange(s["d_out"])] * N)
    assert got.weights.shape == (s["h"], N, N)
