"""ALiBi slopes: exact values, and the two faults that were seen in them."""

import numpy as np
import pytest

from mha_core import Violation, alibi_slopes


@pytest.mark.parametrize(
    ("h", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes(h, exponents):
    assert alibi_slopes(h) == tuple(2.0**-e for e in exponents)


@pytest.mark.parametrize("h", range(1, 130))
def test_every_head_has_a_slope_of_its_own(h):
    slopes = alibi_slopes(h)
    assert len(set(slopes)) == len(slopes) == h
    assert all(0 < slope < 1 for slope in slopes)


def test_a_numpy_integer_is_an_integer():
    assert alibi_slopes(np.int64(6)) == alibi_slopes(6)


@pytest.mark.parametrize("h", [0, -1, True, 2.0, "8", None])
def test_what_is_no_number_of_heads_is_refused(h):
    with pytest.raises(ValueError, match=r"MHA-BIAS-1: given alibi_slopes\(") as refusal:
        alibi_slopes(h)
    assert isinstance(refusal.value, Violation)


def one_series(h):
    """B183, ml-explore/mlx#343: the formula of powers of two, whatever the number of heads."""
    return tuple(2.0 ** (-8 * (i + 1) / h) for i in range(h))


def second_series_shifted(h):
    """B184, ggml-org/llama.cpp#20031: the second series is written over the first one, and its own place stays empty."""
    p = 1 << (h.bit_length() - 1)
    slopes = [*alibi_slopes(h)[:p], *[0.0] * (h - p)]
    for at in range(p, h):
        slopes[2 * (at - p)] = alibi_slopes(h)[at]
    return tuple(slopes)


@pytest.mark.parametrize("faulty", [one_series, second_series_shifted])
def test_the_faults_that_were_seen_show_only_between_powers_of_two(faulty):
    for h in (1, 2, 4, 8, 16, 64):
        assert faulty(h) == alibi_slopes(h)
    for h in (6, 12, 48):
        assert faulty(h) != alibi_slopes(h)
