"""What is expected of a call, and with how much room."""

import numpy as np
import pytest

from mha_conformance.cases.case import Request
from mha_conformance.judge.truth import truth
from mha_spec.numerics import error_ratio


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
@pytest.mark.parametrize("which", ["query", "key", "value"])
def test_a_row_that_sees_an_infinity_may_hold_anything_and_the_others_may_not(which, infinite):
    query, key, value = (np.array([[[1.0], [2.0]]]) for _ in range(3))
    {"query": query, "key": key, "value": value}[which][0, 0, 0] = infinite
    mask = np.array([[True, True], [False, True]])  # the second row sees key 1 alone
    found = truth(Request((query, key, value), "float64", arrays={"mask": mask}), "P64")
    for anything in (np.nan, np.inf, -np.inf, 3.0):
        got = np.array([[[anything], [2.0]]])
        assert (error_ratio(got, found.expected["output"], found.bounds["output"]) <= 1).all()
        assert not (error_ratio(got[:, ::-1], found.expected["output"], found.bounds["output"]) <= 1).all()


def test_a_bound_that_is_infinite_without_an_infinity_bars_nan():
    huge = np.full((1, 1, 1), 1e300)
    found = truth(Request((huge, huge, huge), "float64"), "P64")
    assert error_ratio(np.full((1, 1, 1), np.nan), found.expected["output"], found.bounds["output"]) > 1
