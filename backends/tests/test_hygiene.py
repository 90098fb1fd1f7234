"""What a call may not do: change its inputs, share memory, remember, notice strides, touch global state (MHA-EXEC-1 to 8)."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from random_calls import request

ALL = {"return_weights": True, "return_lse": True}


def rich(rng, dtype="float64"):
    """A call that uses mask, bias, band, lengths, segments, softcap and sinks at once."""
    q, k, v = (rng.normal(size=shape).astype(dtype) for shape in ((2, 4, 6, 5), (2, 2, 9, 5), (2, 2, 9, 3)))
    options = {
        "mask": rng.random((2, 4, 6, 9)) < 0.8,
        "bias": rng.normal(size=(4, 6, 9))[None].astype(dtype),
        "is_causal": True,
        "query_offset": np.asarray([3, 1]),
        "window": (5, None),
        "key_lengths": np.asarray([9, 5]),
        "query_segments": rng.integers(0, 2, size=(2, 6)),
        "key_segments": rng.integers(0, 2, size=(2, 9)),
        "softcap": 4.0,
        "sink_logits": rng.normal(size=4).astype(dtype),
    }
    return (q, k, v), options


def converted(give, arrays, options):
    return [give(x) for x in arrays], {name: give(x) for name, x in options.items()}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_library_device_dtype_and_shape_are_the_querys(api, give, dtype):
    arrays, options = converted(give, *rich(np.random.default_rng(0), dtype))
    got = api.attention(*arrays, **options, **ALL)
    query = arrays[0]
    assert [type(x) for x in got] == [type(query)] * 3
    assert got.output.dtype == got.weights.dtype == query.dtype
    assert str(got.lse.dtype).endswith("float64" if dtype == "float64" else "float32")
    assert [tuple(x.shape) for x in got] == [(2, 4, 6, 3), (2, 4, 6, 9), (2, 4, 6)]
    assert getattr(got.output, "device", None) == getattr(query, "device", None)


def test_inputs_are_not_modified(api, give):
    arrays, options = converted(give, *rich(np.random.default_rng(1)))
    given = [*arrays, *(x for x in options.values() if hasattr(x, "shape"))]
    before = [api.backend.to_host(x).tobytes() for x in given]
    api.attention(*arrays, **options, **ALL)
    assert [api.backend.to_host(x).tobytes() for x in given] == before


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_read_only_inputs_are_fine(api):
    if api.name == "torch":
        pytest.skip("torch has no read-only tensors")
    arrays, options = rich(np.random.default_rng(2))
    wanted = api.attention(*arrays, **options)
    for x in (*arrays, *options.values()):
        if hasattr(x, "setflags"):
            x.setflags(write=False)
    np.testing.assert_array_equal(api.attention(*arrays, **options), wanted)


def test_results_share_no_memory_with_inputs(api, give):
    one = np.ones((1, 1, 1))
    for options in ({}, {"mask": np.ones((1, 1), dtype=bool)}, {"bias": np.zeros((1, 1, 1))}):
        arrays, options = converted(give, (one, one, one), options)
        got = api.attention(*arrays, **options, **ALL)
        given = [np.asarray(x) for x in (*arrays, *options.values())]
        for x in got:
            assert not any(np.shares_memory(np.asarray(x), y) for y in given)


def views(x):
    """The same values in other layouts, as NumPy arrays."""
    gaps = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, dtype=x.dtype)
    gaps[..., ::2] = x
    yield "every second channel of a buffer full of NaN", gaps[..., ::2]
    turned = np.ascontiguousarray(np.swapaxes(x, -1, -2))
    yield "transposed", np.swapaxes(turned, -1, -2)
    heads = np.ascontiguousarray(np.moveaxis(x, -3, -2))
    yield "heads inside positions", np.moveaxis(heads, -2, -3)
    padded = np.full((*x.shape[:-2], x.shape[-2] + 3, x.shape[-1] + 1), np.nan, dtype=x.dtype)
    padded[..., 1:-2, 1:] = x
    yield "a slice of a padded buffer", padded[..., 1:-2, 1:]
    yield "negative strides", np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]


def test_strides_do_not_matter(api):
    arrays, options = rich(np.random.default_rng(3))
    to = (lambda x: x) if api.name != "torch" else __import__("torch").from_numpy
    options = {name: to(x) if hasattr(x, "shape") else x for name, x in options.items()}
    wanted = np.asarray(api.attention(*map(to, arrays), **options))
    for at in range(3):
        for name, view in views(arrays[at]):
            if api.name == "torch" and name == "negative strides":
                continue  # torch cannot express it
            mixed = [to(view) if i == at else to(x) for i, x in enumerate(arrays)]
            got = np.asarray(api.attention(*mixed, **options))
            np.testing.assert_allclose(got, wanted, rtol=1e-13, atol=1e-13, err_msg=name)
            if api.backend.claims.determinism == "bit-exact":
                assert got.tobytes() == wanted.tobytes(), name


def test_broadcast_operands_are_read_as_values(api):
    rng = np.random.default_rng(4)
    q, k, v = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(1, 1, 6, 5)), rng.normal(size=(1, 1, 6, 2))
    wide = [q, np.broadcast_to(k, (2, 3, 6, 5)), np.broadcast_to(v, (2, 3, 6, 2))]
    if api.name == "torch":
        import torch

        wide = [torch.from_numpy(q), torch.from_numpy(k).expand(2, 3, 6, 5), torch.from_numpy(v).expand(2, 3, 6, 2)]
    got = np.asarray(api.attention(*wide))
    copies = [api.backend.from_host(api.backend.to_host(x).copy(), "float64") for x in wide]
    np.testing.assert_allclose(got, np.asarray(api.attention(*copies)), rtol=1e-13, atol=1e-13)


def test_no_call_remembers_another(api, give):
    rng = np.random.default_rng(5)
    calls = [converted(give, request_arrays, options) for *request_arrays, options in (request(rng) for _ in range(6))]
    first = [api.backend.to_host(api.attention(*arrays, **options)) for arrays, options in calls]
    again = [api.backend.to_host(api.attention(*arrays, **options)) for arrays, options in reversed(calls)]
    for a, b in zip(first, reversed(again), strict=True):
        assert a.tobytes() == b.tobytes()


def test_threads_do_not_disturb_each_other(api, give):
    rng = np.random.default_rng(6)
    calls = [converted(give, *rich(rng)) for _ in range(4)] * 3

    def run(call):
        return api.backend.to_host(api.attention(*call[0], **call[1])).tobytes()

    wanted = [run(call) for call in calls]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, calls)) == wanted


def test_global_state_is_untouched(api, give):
    arrays, options = converted(give, *rich(np.random.default_rng(7)))
    before = random.getstate(), np.random.get_state()[1].tobytes(), np.geterr()
    api.attention(*arrays, **options, **ALL)
    assert (random.getstate(), np.random.get_state()[1].tobytes(), np.geterr()) == before


def test_batch_items_do_not_mix(api, give):
    (q, k, v), options = rich(np.random.default_rng(8))
    q[1], k[1], v[1] = q[1] * 9, k[1] * 9, np.nan
    whole = api.backend.to_host(api.attention(*map(give, (q, k, v)), **{n: give(x) for n, x in options.items()}))
    batched = ("query_offset", "key_lengths", "query_segments", "key_segments", "mask")
    for b in range(2):
        one = {name: give(x[b : b + 1]) if name in batched else give(x) for name, x in options.items()}
        alone = api.backend.to_host(api.attention(*(give(x[b : b + 1]) for x in (q, k, v)), **one))
        np.testing.assert_allclose(whole[b : b + 1], alone, rtol=1e-13, atol=1e-13)
        if api.backend.claims.determinism in ("batch-invariant", "bit-exact"):
            assert whole[b : b + 1].tobytes() == alone.tobytes()


SIZES = [
    ((0, 2, 3, 4), (0, 2, 5, 4), (0, 2, 5, 6)),
    ((2, 0, 3, 4), (2, 0, 5, 4), (2, 0, 5, 6)),
    ((2, 2, 0, 4), (2, 2, 5, 4), (2, 2, 5, 6)),
    ((2, 2, 3, 4), (2, 2, 0, 4), (2, 2, 0, 6)),
    ((2, 2, 3, 0), (2, 2, 5, 0), (2, 2, 5, 6)),
    ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 0)),
]


@pytest.mark.parametrize(("query", "key", "value"), SIZES)
def test_empty_axes_have_the_stated_shapes(api, give, query, key, value):
    arrays = [give(np.ones(shape)) for shape in (query, key, value)]
    sinks = give(np.zeros(query[1]))
    for options in ({}, {"is_causal": True, "query_offset": 0}, {"sink_logits": sinks}):
        got = api.attention(*arrays, **options, **ALL)
        assert tuple(got.output.shape) == (*query[:-1], value[-1])
        assert tuple(got.weights.shape) == (*query[:-1], key[-2])
        assert tuple(got.lse.shape) == query[:-1]
        if not key[-2]:
            assert not api.backend.to_host(got.output).any()
            assert (api.backend.to_host(got.lse) == (0 if "sink_logits" in options else -np.inf)).all()
