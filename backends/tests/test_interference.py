"""A hidden key moves no bit (MHA-MASK-19), and NaN reaches exactly the rows that see it (MHA-MASK-20 to 22)."""

import numpy as np
import pytest

N, M, D_K, D_V = 9, 11, 5, 4
ALL = {"return_weights": True, "return_lse": True}


def hiders(rng):
    """Every way to hide: name -> (options, visible pairs (n, m))."""
    i, j = np.arange(N)[:, None], np.arange(M)[None]
    some = rng.random((N, M)) < 0.6
    some[3] = False
    segments = rng.integers(0, 2, size=N), rng.integers(0, 2, size=M)
    yield "mask", {"mask": some}, some
    yield "bias", {"bias": np.where(some, rng.normal(size=(N, M)), -np.inf)}, some
    yield "causal", {"is_causal": True, "query_offset": -1}, j <= i - 1
    yield "window", {"window": (2, 1), "query_offset": 1}, (j - i - 1 >= -2) & (j - i - 1 <= 1)
    yield "lengths", {"key_lengths": 6}, np.broadcast_to(j < 6, (N, M))
    yield (
        "segments",
        {"query_segments": segments[0], "key_segments": segments[1]},
        segments[0][:, None] == segments[1][None],
    )
    yield "all", {"mask": some, "is_causal": True, "query_offset": 1, "key_lengths": 8}, some & (j <= i + 1) & (j < 8)


HIDERS = [name for name, _, _ in hiders(np.random.default_rng(0))]


def setup(api, give, name, dtype, n_heads=2):
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=shape) for shape in ((n_heads, N, D_K), (1, M, D_K), (1, M, D_V)))
    options, visible = next((o, s) for hider, o, s in hiders(rng) if hider == name)
    options = {key: x.astype(dtype) if key == "bias" else x for key, x in options.items()}
    host = [x.astype(dtype) for x in (q, k, v)]

    def run(q, k, v, **changed):
        got = api.attention(*map(give, (q, k, v)), **{key: give(x) for key, x in (options | changed).items()}, **ALL)
        return [api.backend.to_host(x) for x in got]

    return host, options, np.asarray(visible), run


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e18, 1e30, -1e30], ids=str)
@pytest.mark.parametrize("hider", HIDERS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_hidden_key_moves_no_bit(api, give, hider, poison, dtype):
    if not api.backend.claims.strict:
        pytest.skip(f"{api.name} does not claim class strict")
    (q, k, v), _, visible, run = setup(api, give, hider, dtype)
    clean = run(q, k, v)
    for j in range(M):
        hidden = ~visible[:, j]
        if not hidden.any():
            continue
        dirty_k, dirty_v = k.copy(), v.copy()
        with np.errstate(over="ignore"):
            dirty_k[:, j], dirty_v[:, j] = poison, poison
        for a, b in zip(clean, run(q, dirty_k, dirty_v), strict=True):
            assert a[:, hidden].tobytes() == b[:, hidden].tobytes(), (hider, j)


@pytest.mark.parametrize("hider", HIDERS)
@pytest.mark.parametrize("where", ["query", "key", "value", "bias"])
def test_nan_reaches_exactly_the_rows_that_see_it(api, give, hider, where):
    (q, k, v), options, visible, run = setup(api, give, hider, "float64")
    clean = run(q, k, v)
    changed = {}
    j, channel, row = 4, 2, 5
    seen = visible[:, j] & np.ones(N, dtype=bool)
    if where == "query":
        q[:, row, 0] = np.nan
        seen = (np.arange(N) == row) & visible.any(1)
    elif where == "key":
        k[:, j, 0] = np.nan
    elif where == "value":
        v[:, j, channel] = np.nan
    else:
        bias = options.get("bias", np.zeros((N, M))).copy()
        bias[:, j] = np.where(bias[:, j] == -np.inf, -np.inf, np.nan)
        changed["bias"] = bias
    output, weights, lse = run(q, k, v, **changed)
    wanted = np.broadcast_to(seen[:, None], (N, D_V)).copy()
    if where == "value":
        wanted[:, np.arange(D_V) != channel] = False
    np.testing.assert_array_equal(np.isnan(output), np.broadcast_to(wanted, output.shape))
    scores_touched = seen if where != "value" else np.zeros(N, dtype=bool)
    np.testing.assert_array_equal(np.isnan(lse), np.broadcast_to(scores_touched, lse.shape))
    assert (weights[:, ~visible] == 0).all(), "a hidden key has weight 0, in a NaN row too"
    np.testing.assert_array_equal(np.isnan(weights), np.broadcast_to(scores_touched[:, None] & visible, weights.shape))
    np.testing.assert_allclose(output[:, ~seen], clean[0][:, ~seen], rtol=1e-12, atol=1e-14)


def test_a_visible_nan_value_shows_even_where_its_weight_underflows(api, give):
    q, k = np.ones((1, 1, 1)), np.asarray([[[0.0], [-2000.0]]])
    v = np.asarray([[[1.0, 2.0], [np.nan, 3.0]]])
    for options in ({}, {"mask": np.ones((1, 2), dtype=bool)}):
        got = api.backend.to_host(api.attention(*map(give, (q, k, v)), **{n: give(x) for n, x in options.items()}))
        assert np.isnan(got[0, 0, 0]) and got[0, 0, 1] == 2.0


def test_a_nan_sink_touches_the_rows_of_its_head_that_see_something(api, give):
    q, k = np.zeros((2, 2, 1)), np.zeros((2, 3, 1))
    mask = np.asarray([[False] * 3, [True] * 3])
    sinks = np.asarray([np.nan, 0.0])
    got = api.attention(*map(give, (q, k, k)), mask=give(mask), sink_logits=give(sinks), **ALL)
    output, weights, lse = map(api.backend.to_host, got)
    np.testing.assert_array_equal(np.isnan(output[..., 0]), [[False, True], [False, False]])
    assert not output[:, 0].any() and not weights[:, 0].any()
    assert np.isnan(lse[0]).all() and not np.isnan(lse[1]).any()


def test_a_finite_bias_hides_nothing(api, give):
    lowest = np.finfo("float32").min
    q, k, v = np.ones((1, 1, 1), "float32"), np.ones((1, 2, 1), "float32"), np.asarray([[[1.0], [3.0]]], "float32")
    for bias in (np.full((1, 2), lowest, "float32"), np.full((1, 2), -1e300), np.full((1, 2), 1e300)):
        got = api.backend.to_host(api.attention(*map(give, (q, k, v)), bias=give(bias)))
        np.testing.assert_array_equal(got, [[[2.0]]])
    huge = np.asarray([[[-3e38, -3e38]]], "float32")
    got = api.backend.to_host(
        api.attention(*map(give, (np.full((1, 1, 2), 3e38, "float32"), np.repeat(huge, 2, 1), v)), scale=1.0)
    )
    np.testing.assert_array_equal(got, [[[2.0]]])
