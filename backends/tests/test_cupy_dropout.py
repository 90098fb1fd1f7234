"""Dropout on CuPy, fused and unfused: the words of the specification bit for bit, the bounds with its factors, its NaN, its parts."""

import numpy as np
import pytest
from cupy_gradients import STRICTEST, bounds_of, factors_of, visible, with_grad, worst
from cupy_machine import TYPES, fake, wide
from random_calls import drop
from test_gradients_of_backends import drawn

from mha_backends import reference
from mha_core import Dropout
from mha_spec.numerics import PROFILES, attention_bound, error_ratio

KERNELS = pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
DROPS = {
    "seed": Dropout(0.4, 2**64 - 3),
    "starts": Dropout(0.7, 5, batch_start=2**32 - 2, head_start=7, query_start=2**31, key_start=2**34 - 100),
    "keep": Dropout(0.25, keep=np.arange(70 * 75).reshape(70, 75) % 4 != 0),
    "keep of heads": Dropout(0.0, keep=np.arange(4 * 75).reshape(1, 4, 1, 75) % 3 != 0),
    "rate 1": Dropout(1.0, 3),
    "rate 1 and keep": Dropout(1.0, keep=np.ones((1, 75), bool)),
    "nearly none": Dropout(2.0**-40, 3),
    "nearly all": Dropout(1 - 2.0**-10, 3),
}


