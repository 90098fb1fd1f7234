"""The bound of statistics (MHA-STAT-7) holds for every weights within theirs, in the type of the lse, in any order of summation."""

import mpmath
import numpy as np
import pytest

from mha_spec.numerics import error_ratio
from mha_spec.sequences import statistics_truth


def weights(rng, shape, sharp):
    s = sharp * rng.normal(size=shape)
    see = rng.random(shape) < 0.8
    e = np.where(see, np.exp(s - s.max(axis=-1, keepdims=True)), 0.0)
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1.0, total)


def computed(a, order, dtype):
    """Statistics of perturbed weights, added one after another in ``order`` of their axis."""
    a = a.astype(dtype)
    h, n, m = a.shape[-3:]
    mass = np.zeros((*a.shape[:-2], m), dtype)
    for i in order(n):
        mass = mass + a[..., i, :]
    entropy = np.zeros(a.shape[:-1], dtype)
    for j in order(m):
        x = a[..., j]
        entropy = entropy + np.where(x == 0, 0, -x * np.log(np.where(x == 0, 1, x))).astype(dtype)
    mean = np.zeros((*a.shape[:-3], n, m), dtype)
    for i in order(h):
        mean = mean + a[..., i, :, :]
    return mass, entropy, -np.sort(-a, axis=-1), mean / dtype(h)


@pytest.mark.parametrize(("profile", "dtype"), [("P32", np.float32), ("PB16", np.float32), ("P64", np.float64)])
@pytest.mark.parametrize("sharp", [0.1, 1.0, 30.0])
def test_no_legal_computation_exceeds_it(profile, dtype, sharp):
    rng = np.random.default_rng(int(sharp * 10))
    orders = (range, lambda n: range(n - 1, -1, -1), lambda n: rng.permutation(n).tolist())
    worst = 0.0
    for size in (0.0, 1e-6, 1e-2, 0.3):
        a = weights(rng, (2, 3, 17, 40), sharp)
        bound = np.where(
            a == 0, 0.0, size * rng.random(a.shape) + 2 * np.finfo(dtype).eps * a + np.finfo(dtype).smallest_subnormal
        )
        truth = statistics_truth(a, bound, profile)
        for order in orders:
            for sign in (-1.0, 1.0, rng.choice([-1.0, 1.0], size=a.shape)):
                room = bound - np.finfo(dtype).eps * (a + bound) - np.finfo(dtype).smallest_subnormal  # rounding takes the rest
                moved = np.maximum(a + sign * np.maximum(room, 0.0), 0.0)
                got = computed(np.where(a == 0, 0.0, moved), order, dtype)
                for x, known in zip(
                    got, (truth.column_mass, truth.row_entropy, truth.top_weights, truth.head_mean), strict=True
                ):
                    worst = max(worst, float(error_ratio(x, known.value, known.bound).max()))
    assert 0.5 < worst <= 1.0


def test_truth_is_that_of_forty_digits():
    a = weights(np.random.default_rng(5), (1, 2, 3, 6), 2.0)
    truth = statistics_truth(a, 0 * a, "P64")
    with mpmath.workdps(40):
        for at in np.ndindex(*a.shape[:-1]):
            entropy = -sum(mpmath.mpf(x) * mpmath.log(mpmath.mpf(x)) for x in a[at] if x)
            assert abs(truth.row_entropy.value[at] - float(entropy)) < 1e-15 * 6


def test_keys_are_exact_where_weights_are_apart_and_free_where_they_are_near():
    a = np.array([[[[0.1, 0.5, 0.30001, 0.3, 0.0, 0.0]]]])
    known = statistics_truth(a, np.full_like(a, 1e-4), "P32").top_keys
    np.testing.assert_array_equal(known.value, [[[[1, 2, 3, 0, -1, -1]]]])
    np.testing.assert_array_equal(known.bound, [[[[0, np.inf, np.inf, 0, 0, 0]]]])


def test_a_nan_is_asked_for_where_it_is_seen():
    a = np.array([[[[np.nan, 0.0], [0.25, 0.75]]]])
    truth = statistics_truth(a, np.where(np.isnan(a), 0.0, 1e-9), "P32")
    np.testing.assert_array_equal(np.isnan(truth.column_mass.value), [[[True, False]]])
    np.testing.assert_array_equal(truth.column_mass.bound[0, 0, 0], 0.0)
    np.testing.assert_array_equal(np.isnan(truth.row_entropy.value), [[[True, False]]])
    np.testing.assert_array_equal(truth.top_keys.value, [[[[0, -1], [1, 0]]]])
