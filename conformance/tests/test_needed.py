"""What a failure does without is not the first to blame (MHA-CONF-18), and a result stays what it is (MHA-EXEC-3)."""

from pathlib import Path

import numpy as np
import pytest

from mha_conformance.cases import Request
from mha_conformance.judge.needed import EMPTY, about, needed
from mha_conformance.judge.verdict import Verdict
from mha_conformance.run.conform import Selection, conform
from mha_conformance.run.implementation import Target

PLAIN = Request(tuple(np.ones((1, 1, 2)) for _ in range(3)), "float32")
MASKED = Request(PLAIN.operands, "float32", arrays={"mask": np.array([[True]])})
BLIND = Request(PLAIN.operands, "float32", arrays={"mask": np.array([[False]])})


def failing(clause):
    return Verdict(f"{clause}/a case/float32", clause, "semantics", "core", "float32", "FAIL", "outside")


def test_a_clause_is_about_what_all_of_its_cases_have():
    assert about("MHA-MASK-12") == {"lengths"}
    assert about("MHA-MASK-17") == {"sink", EMPTY}
    assert about("MHA-ATTN-6") == frozenset()


def test_who_lost_what_it_is_about_comes_last_and_says_so():
    blame = [failing("MHA-MASK-12"), failing("MHA-MASK-3"), failing("MHA-NUM-6")]
    smallest = {
        "MHA-MASK-12/a case/float32": (PLAIN,),
        "MHA-MASK-3/a case/float32": (MASKED,),
        "MHA-NUM-6/a case/float32": (PLAIN,),
    }
    found = needed(blame, smallest)
    assert [verdict.clause for verdict in found] == ["MHA-MASK-3", "MHA-NUM-6", "MHA-MASK-12"]
    assert [verdict.reason for verdict in found] == ["outside", "outside", "outside; it fails without any lengths too"]


@pytest.mark.parametrize("request_of", [PLAIN, BLIND], ids=["sees", "sees nothing"])
def test_a_clause_of_empty_rows_needs_one(request_of):
    blame = [failing("MHA-MASK-15"), failing("MHA-NUM-6")]
    found = needed(blame, {"MHA-MASK-15/a case/float32": (request_of,)})
    assert found[0].clause == ("MHA-NUM-6" if request_of is PLAIN else "MHA-MASK-15")


def test_what_has_no_smallest_call_stays_where_it_is():
    blame = [failing("MHA-MASK-12"), failing("MHA-NUM-6")]
    assert needed(blame, {}) == blame


def test_a_result_that_a_later_call_changes_is_blamed_and_not_taken_for_a_wrong_number(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    found = conform(Target("strangers:one_buffer"), Selection(clauses=("MHA-EXEC-5", "MHA-ATTN-6")))
    assert {v.clause for v in found.blame} == {"MHA-EXEC-3"}
    assert "a later call of the case changed what had come back: output" in found.blame[0].reason