def given(options):
    """As the CuPy backend takes them."""
    made = {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    if (one := options.get("dropout")) is not None and one.keep is not None:
        made["dropout"] = one._replace(keep=fake(one.keep))
    return made


def test_the_words_are_those_of_the_specification(machine):
    """Read from the output: every key has a channel of its own. float16 is fused, float32 is not."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        batch, group, h_kv = (
            tuple(rng.integers(1, 4, rng.integers(0, 3)).tolist()),
            int(rng.integers(1, 4)),
            int(rng.integers(1, 3)),
        )
        n, m = int(rng.integers(1, 9)), int(rng.integers(1, 16))
        q, k = np.zeros((*batch, group * h_kv, n, 1)), np.zeros((*batch, h_kv, m, 1))
        v, dropout = np.broadcast_to(np.eye(m), (*batch, h_kv, m, m)), drop(rng, q, k)
        scaled = factors_of(q, k, v, dropout)
        for kind in ("float16", "float32"):
            got = machine.api().attention(*(fake(x, TYPES[kind]) for x in (q, k, v)), **given({"dropout": dropout}))
            wanted = np.ones(got.shape) if scaled is None else scaled
            np.testing.assert_array_equal(np.array(got) != 0, wanted != 0, err_msg=f"seed {seed}: {dropout}")


@KERNELS
@pytest.mark.parametrize("dropout", DROPS.values(), ids=DROPS.keys())
def test_results_and_gradients_are_within_their_bounds(machine, rng, kind, dropout):
    """With a mask, so that what is hidden, dropped and both meet; the lse is that without dropout (MHA-DROP-7)."""
    arrays = [fake(x, TYPES[kind]) for x in with_grad(rng, n=70, m=75)]
    q, k, v = arrays[:3]
    options = {"mask": rng.random((70, 75)) < 0.7, "dropout": dropout}
    scaled = factors_of(q, k, v, dropout)
    seen = visible(q, k, v, {"mask": options["mask"]})
    bounds = attention_bound(
        wide(q), wide(k), wide(v), PROFILES[STRICTEST[kind]], scale=q.shape[-1] ** -0.5, visible=seen, factors=scaled
    )
    machine.launches.clear()
    got = machine.api().attention(q, k, v, **given(options), return_lse=True)
    assert ("fused_forward" in {name for name, *_ in machine.launches}) == (kind != "float32")
    assert error_ratio(wide(got.output), bounds.truth.output, bounds.output).max() <= 1
    assert error_ratio(wide(got.lse), bounds.truth.lse, bounds.lse).max() <= 1
    found = machine.api().attention_vjp(*arrays, **given(options))
    assert worst(found, bounds_of(kind, *arrays, {"mask": options["mask"]}, scaled)) <= 1


@pytest.mark.parametrize("nan", [0.0, 0.06])
def test_any_call_is_that_of_the_reference(machine, monkeypatch, nan):
    monkeypatch.setattr("mha_backends.cupy.unfused.CHUNK", 40)
    for seed in range(40):
        arrays, options = drawn(seed, nan=nan)
        options["dropout"] = drop(np.random.default_rng(seed), *arrays[:2])
        asked = {name: x for name, x in options.items() if not name.startswith("grad_")}
        wanted = reference.attention(*arrays[:3], **asked, return_lse=True, return_weights=True)
        got = machine.api().attention(*map(fake, arrays[:3]), **given(asked), return_lse=True, return_weights=True)
        vjp, wanted_vjp = (
            machine.api().attention_vjp(*map(fake, arrays), **given(options)),
            reference.attention_vjp(*arrays, **options),
        )
        for a, b in zip((*got, *vjp), (*wanted, *wanted_vjp), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10, err_msg=f"seed {seed}")


@KERNELS
def test_nan_comes_through_a_dropped_weight(machine, rng, kind):
    """MHA-DROP-8, MHA-GRAD-16: whether a pair is kept has no say in it."""
    q, k, v, g = (x.astype(TYPES[kind]) for x in with_grad(rng, batch=(2,), n=5, m=70, d_v=20))
    mask = rng.random((5, 70)) < 0.5
    q[0, 1, 2, 0] = k[0, 0, 3, 1] = v[1, 0, 4, 7] = g[1, 3, 1, 2] = np.nan
    for dropout in (Dropout(0.5, 1), Dropout(1.0, 1)):
        options = {"mask": mask, "dropout": dropout}
        scaled = factors_of(q, k, v, dropout)
        found = machine.api().attention_vjp(*map(fake, (q, k, v, g)), **given(options))
        assert worst(found, bounds_of(kind, q, k, v, g, {"mask": mask}, scaled)) <= 1
        output = machine.api().attention(*map(fake, (q, k, v)), **given(options))
        plain = machine.api().attention(*map(fake, (q, k, v)), mask=fake(mask))
        np.testing.assert_array_equal(np.isnan(wide(output)), np.isnan(wide(plain)))


@KERNELS
def test_rate_0_changes_no_bit_and_parts_are_the_whole(machine, rng, kind):
    """MHA-DROP-4, MHA-DROP-6: batch items and heads dealt out, with their starts."""
    q, k, v, g = (fake(x, TYPES[kind]) for x in with_grad(rng, batch=(3,), n=9, m=20))
    api = machine.api()
    assert api.attention(q, k, v, dropout=Dropout(0.0, 5)).tobytes() == api.attention(q, k, v).tobytes()
    dropout = Dropout(0.5, 77, batch_start=4)
    whole, gradients = api.attention(q, k, v, dropout=dropout), api.attention_vjp(q, k, v, g, dropout=dropout)
    part = dropout._replace(batch_start=5, head_start=2)
    at, kv = np.s_[1:2, 2:4], np.s_[1:2, 1:2]
    assert api.attention(q[at], k[kv], v[kv], dropout=part).tobytes() == whole[at].tobytes()
    found = api.attention_vjp(q[at], k[kv], v[kv], g[at], dropout=part)
    assert found.query.tobytes() == gradients.query[at].tobytes()
    assert found.key.tobytes() == gradients.key[kv].tobytes() and found.value.tobytes() == gradients.value[kv].tobytes()


@KERNELS
def test_items_are_counted_over_all_batch_axes_where_the_call_is_cut(machine, rng, kind):
    """A mask that is broadcast over the second batch axis alone: the parts know which items they are (MHA-DROP-5)."""
    arrays = [fake(x, TYPES[kind]) for x in with_grad(rng, batch=(3, 2))]
    mask, dropout = np.ones((3, 1, 1, 5, 7), bool), Dropout(0.5, 9)
    together = machine.api().attention_vjp(*arrays, dropout=dropout, mask=fake(np.ones((5, 7), bool)))
    cut = machine.api().attention_vjp(*arrays, dropout=dropout, mask=fake(mask))
    assert [x.tobytes() for x in together[:3]] == [x.tobytes() for x in cut[:3]]
    keep = fake(rng.random((3, 1, 4, 5, 7)) < 0.5)
    got = machine.api().attention(*arrays[:3], dropout=Dropout(0.5, keep=keep))
    wanted = machine.api().attention(
        *arrays[:3], dropout=Dropout(0.5, keep=fake(np.broadcast_to(keep, (3, 2, 4, 5, 7)).copy()))
    )
    assert got.tobytes() == wanted.tobytes()
