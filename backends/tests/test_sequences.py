"""Packed sequences and statistics, on every backend, against calls of attention."""

import tracemalloc

import numpy as np
import pytest
from random_calls import request

from mha_backends.numpy import attention_statistics
from mha_core import Violation, statistics
from mha_core.varlen import runs


def starts(sizes):
    return [0, *np.cumsum(sizes).tolist()]


def packed(rng, lengths, h=4, h_kv=2, d_k=3, d_v=2):
    n, m = (sum(pair[at] for pair in lengths) for at in (0, 1))
    arrays = tuple(rng.normal(size=shape) for shape in ((n, h, d_k), (m, h_kv, d_k), (m, h_kv, d_v)))
    return arrays, starts([n for n, _ in lengths]), starts([m for _, m in lengths])


PACKS = [
    [(3, 3), (1, 5), (4, 2)],
    [(2, 3)] * 3 + [(1, 1)] * 2 + [(2, 3)],
    [(0, 3), (2, 0), (0, 0), (1, 2)],
    [(5, 5)],
    [],
]


@pytest.mark.parametrize("lengths", PACKS, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"window": (1, 0)}, {"scale": 0.3, "softcap": 2.0}],
    ids=lambda options: " ".join(options),
)
def test_a_pack_is_separate_calls(api, give, lengths, options):
    rng = np.random.default_rng(0)
    arrays, query_starts, key_starts = packed(rng, lengths)
    sinks = give(rng.normal(size=4))
    offsets = rng.integers(-2, 4, size=len(lengths)).tolist()
    banded = "is_causal" in options or "window" in options
    asked = {**options, "sink_logits": sinks, "return_lse": True}
    got = api.attention_varlen(
        *map(give, arrays), query_starts, np.asarray(key_starts), query_offset=offsets if banded else None, **asked
    )
    assert tuple(got.output.shape) == (*arrays[0].shape[:2], 2)
    assert tuple(got.lse.shape) == arrays[0].shape[:2]
    for s in range(len(lengths)):
        now, then = slice(*query_starts[s : s + 2]), slice(*key_starts[s : s + 2])
        one = [give(np.swapaxes(x[at], 0, 1)) for x, at in zip(arrays, (now, then, then), strict=True)]
        alone = api.attention(*one, **({"query_offset": offsets[s]} if banded else {}), **asked)
        for name in ("output", "lse"):
            wanted = np.swapaxes(api.backend.to_host(getattr(alone, name)), 0, 1)
            np.testing.assert_allclose(api.backend.to_host(getattr(got, name))[now], wanted, rtol=1e-13, atol=1e-13)


def test_equal_neighbours_are_one_call():
    sizes = [(2, 3)] * 3 + [(1, 1)] + [(2, 3)] * 2
    assert [(run.query, run.key, run.number) for run in runs(sizes, None)] == [(0, 0, 3), (6, 9, 1), (7, 10, 2)]
    assert [run.number for run in runs(sizes, [0, 0, 1, 0, 5, 5])] == [2, 1, 1, 2]
    assert [run.number for run in runs([], None)] == [0]


def test_packs_that_are_refused(api, give):
    arrays, a, b = packed(np.random.default_rng(1), [(2, 2), (1, 3)])
    arrays = [give(x) for x in arrays]
    wrong = [
        ("MHA-VARLEN-4", (a, b), {"is_causal": True}),
        ("MHA-VARLEN-4", (a, b), {"window": (None, 2)}),
        ("MHA-VARLEN-4", (a, b), {"query_offset": 0}),
        ("MHA-VARLEN-4", (a, b), {"is_causal": True, "query_offset": [0]}),
        ("MHA-VARLEN-3", (a[1:], b), {}),
        ("MHA-VARLEN-3", (a, b[:-1]), {}),
        ("MHA-VARLEN-3", (a, [0, 1, 2, 5]), {}),
        ("MHA-VARLEN-3", (3, b), {}),
        ("MHA-VAL-16", (a, b), {"scale": "1"}),
        ("MHA-VAL-20", (a, b), {"return_lse": 1}),
    ]
    for clause, given, options in wrong:
        with pytest.raises(Violation) as caught:
            api.attention_varlen(*arrays, *given, **options)
        assert caught.value.clause == clause, caught.value
    with pytest.raises(TypeError):
        api.attention_varlen(*arrays, a, b, mask=None)


def test_host_numbers_alone_say_where_sequences_start():
    torch = pytest.importorskip("torch")
    from mha_backends.torch import attention_varlen

    x = torch.zeros((2, 1, 1))
    with pytest.raises(Violation, match=r"MHA-CACHE-10.*tolist"):
        attention_varlen(x, x, x, torch.tensor([0, 2]), [0, 2])


