"""Dropout on every backend that claims it: the masks of the reference bit for bit, its results, its NaN, and no state."""

import random
import tracemalloc

import numpy as np
import pytest
import torch
from random_calls import drop, request

import mha_backends.numpy
import mha_backends.torch
from mha_backends import reference
from mha_backends.numpy.backward import attend_vjp
from mha_backends.numpy.forward import attend
from mha_backends.numpy.plan import Blocks
from mha_core import Cotangents, Dropout, KVCache
from mha_spec.contract import attention_call

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own, in forward mode

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def given(give, dropout):
    return dropout._replace(keep=None if dropout.keep is None else give(dropout.keep))


def kept(api, give, shape, h_kv, dropout, **options):
    """(*b h n m): which pairs are kept, read from the output: each key has a channel of its own."""
    *batch, h, n, m = shape
    q, k = np.zeros((*batch, h, n, 1), np.float32), np.zeros((*batch, h_kv, m, 1), np.float32)
    v = np.broadcast_to(np.eye(m, dtype=np.float32), (*batch, h_kv, m, m))
    return api.backend.to_host(api.attention(give(q), give(k), give(v), dropout=given(give, dropout), **options)) != 0


def test_every_backend_has_the_mask_of_the_reference_bit_for_bit(api, give):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        batch, group, h_kv = tuple(rng.integers(1, 4, size=rng.integers(0, 3)).tolist()), rng.integers(1, 4), rng.integers(1, 3)
        shape = (*batch, int(group * h_kv), int(rng.integers(1, 9)), int(rng.integers(1, 19)))
        dropout = drop(rng, np.zeros((*shape[:-1], 1)), np.zeros((*shape[:-2], shape[-1], 1)))
        call = attention_call(
            *[np.zeros((*shape[:-2], size, 1)) for size in (shape[-2], shape[-1], shape[-1])], dropout=dropout
        )
        wanted = np.ones(shape, np.bool_)
        if call.dropout is not None:
            from mha_spec.equations_dropout import factors

            wanted = factors(call) != 0
        assert (kept(api, give, shape, int(h_kv), dropout) == wanted).all(), f"seed {seed}: {dropout}"


@pytest.mark.parametrize("nan", [0.0, 0.05])
def test_any_call_has_the_results_of_the_reference(api, give, nan):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        query, key, value, options = request(rng, most=9)
        dropout = drop(rng, query, key)
        arrays = [query, key, value, rng.normal(size=(*query.shape[:-1], value.shape[-1]))]
        arrays = [np.where(rng.random(x.shape) < nan, np.nan, x) for x in arrays]
        theirs = {name: give(x) for name, x in options.items()}
        asked = {"return_weights": True, "return_lse": True}
        wanted = reference.attention(*arrays[:3], dropout=dropout, **asked, **options)
        got = api.attention(*map(give, arrays[:3]), dropout=given(give, dropout), **asked, **theirs)
        for name, a, b in zip(got._fields, got, wanted, strict=True):
            np.testing.assert_allclose(api.backend.to_host(a), b, **CLOSE, err_msg=f"seed {seed}: {name}, {dropout}")
        wanted = reference.attention_vjp(*arrays, dropout=dropout, **options)
        got = api.attention_vjp(*map(give, arrays), dropout=given(give, dropout), **theirs)
        for name, a, b in zip(got._fields, got, wanted, strict=True):
            if b is not None:
                np.testing.assert_allclose(api.backend.to_host(a), b, **CLOSE, err_msg=f"seed {seed}: d{name}, {dropout}")


