"""What fails after other calls and holds alone is blamed on MHA-EXEC-5 (MHA-CONF-16)."""

from mha_conformance.judge.alone import alone
from mha_conformance.judge.verdict import Verdict


def failing(clause, size, status="FAIL"):
    return Verdict(f"{clause}/a case/float32", clause, "semantics", "core", "float32", status, "outside", size=size)


def judged(status):
    return lambda case: Verdict(case, case.split("/")[0], "semantics", "core", "float32", status)


def test_what_fails_alone_too_keeps_its_blame():
    blame = [failing("MHA-ATTN-1", 4), failing("MHA-MASK-2", 9)]
    assert alone(blame, judged("FAIL")) == blame


def test_what_holds_alone_is_history():
    (found,) = alone([failing("MHA-ATTN-1", 4), failing("MHA-MASK-2", 9)], judged("PASS"))
    assert (found.clause, found.case, found.size) == ("MHA-EXEC-5", "MHA-ATTN-1/a case/float32", 4)
    assert found.reason == "outside after other calls; alone, the case holds"


def test_each_case_is_judged_for_itself():
    def again(case):
        return judged("PASS" if "MASK-2" in case else "FAIL")(case)

    found = alone([failing("MHA-ATTN-1", 4), failing("MHA-MASK-2", 9)], again)
    assert [verdict.clause for verdict in found] == ["MHA-ATTN-1", "MHA-EXEC-5"]


def test_a_crash_and_a_case_of_history_are_not_judged_again():
    def again(case):
        raise AssertionError(case)

    blame = [failing("MHA-ATTN-8", 4, "CRASH"), failing("MHA-EXEC-5", 9)]
    assert alone(blame, again) == blame
