"""Linear memory (MHA-COST-7): unclaimed it is not judged, and claimed it is measured."""

from pathlib import Path

import numpy as np
import pytest

from mha_conformance.bench.memory import rise
from mha_conformance.cases import catalogue
from mha_conformance.cases.linear import SHARE, granted
from mha_conformance.run.conform import CannotRun, Selection, conform
from mha_conformance.run.declaration import parse
from mha_conformance.run.held import Unmeasured, measured
from mha_conformance.run.implementation import Target

PLAIN = "MHA-COST-7/plain, 8192 by 16384/float32"
MEASURABLE = rise(lambda: None)[1] is not None


@pytest.fixture(autouse=True)
def _strangers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")


@pytest.fixture
def claimed(tmp_path):
    file = tmp_path / "claims.toml"
    file.write_text('memory = "linear"\n')
    return str(file)


def verdict(name, claims=None, case=PLAIN):
    [found] = conform(Target(name, claims=claims), Selection(level="full", cases=(case,))).verdicts
    return found


def test_what_is_granted_is_a_quarter_of_the_scores_and_more_than_the_operands_take():
    for case in catalogue():
        if case.clause == "MHA-COST-7":
            [request] = case.make()
            query, key, value = request.operands
            assert SHARE * granted(request) == 4 * query.shape[-2] * key.shape[-2] == 2**29
            assert 3 * 4 * (query.size + key.size + value.size) < granted(request)
            assert case.level == "full"


def test_unclaimed_is_not_judged():
    with pytest.raises(CannotRun, match="linear memory is not claimed"):
        verdict("strangers:makes_the_matrix")


@pytest.mark.skipif(not MEASURABLE, reason="this system does not tell how much memory a process holds")
def test_who_claims_it_and_makes_the_matrix_fails(claimed):
    found = verdict("strangers:makes_the_matrix", claimed)
    assert found.status == "FAIL"
    assert found.reason.startswith("it held 51")
    assert found.reason.endswith("MiB beside inputs and output, where 128 MiB are granted")
    assert 3.9 < found.ratio < 4.2


@pytest.mark.skipif(not MEASURABLE, reason="this system does not tell how much memory a process holds")
def test_who_works_in_blocks_holds_it(claimed):
    found = verdict("strangers:in_blocks", claimed)
    assert found.status == "PASS", found
    assert found.ratio < 0.2
    ours = verdict("numpy")
    assert ours.status == "PASS", ours
    assert ours.ratio < 0.2


def test_the_sentence_names_it_only_where_it_was_measured(claimed):
    report = conform(Target("strangers:attention", claims=claimed), Selection(level="smoke"))
    assert report.conforms
    assert report.claims.memory == "linear"
    assert "memory" not in report.sentence


def test_a_device_is_not_measured():
    class There:
        device = "cuda:0"

    with pytest.raises(Unmeasured, match="on cuda:0 is not measured"):
        measured(lambda: None, [np.zeros(3), There()])


def test_another_class_is_refused_in_words():
    with pytest.raises(ValueError, match="memory is linear; given 'quadratic'"):
        parse({"memory": "quadratic"}, "claims.toml")
