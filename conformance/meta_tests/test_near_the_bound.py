"""The quick half of the kill table and of the zoo: each saboteur on the one case that caught it, honest kernels on small cases.

The whole of both takes minutes (``test_saboteurs.py``, ``test_zoo.py``); this takes seconds, and so can be asked for every mutant.
"""

import pytest
from honest import Honest, failures, implementation, judged
from honest_gradients import HonestGradients
from kill_table import SABOTEURS
from refresh import read
from zoo.kernels import HalfWeights, TensorFloat, TruncatedOutputs

from mha_conformance.cases import catalogue
from mha_conformance.judge.judge import judge, unclaimed
from mha_conformance.judge.verdict import FAILING
from mha_conformance.run.perform import Asked, perform

CASES = {case.id: case for case in catalogue()}
MAKE = {(saboteur.clause, saboteur.name): saboteur.make for saboteur in SABOTEURS}
HISTORY = {"CopiesPrevious", "FourOfFive"}
"""They are right until other cases have been before; ``test_saboteurs.py`` runs these."""
ROWS = [
    row for row in read("kill-table")["rows"] if row["case"].startswith(f"{row['clause']}/") and row["saboteur"] not in HISTORY
]
"""Without those, too, that are blamed for a history because the case holds alone."""


def judged_on(subject, case_id):
    case, under_test = CASES[case_id], implementation(subject)
    assert not unclaimed(case, subject.claims)
    return judge(case, perform(under_test, Asked.by(case)), subject.claims, rivals=False, explain=False)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['clause']}-{row['saboteur']}")
def test_a_saboteur_falls_on_the_case_that_the_table_names(row):
    assert judged_on(MAKE[row["clause"], row["saboteur"]](), row["case"]).status in FAILING


@pytest.mark.parametrize(
    "kernel", [Honest, HonestGradients, HalfWeights, TensorFloat, TruncatedOutputs], ids=lambda k: k.__name__
)
def test_an_honest_kernel_is_accused_of_nothing_at_level_smoke(kernel):
    assert not failures(judged(kernel(), "smoke"))


NEAR = (
    "MHA-NUM-8/weights over many keys/float16",
    "MHA-NUM-8/weights over many keys/bfloat16",
    "MHA-STAT-7/top weights/bfloat16",
    "MHA-AUX-1/weights in this dtype/float16",
)


@pytest.mark.parametrize("case_id", NEAR)
def test_legal_truncation_comes_near_the_bound_and_stays_inside(case_id):
    assert 0.9 < judged_on(TruncatedOutputs(), case_id).ratio <= 1
