"""``KVCache`` against lists of tokens, operation by operation; what it refuses; what it leaves alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_backends.reference import attention
from mha_core import KVCache, Projections, Violation
from mha_core.registry import load


def tokens(rng, batch, t, h_kv=2, d_k=3, d_v=2, dtype="float64"):
    return tuple(rng.normal(size=(*batch, h_kv, t, d)).astype(dtype) for d in (d_k, d_v))


class Lists:
    """What a cache means: a list of (key, value) tokens for each sequence, and how many of its first are gone."""

    def __init__(self, batch):
        self.all = [[] for _ in range(batch)]

    def append(self, key, value, counts):
        for b, count in enumerate(counts):
            self.all[b] += [(key[b, :, t], value[b, :, t]) for t in range(count)]

    def check(self, cache):
        held = cache.read()
        assert cache.lengths.tolist() == [len(one) for one in self.all]
        kept = cache.lengths - cache.dropped
        assert held.key.shape[-2] == held.value.shape[-2] == kept.max(initial=0)
        lengths = kept if held.key_lengths is None else np.asarray(held.key_lengths)
        assert lengths.tolist() == kept.tolist()
        for b, one in enumerate(self.all):
            for buffer, at in ((held.key, 0), (held.value, 1)):
                for j, token in enumerate(one[cache.dropped[b] :]):
                    np.testing.assert_array_equal(np.asarray(buffer)[b, :, j], token[at])
                assert not np.asarray(buffer)[b, :, kept[b] :].any(), "beyond its length is 0"


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    capacity=st.sampled_from([None, 6, 9, 40]),
    left=st.sampled_from([None, 0, 1, 3]),
    library=st.sampled_from(["numpy", "torch"]),
)
def test_any_history_is_that_of_lists(seed, capacity, left, library):
    rng = np.random.default_rng(seed)
    give = torch.from_numpy if library == "torch" else np.asarray
    cache, lists = KVCache(capacity=capacity, window=None if left is None else (left, 0)), Lists(3)
    refused = set()
    for step in range(12):
        batch = len(lists.all)
        kind = rng.choice(["append", "append", "append", "rollback", "reorder", "evict"])
        try:
            if kind == "append" or not step:
                t = int(rng.integers(0, 4))
                counts = rng.integers(0, t + 1, size=batch) if rng.random() < 0.5 else np.full(batch, t)
                key, value = tokens(rng, (batch,), t)
                held = cache.append(give(key), give(value), counts.tolist())
                lists.append(key, value, counts)
                moved = cache.dropped  # positions are counted from the first key that is held
                assert (
                    np.broadcast_to(np.asarray(held.query_offset), (batch,)).tolist()
                    == (cache.lengths - moved - counts).tolist()
                )
            elif kind == "rollback":
                wanted = np.maximum(cache.lengths - rng.integers(0, 4, size=batch), 0)
                cache.rollback(wanted)
                lists.all = [one[:size] for one, size in zip(lists.all, wanted, strict=True)]
            elif kind == "reorder":
                order = rng.integers(0, batch, size=int(rng.integers(1, 5)))
                cache.reorder(order.tolist())
                lists.all = [list(lists.all[b]) for b in order]
            else:
                cache.evict()
        except Violation as error:
            refused.add(error.clause)
        lists.check(cache)
        if left is not None:
            kept = cache.lengths - cache.dropped
            assert (kept >= np.minimum(cache.lengths, left)).all(), "the last `left` tokens are never dropped"
    assert refused <= {"MHA-CACHE-5", "MHA-CACHE-7"}  # full, or too far back


@pytest.mark.parametrize("settings_of_cache", [{}, {"capacity": 20}, {"window": (3, 0)}, {"window": (3, 0), "capacity": 7}])
@pytest.mark.parametrize("chunks", [(12,), (1,) * 12, (4, 1, 1, 3, 2, 1), (3, 4, 4, 1)])
def test_chunks_give_the_bits_of_one_call(settings_of_cache, chunks):
    """On the reference, which declares class bit-exact (MHA-CACHE-2)."""
    if "capacity" in settings_of_cache and max(chunks) > settings_of_cache["capacity"] - 3:
        chunks = (4, 4, 4)
    rng = np.random.default_rng(0)
    query, (key, value) = rng.normal(size=(2, 4, 12, 3)), tokens(rng, (2,), 12)
    options = {"is_causal": True, "window": settings_of_cache.get("window"), "sink_logits": rng.normal(size=4)}
    cache, rows, at = KVCache(**settings_of_cache), [], 0
    for t in chunks:
        now = slice(at, at + t)
        held = cache.append(key[:, :, now], value[:, :, now])
        rows.append(
            attention(
                query[:, :, now], held.key, held.value, query_offset=held.query_offset, key_lengths=held.key_lengths, **options
            )
        )
        at += t
    whole = attention(query, key, value, **options)
    assert np.concatenate(rows, axis=-2).tobytes() == whole.tobytes()


def test_a_window_moves_each_token_about_once():
    """A cache of its own size that grows settles at twice the window, and a step costs no more as the sequence grows."""
    rng = np.random.default_rng(1)
    cache = KVCache(window=(7, 0))
    for _ in range(200):
        cache.append(*tokens(rng, (1,), 1))
    assert cache.capacity <= 4 * 8
    assert int(cache.lengths[0]) == 200


def test_what_is_refused_changes_nothing():
    rng = np.random.default_rng(2)
    cache = KVCache(capacity=5)
    key, value = tokens(rng, (2,), 3)
    cache.append(key, value, counts=[3, 2])
    wrong = [
        ("MHA-CACHE-5", (key, value), {}),
        ("MHA-CACHE-6", (key[:, :1], value[:, :1]), {}),
        ("MHA-CACHE-6", (key, value[..., :1]), {}),
        ("MHA-CACHE-6", (key[:1], value[:1]), {}),
        ("MHA-CACHE-6", (key[0, 0], value[0, 0]), {}),
        ("MHA-VAL-2", (key.astype("float32"), value.astype("float32")), {}),
        ("MHA-VAL-1", (torch.from_numpy(key), torch.from_numpy(value)), {}),
        ("MHA-CACHE-4", (key, value), {"counts": [1, 4]}),
        ("MHA-CACHE-4", (key, value), {"counts": [1]}),
        ("MHA-CACHE-4", (key, value), {"counts": [1.0, 1.0]}),
        ("MHA-CACHE-4", (key, value), {"counts": True}),
        ("MHA-CACHE-10", (key, value), {"counts": torch.tensor([1, 1])}),
    ]
    for clause, arrays, more in wrong:
        with pytest.raises(Violation) as caught:
            cache.append(*arrays, **more)
        assert caught.value.clause == clause, caught.value
        held = cache.read()
        assert cache.lengths.tolist() == [3, 2]
        np.testing.assert_array_equal(held.key[0], key[0])
        np.testing.assert_array_equal(held.value[1, :, :2], value[1, :, :2])
    with pytest.raises(Violation, match="MHA-CACHE-3"):
        KVCache().read()


def test_nothing_is_read_from_a_device():
    """Tensors without data: whoever looked into one would fail."""
    cache = KVCache(capacity=6, window=(2, 0))
    key, value = (torch.zeros((2, 1, 3, d), device="meta") for d in (4, 5))
    cache.append(key, value, counts=[3, 1])
    held = cache.append(key, value)
    assert held.key.device.type == held.key_lengths.device.type == "meta"
    cache.rollback([5, 4])
    cache.reorder([1, 1, 0])
    cache.evict()
    assert cache.lengths.tolist() == [4, 4, 5]
    assert tuple(cache.read().value.shape) == (3, 1, 2, 5)


def test_tokens_are_copied_and_gradients_are_refused():
    key, value = torch.ones((1, 1, 2, 2)), torch.ones((1, 1, 2, 2))
    cache = KVCache()
    cache.append(key, value)
    key.zero_()
    assert cache.read().key.all()
    with pytest.raises(Violation, match=r"MHA-CACHE-11.*detach"):
        KVCache().append(key.requires_grad_(), value)
    with torch.no_grad():
        KVCache().append(key * 1, value)


def test_a_library_that_cannot_be_written_is_refused():
    numpy_of_jax = pytest.importorskip(
        "jax.numpy", reason="JAX is not installed: its arrays are the ones that cannot be written"
    )
    x = numpy_of_jax.ones((1, 1, 2, 2))
    with pytest.raises(Violation, match=r"MHA-CACHE-11: given jax arrays"):
        KVCache().append(x, x)


class Frozen(np.ndarray):
    """Arrays as a library has them that allows no writing."""

    def __setitem__(self, at, value):
        raise TypeError("immutable")


def test_the_refusal_of_arrays_that_cannot_be_written_can_fail(monkeypatch):
    monkeypatch.setattr("mha_core.cache.array_api_compat.array_namespace", lambda *x: FrozenNamespace)
    x = np.ones((1, 1, 2, 2))
    with pytest.raises(Violation, match="MHA-CACHE-11"):
        KVCache().append(x, x)


class FrozenNamespace:
    @staticmethod
    def zeros(shape, dtype, device):
        return np.zeros(shape, dtype).view(Frozen)


@pytest.mark.parametrize("batch", [(), (0,), (2, 3)])
def test_any_number_of_batch_axes(batch):
    rng = np.random.default_rng(3)
    cache = KVCache()
    first, second = tokens(rng, batch, 2), tokens(rng, batch, 1)
    counts = rng.integers(0, 3, size=batch)
    cache.append(*first, counts=counts)
    cache.append(*second)
    assert cache.lengths.tolist() == (counts + 1).tolist()
    held = cache.read()
    for at in np.ndindex(*batch):
        n = int(counts[at])
        np.testing.assert_array_equal(held.key[(*at, slice(None), slice(n + 1))], np.concatenate(
            [first[0][(*at, slice(None), slice(n))], second[0][at]], axis=-2))  # fmt: skip
    if len(batch) != 1:
        with pytest.raises(Violation, match="MHA-CACHE-8"):
            cache.reorder([0])


@pytest.mark.parametrize("name", ["reference", "numpy", "torch"])
def test_the_layer_in_two_halves_is_the_layer(name):
    api = load(name)
    rng = np.random.default_rng(4)

    def give(*shape):
        return api.backend.from_host(rng.normal(size=shape), "float64")

    layer = Projections(
        give(4, 6, 3), give(2, 5, 3), give(2, 7, 2), give(4, 2, 8), give(4, 3), give(2, 3), give(2, 2), give(8)
    )  # fmt: skip
    x, key, value = give(2, 3, 6), give(2, 5, 5), give(2, 5, 7)
    held = api.project_keys_values(key, value, layer)
    asked = {"return_weights": True, "return_lse": True}
    whole = api.multi_head_attention(x, key, value, layer, **asked)
    halves = api.multi_head_attention_over(x, *held, layer, **asked)
    for a, b in zip(whole, halves, strict=True):
        assert api.backend.to_host(a).tobytes() == api.backend.to_host(b).tobytes()
    assert tuple(api.multi_head_attention_over(x, *held, layer).shape) == (2, 3, 8)
    for wrong in ((held.key[..., :2], held.value), (held.key, held.key), (key, value)):
        with pytest.raises(Violation, match="MHA-CACHE-12"):
            api.multi_head_attention_over(x, *wrong, layer)
    with pytest.raises(Violation, match="MHA-PROJ-2"):
        api.project_keys_values(value, key, layer)
