"""The kill table: every saboteur is caught at level core, and its clause is blamed first."""

from importlib import import_module

import pytest
from honest import Honest, diagnosis, failures, judged
from saboteurs.kinds import REGISTER

from mha_spec.clauses import load

for room in ("scores", "pairs", "heads", "results", "conduct", "wholesale", "decoding"):
    import_module(f"saboteurs.{room}")

# Clauses of these areas that no saboteur of a backend can break, and why.
ELSEWHERE = {
    "MHA-ATTN-14": "a law that follows from MHA-ATTN-5 and MHA-ATTN-6: whatever breaks it breaks one of them",
    "MHA-EXEC-9": "it is the door that refuses; mha_core/tests/test_registry.py holds it to that",
    "MHA-EXEC-10": "it speaks of load, not of a backend; mha_core/tests/test_registry.py",
    "MHA-MASK-23": "window_tokens is a helper of the door; mha_core/tests/test_refusals.py",
    "MHA-PROJ-2": "a refusal of the door; mha_core/tests/test_refusals.py",
    "MHA-PROJ-6": "a bijection of Projections; mha_core/tests",
    "MHA-PROJ-10": "a refusal of constructors; mha_core/tests/test_refusals.py",
    "MHA-AUX-11": "the form of the result is the door's; the examples of the text hold it to that",
    "MHA-AUX-12": "a refusal of the door; mha_core/tests/test_refusals.py",
    "MHA-CACHE-10": "a refusal of the cache; mha_core/tests/test_cache.py gives it tensors that hold nothing to read",
    "MHA-CACHE-11": "what the memory of a cache holds; mha_core/tests/test_cache.py",
    "MHA-CACHE-12": "the layer in two halves is core's; mha_core/tests/test_cache.py holds it to the bits of the whole",
    "MHA-STAT-5": "memory is no answer; backends/tests/test_sequences.py measures it",
}


def test_the_honest_attention_is_accused_of_nothing():
    assert not failures(judged(Honest()))


@pytest.mark.parametrize("saboteur", REGISTER, ids=lambda s: f"{s.clause}-{s.name}")
def test_the_right_clause_is_blamed_first(saboteur):
    blame = diagnosis(saboteur.make())
    assert blame, f"{saboteur.name} was not caught ({saboteur.after})"
    assert blame[0].clause == saboteur.clause, [(v.clause, v.case, v.reason, v.pattern) for v in blame]


@pytest.mark.parametrize("area", ["ATTN", "MASK", "HEAD", "PROJ", "AUX", "EXEC", "CACHE", "VARLEN", "STAT"])
def test_every_must_has_a_saboteur(area):
    broken = {saboteur.clause for saboteur in REGISTER} | ELSEWHERE.keys()
    missing = [
        clause.id for clause in load().clauses if clause.area == area and clause.level == "MUST" and clause.id not in broken
    ]
    assert not missing
