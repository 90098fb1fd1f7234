"""Power: no case is passed by an implementation that computes nothing.

For every case at level core that is judged by a bound, zeros in place of any array whose truth is not zero must lie outside the
bound. A bound that admits them decides nothing.
"""

import numpy as np
import pytest

from mha_backends import reference
from mha_conformance.cases import catalogue
from mha_conformance.judge.truth import truths
from mha_spec.numerics import PROFILES, TYPES, error_ratio

BOUNDED = ("bound", "agree", "as first")
CLAIMS = reference.create().claims

NOTHING_TO_TELL: dict[str, str] = {
    "MHA-EXEC-11": "an axis is empty: what is asked is the shape",
    "MHA-MASK-15": "empty rows: zeros are the answer, and garbage or NaN is what fails",
    "MHA-MASK-16": "empty rows, however they came about",
    "MHA-MASK-17": "empty rows with a sink",
    "MHA-GRAD-13": "empty rows send back 0, and what fails is NaN or garbage",
    "MHA-AUX-8": "two empty parts merge into an empty one",
    "MHA-DROP-1": "everything is dropped: what fails is a weight that is kept",
    "MHA-DROP-3": "a rate that drops everything: what fails is a weight that is kept",
    "MHA-DROP-6": "rate 1 drops everything, and what fails is NaN",
    "MHA-GRAD-22": "rate 1 drops everything, and what fails is NaN",
}
"""Clauses of which some cases have a truth of zeros (or of nothing) in every output, and why that is right."""


UNTOLD = {f"MHA-AUX-3/{m} keys of -2^30 with weights and lse/float32": {"output", "weights", "lse"} for m in (7, 131)}
"""Scores of -2^30 are rounded by up to 32 in float32, so any weights are legal there. The lse ought to be told: that its bound is infinite
too where scores may be off by so much is a defect of the bound (MHA-NUM-7), which is still open."""
ZERO = ("b_k gradient",)
"""Arrays whose truth is zero but for roundings: a bias of the keys adds one number to all scores of a row (MHA-AUX-13)."""


def zeros_pass(truth, profile):
    """The names of arrays whose truth is not zero and for which zeros would be accepted."""
    found = []
    for name, expected in truth.expected.items():
        kind = PROFILES[profile].lse if name == "lse" else PROFILES[profile].output
        if not np.size(expected) or not np.nan_to_num(expected).any() or name in ZERO:
            continue
        ratios = error_ratio(np.zeros_like(expected), expected, truth.bounds[name], TYPES[kind].largest)
        if (ratios <= 1).all():
            found.append(name)
    return found


CASES = [case for case in catalogue() if case.rule in BOUNDED and case.wanted_at("core")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_zeros_do_not_pass(case):
    profile = CLAIMS.profiles[case.dtype]
    found = truths(case, profile)
    for truth in found[:1] if case.rule == "as first" else found:  # there the others' bounds do not judge
        assert set(zeros_pass(truth, profile)) <= UNTOLD.get(case.id, set())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_case_has_an_answer_that_is_not_zero(case):
    found = truths(case, CLAIMS.profiles[case.dtype])
    told = any(
        np.nan_to_num(expected).any() or np.isnan(expected).any() for truth in found for expected in truth.expected.values()
    )
    by_lot = "/drawn " in case.id  # a lot may hide every key
    assert told or by_lot or case.clause in NOTHING_TO_TELL