def test_the_borders_of_numpys_tiles_drop_nothing_else():
    for seed in range(80):
        rng = np.random.default_rng(seed)
        query, key, value, options = request(rng, most=14)
        dropout = drop(rng, query, key)
        call = attention_call(query, key, value, dropout=dropout, return_weights=True, return_lse=True, **options)
        wanted = reference.attention(query, key, value, dropout=dropout, return_weights=True, return_lse=True, **options)
        cut = Blocks(int(rng.integers(1, 5)), int(rng.integers(1, 7)), 0)
        for name, a, b in zip(wanted._fields, attend(call, blocks=cut, threads=2), wanted, strict=True):
            np.testing.assert_allclose(a, b, **CLOSE, err_msg=f"seed {seed}: {name}")
        grad = rng.normal(size=wanted.output.shape)
        wanted = reference.attention_vjp(query, key, value, grad, dropout=dropout, **options)
        found = attend_vjp(call, Cotangents(grad), None, blocks=cut, threads=2)
        for name, a, b in zip(wanted._fields, found, wanted, strict=True):
            if b is not None:
                np.testing.assert_allclose(np.reshape(a, b.shape), b, **CLOSE, err_msg=f"seed {seed}: d{name}")


def test_batch_axes_that_are_no_single_axis_have_their_items_in_order():
    """A mask that is broadcast along one batch axis only makes NumPy compute in several parts."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 3, 2, 5, 4)) for _ in range(3))
    mask = rng.random((2, 1, 1, 5, 5)) < 0.8
    keep = rng.random((1, 3, 1, 5, 5)) < 0.5
    for dropout in (Dropout(0.5, 3, batch_start=9), Dropout(0.5, keep=keep)):
        wanted = reference.attention(q, k, v, mask=mask, dropout=dropout)
        np.testing.assert_allclose(mha_backends.numpy.attention(q, k, v, mask=mask, dropout=dropout), wanted, **CLOSE)


def test_rate_0_is_bitwise_no_dropout_and_no_generator_moves(api, give):
    rng = np.random.default_rng(1)
    q, k, v, g = (give(rng.normal(size=(2, 3, 7, 4))) for _ in range(4))

    def state():
        return random.getstate(), str(np.random.get_state()[1:3]), torch.random.get_rng_state().tolist()

    before, host = state(), api.backend.to_host
    plain, zero = api.attention(q, k, v), api.attention(q, k, v, dropout=Dropout(0.0, 5))
    assert host(plain).tobytes() == host(zero).tobytes()
    api.attention(q, k, v, dropout=Dropout(0.3, 5))
    assert state() == before
    first, again = (api.attention_vjp(q, k, v, g, dropout=Dropout(0.3, 5)) for _ in range(2))
    assert all(host(a).tobytes() == host(b).tobytes() for a, b in zip(first[:3], again[:3], strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_narrow_types_drop_the_same(api, dtype):
    rng = np.random.default_rng(2)
    arrays = [rng.integers(-8, 9, size=(2, 2, 9, 4)) / 8 for _ in range(3)]
    narrow = [api.backend.from_host(x, dtype) for x in arrays]
    wanted = reference.attention(*arrays, dropout=Dropout(0.25, 2**64 - 3))
    got = api.backend.to_host(api.attention(*narrow, dropout=Dropout(0.25, 2**64 - 3))).astype(np.float64)
    np.testing.assert_allclose(got, wanted, atol={"float32": 1e-6, "float16": 4e-3, "bfloat16": 3e-2}[dtype])


def test_hidden_data_moves_no_bit(api, give):
    rng = np.random.default_rng(3)
    q, k, v, g = (rng.normal(size=(1, 2, 40, 4)).astype(np.float32) for _ in range(4))
    mask = rng.random((40, 40)) < 0.6
    mask[3, 5] = False
    options = {"mask": give(mask), "dropout": Dropout(0.4, 8)}
    wild_k, wild_v = k.copy(), v.copy()
    wild_k[:, :, 5], wild_v[:, :, 5] = np.nan, 1e30
    clean = api.backend.to_host(api.attention(*map(give, (q, k, v)), **options))
    dirty = api.backend.to_host(api.attention(*map(give, (q, wild_k, wild_v)), **options))
    assert clean[:, :, ~mask[:, 5]].tobytes() == dirty[:, :, ~mask[:, 5]].tobytes()
    assert np.isnan(dirty[:, :, mask[:, 5]]).all()
    found = [api.attention_vjp(*map(give, (q, *kv, g)), **options) for kv in ((k, v), (wild_k, wild_v))]
    a, b = (api.backend.to_host(x.query)[:, :, ~mask[:, 5]] for x in found)
    assert a.tobytes() == b.tobytes()


def test_chunks_over_a_cache_and_parts_of_a_key_axis_are_one_call(api, give):
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(2, 2, 11, 4)) for _ in range(3))
    drop_ = Dropout(0.5, 77, batch_start=3)
    whole = api.backend.to_host(api.attention(*map(give, (q, k, v)), is_causal=True, dropout=drop_))
    cache, at = KVCache(), 0
    for size in (3, 1, 5, 2):
        now = slice(at, at + size)
        held = cache.append(give(k[:, :, now]), give(v[:, :, now]))
        got = api.attention(
            give(q[:, :, now]), held.key, held.value, is_causal=True, query_offset=held.query_offset,
            dropout=drop_._replace(query_start=at),
        )  # fmt: skip
        np.testing.assert_allclose(api.backend.to_host(got), whole[:, :, now], **CLOSE)
        at += size
    plain = api.backend.to_host(api.attention(*map(give, (q, k, v)), dropout=drop_))
    parts = []
    for now in (slice(0, 3), slice(3, 4), slice(4, 11)):
        part = api.attention(
            give(q), give(k[:, :, now]), give(v[:, :, now]), dropout=drop_._replace(key_start=now.start), return_lse=True
        )
        parts.append((part.output, part.lse))
    np.testing.assert_allclose(api.backend.to_host(api.merge_partials(parts)[0]), plain, **CLOSE)


def test_numpys_memory_stays_linear():
    x = np.zeros((1, 1, 4096, 8), np.float32)
    tracemalloc.start()
    try:
        mha_backends.numpy.attention(x, x, x, dropout=Dropout(0.5, 1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4096 * 4096


DROPS = [Dropout(0.5, 5, query_start=3), Dropout(0.5, 2**64 - 1, key_start=2**34 - 20), Dropout(1.0, 5)]


@pytest.mark.parametrize("dropout", DROPS, ids=["seed", "largest seed", "rate 1"])
def test_torch_compiles_and_exports_it(dropout):
    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    attention = mha_backends.torch.attention

    def called(q, k, v):
        return attention(q, k, v, dropout=dropout)

    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    compiled = torch.compile(called, fullgraph=True, backend="aot_eager")
    want, got = called(*leaves), compiled(*leaves)
    torch.testing.assert_close(got, want)
    for a, b in zip(*(torch.autograd.grad(x.sin().sum(), leaves) for x in (want, got)), strict=True):
        torch.testing.assert_close(a, b)

    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return called(q, k, v)

    torch.testing.assert_close(torch.export.export(Module(), (q, k, v)).module()(q, k, v), want.detach())


def test_torch_compiles_it_for_a_seed_that_changes():
    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 2, 5, 4) for _ in range(3))
    compiled = torch.compile(mha_backends.torch.attention, fullgraph=True, backend="aot_eager")
    for seed in (1, 2, 3, 2**63 + 1, 2**64 - 1):
        for start in (0, 1, 7):
            asked = {"dropout": Dropout(0.5, seed, query_start=start)}
            torch.testing.assert_close(compiled(q, k, v, **asked), mha_backends.torch.attention(q, k, v, **asked))


def test_torch_transforms_take_it():
    q, k, v = (torch.randn(3, 2, 4, 2, dtype=torch.float64) for _ in range(3))

    def one(q, k, v):
        return mha_backends.torch.attention(q, k, v, dropout=Dropout(0.4, 6))

    torch.testing.assert_close(torch.vmap(one)(q, k, v), torch.stack([one(*x) for x in zip(q, k, v, strict=True)]))
    assert torch.autograd.gradcheck(one, [x[0].clone().requires_grad_() for x in (q, k, v)])
    torch.testing.assert_close(torch.func.jacfwd(one)(q[0], k[0], v[0]), torch.func.jacrev(one)(q[0], k[0], v[0]))


def test_torch_refuses_a_sparse_mask_by_its_name():
    x = torch.zeros(1, 2, 2)
    with pytest.raises(ValueError, match=r"MHA-VAL-1: given keep"):
        mha_backends.torch.attention(x, x, x, dropout=Dropout(0.5, keep=torch.ones(2, 2, dtype=torch.bool).to_sparse()))
