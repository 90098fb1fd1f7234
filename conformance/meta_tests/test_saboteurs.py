"""The kill table: every saboteur is caught at level core, and its clause is blamed first."""

from importlib import import_module

import pytest
from honest import Honest, failures, judged
from honest_gradients import HonestGradients, ShiftedScores
from kill_table import row
from saboteurs.kinds import REGISTER

from mha_spec.clauses import load

for room in (
    "scores", "pairs", "heads", "results", "conduct", "door", "precision", "remembered", "wholesale", "gradients", "decoding", "dropout",
    "over_tiles", "crossed", "narrow",
):  # fmt: skip
    import_module(f"saboteurs.{room}")

ELSEWHERE = {
    "MHA-ATTN-14": "a law that follows from MHA-ATTN-5 and MHA-ATTN-6: whatever breaks it breaks one of them",
    "MHA-BIAS-1": "alibi_slopes is a function of core, and no backend's; mha_core/tests/test_alibi.py",
    "MHA-VAL-21": "it says what is not refused; whoever reads such values wrongly breaks MHA-MASK-9, 12 or 13",
    "MHA-EXEC-9": "it is the door that refuses what is not claimed; mha_core/tests/test_registry.py holds it to that",
    "MHA-EXEC-10": "it speaks of load, not of a backend; mha_core/tests/test_registry.py",
    "MHA-MASK-23": "window_tokens is a function of core, and no backend's; mha_core/tests/test_refusals.py",
    "MHA-PROJ-6": "a bijection of Projections, which is core's; mha_core/tests/test_projections.py",
    "MHA-PROJ-10": "head_size is a function of core, and no backend's; mha_core/tests/test_refusals.py",
    "MHA-PROJ-19": "converters of core; mha_core/tests/test_weights.py",
    "MHA-COST-1": "mha_spec.cost counts, and no backend does; spec/tests/test_cost.py",
    "MHA-COST-2": "mha_spec.cost names the conventions; spec/tests/test_cost.py",
    "MHA-COST-3": "mha_spec.cost counts; spec/tests/test_cost.py",
    "MHA-COST-7": "its calls are of level full; conformance/tests/test_memory_claim.py has one that makes the matrix",
    "MHA-NUM-4": "a formula of mha_spec.numerics; spec/tests/test_numerics.py",
    "MHA-NUM-5": "a false profile breaks the bounds of the other clauses of NUM; conformance/tests/test_conform.py declares one",
    "MHA-NUM-12": "the sum of MHA-EXEC-1, MHA-MASK-15, MHA-MASK-19 and MHA-AUX-8: whatever breaks it breaks one of them",
    "MHA-CONF-12": "it binds reports and citations; conformance/tests/test_report.py",
    "MHA-GRAD-21": "it has no cases; backends/tests/test_tangents.py holds it to the gradients",
    "MHA-CACHE-10": "a refusal of the cache; mha_core/tests/test_cache.py gives it tensors that hold nothing to read",
    "MHA-CACHE-11": "what the memory of a cache holds; mha_core/tests/test_cache.py",
    "MHA-CACHE-12": "the layer in two halves is core's; mha_core/tests/test_cache.py holds it to the bits of the whole",
    "MHA-STAT-5": "memory is no answer; backends/tests/test_sequences.py measures it",
}
"""Clauses that no saboteur of a backend can break, and why."""


@pytest.mark.parametrize("subject", [Honest, HonestGradients, ShiftedScores])
def test_the_honest_attention_is_accused_of_nothing(subject):
    assert not failures(judged(subject()))


@pytest.mark.parametrize("saboteur", REGISTER, ids=lambda s: f"{s.clause}-{s.name}")
def test_the_right_clause_is_blamed_first(saboteur, record_property):
    found = row(saboteur)
    record_property("kill", tuple(found))
    assert found.blamed, f"{saboteur.name} was not caught ({saboteur.after})"
    assert found.right, found


@pytest.mark.parametrize("area", sorted({clause.area for clause in load().clauses}))
def test_every_must_has_a_saboteur(area):
    broken = {saboteur.clause for saboteur in REGISTER} | ELSEWHERE.keys()
    missing = [
        clause.id for clause in load().clauses if clause.area == area and clause.level == "MUST" and clause.id not in broken
    ]
    assert not missing


def test_the_exceptions_are_musts_that_nothing_breaks():
    levels = {clause.id: clause.level for clause in load().clauses}
    assert {levels[clause] for clause in ELSEWHERE} == {"MUST"}
    assert not ELSEWHERE.keys() & {saboteur.clause for saboteur in REGISTER}