@pytest.mark.parametrize("pairs", [1, 40, 2**20])
def test_statistics_are_those_of_the_matrix(api, give, pairs, monkeypatch):
    """Blocks of one row, of a few, and one block: options follow the rows that they speak of."""
    monkeypatch.setattr(statistics, "PAIRS", pairs)
    rng = np.random.default_rng(2)
    for _ in range(25):
        query, key, value, options = request(rng)
        options = {name: give(x) for name, x in options.items()}
        query, key, value = map(give, (query, key, value))
        m = key.shape[-2]
        span = tuple(sorted(rng.integers(0, m + 1, size=2).tolist()))
        got = api.attention_statistics(query, key, column_mass=True, row_entropy=True, top_k=3, head_mean=span, **options)
        a = api.backend.to_host(api.attention(query, key, value, return_weights=True, **options).weights)
        found = {name: api.backend.to_host(x) for name, x in got._asdict().items()}
        h = max(a.shape[-3], 1)
        wanted = {
            "column_mass": a.sum(-2),
            "row_entropy": -np.where(a > 0, a * np.log(np.where(a > 0, a, 1)), 0).sum(-1),
            "head_mean": (a.sum(-3) / h)[..., span[0] : span[1]],
        }
        for name, expected in wanted.items():
            assert found[name].shape == expected.shape, name
            np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-12, err_msg=name)
        pad = np.concatenate([a, np.zeros((*a.shape[:-1], 3))], axis=-1)
        np.testing.assert_allclose(found["top_weights"], -np.sort(-pad, axis=-1)[..., :3], rtol=1e-12, atol=1e-12)
        assert found["top_keys"].dtype == np.int64
        keys = found["top_keys"]
        listed = np.take_along_axis(pad, np.where(keys < 0, m, keys), axis=-1)
        np.testing.assert_allclose(listed, found["top_weights"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int64"])
def test_offsets_of_any_type_and_size_keep_their_meaning(api, give, kind, monkeypatch):
    """The blocks begin at rows 100 and 200, which are added to an offset, which no int8 holds and which overflows the largest int64."""
    monkeypatch.setattr(statistics, "PAIRS", 1200)
    ends = np.iinfo(kind)
    offset = np.asarray([ends.min, ends.max, 3]).astype(kind)
    rng = np.random.default_rng(3)
    query, key = rng.normal(size=(3, 1, 300, 2)), rng.normal(size=(3, 1, 4, 2))
    options = {"is_causal": True, "query_offset": give(offset), "window": (150, None)}
    got = api.attention_statistics(give(query), give(key), column_mass=True, **options).column_mass
    a = api.attention(give(query), give(key), give(key), return_weights=True, **options).weights
    np.testing.assert_allclose(api.backend.to_host(got), api.backend.to_host(a).sum(-2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_statistics_have_the_dtype_of_the_lse(api, give, dtype):
    x = give(np.ones((1, 2, 3, 4), dtype=dtype))
    got = api.attention_statistics(x, x, column_mass=True, row_entropy=True, top_k=2, head_mean=(0, 1))
    wide = "float64" if dtype == "float64" else "float32"
    assert [str(y.dtype).rpartition(".")[2] for y in got] == [wide, wide, wide, "int64", wide]


@pytest.mark.parametrize(("query", "key"), [((0, 2, 3, 4), (0, 2, 5, 4)), ((2, 0, 3, 4), (2, 0, 5, 4)), ((2, 2, 0, 4), (2, 2, 5, 4)),
                                            ((2, 2, 3, 4), (2, 2, 0, 4)), ((2, 2, 3, 0), (2, 2, 5, 0))])  # fmt: skip
def test_statistics_of_empty_axes(api, give, query, key):
    got = api.attention_statistics(
        give(np.ones(query)), give(np.ones(key)), column_mass=True, row_entropy=True, top_k=2, head_mean=(0, 0)
    )
    batch, h, n, m = query[0], query[1], query[2], key[2]
    shapes = [(batch, h, m), (batch, h, n), (batch, h, n, 2), (batch, h, n, 2), (batch, n, 0)]
    assert [tuple(x.shape) for x in got] == shapes


def test_the_matrix_is_never_there():
    """MHA-STAT-5: 8192 by 8192 weights are 256 MiB; what is held at a time is a small part of that."""
    x = np.ones((1, 8192, 8), dtype="float32")
    tracemalloc.start()
    try:
        attention_statistics(x, x, is_causal=True, column_mass=True, row_entropy=True, top_k=2, head_mean=(0, 4))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20


def test_statistics_ask_for_the_weights_and_are_refused_without_them():
    from dataclasses import replace

    from mha_backends import reference
    from mha_core import Unsupported, bind

    own = reference.create()
    poor = bind(replace(own, claims=replace(own.claims, features=own.claims.features - {"weights"})))
    x = np.ones((1, 2, 1))
    with pytest.raises(Unsupported, match="weights"):
        poor.attention_statistics(x, x, column_mass=True)
