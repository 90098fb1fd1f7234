"""Every family of cases, and every rule, is what catches some saboteur: without it one would be missed, or caught elsewhere.

The kill table records which case catches each saboteur. For families of which it names none, one stands here that no other family
catches at level core.
"""

from dataclasses import replace

import numpy as np
import pytest
from honest import Honest, judged
from refresh import read
from test_near_the_bound import judged_on

from mha_conformance import cases
from mha_conformance.judge.rules import GRADED, RULES
from mha_conformance.judge.verdict import FAILING

FAMILIES = {
    part.__name__.rpartition(".")[2]: part for part in (*cases.BY_CLAUSE, *cases.CROSSED, *cases.NUMBERS, *cases.TRAINING)
}
BELONGS = {case.id: name for name, part in FAMILIES.items() for case in part.cases()}
RULE = {case.id: case.rule for case in cases.catalogue()}
CAUGHT_BY = [row["case"] for row in read("kill-table")["rows"]]


class ThreeOptionsAtOnce(Honest):
    """A path for softcap, sink and lengths together has lost the sink."""

    def attend(self, call):
        self.all_three = call.softcap is not None and call.key_lengths is not None
        return super().attend(call)

    def sink(self, sink_logits, s):
        return super().sink(sink_logits, s) - (np.inf if self.all_three else 0.0)


class LseOfOneKeyHead(Honest):
    """Where one key head serves all, segments are given and the weights are asked for too, the lse is a little too large."""

    def result(self, call, output, a, lse):
        if call.query_segments is not None and call.weights and call.key.shape[-3] == 1 < call.query.shape[-3]:
            lse = lse + 0.125
        return super().result(call, output, a, lse)


class LayerDropsSegments(Honest):
    """The layer passes everything on but segments."""

    def functions(self):
        found = super().functions()
        layer = found["layer"]

        def without(*operands, query_segments=None, key_segments=None, **options):
            return layer(*operands, **options)

        return {**found, "layer": without}


class LastOfManyKeys(Honest):
    """A counter of 11 bits: the last key of more than 2046 is lost."""

    def by_length(self, call):
        found, m = super().by_length(call), call.key.shape[-2]
        rest = np.arange(m) < (m if m < 2047 else m - 1)
        return rest if found is None else found & rest


class IndexOf32Bits(Honest):
    """Elements farther away than 2^31 - 1 are read from the first place of their axis."""

    def attend(self, call):
        return super().attend(replace(call, key=near(call.key), value=near(call.value)))


def near(x):
    """The array with every axis that reaches too far read at its first place."""
    for axis, (size, stride) in enumerate(zip(x.shape, x.strides, strict=True)):
        if size > 1 and abs(stride) * (size - 1) // x.itemsize >= 2**31:
            x = np.repeat(x.take([0], axis=axis), size, axis=axis)
    return x


ALONE = {
    "drawn": (ThreeOptionsAtOnce, None),
    "asked": (LseOfOneKeyHead, None),
    "layered": (LayerDropsSegments, None),
    "large": (LastOfManyKeys, "MHA-AUX-4/lse over 2047 keys/float32"),
    "far_apart": (IndexOf32Bits, "MHA-EXEC-4/two items more than 2^31 elements apart/float32"),
}
"""By family: a saboteur that it alone catches, and the case of level full that does where the family has none at level core."""


ELSEWHERE = {
    "emptiness": "what its saboteurs break, `empty_results` and `hiders` show in smaller cases",
    "broadcasting": "what its saboteurs break, `pairs` and `per_item` show in smaller cases",
    "far_numbers": "what its saboteurs break, `constants` shows in smaller cases",
    "linear": "its cases stand at level full, and the stranger that they catch in conformance/tests/test_memory_claim.py",
}
"""Families that the table does not name, because a smaller case of another one comes first; that each is needed is not shown."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_catches_a_saboteur(family):
    caught = family in {BELONGS[case] for case in CAUGHT_BY}
    assert (caught or family in ALONE) != (family in ELSEWHERE)


@pytest.mark.parametrize("family", ALONE)
def test_a_family_alone_catches_its_saboteur(family):
    make, full = ALONE[family]
    found = {BELONGS[verdict.case] for verdict in judged(make()) if verdict.status in FAILING}
    if full is None:
        assert found == {family}
        return
    assert not found and BELONGS[full] == family
    verdict = judged_on(make(), full)
    if verdict.status == "NOT_RUN":
        pytest.skip(f"this machine cannot pose it: {verdict.reason}")
    assert verdict.status in FAILING


@pytest.mark.parametrize("rule", [*(rule for rule in RULES if rule != "memory"), *GRADED])  # memory is asked at level full
def test_a_rule_catches_a_saboteur(rule):
    assert rule in {RULE[case] for case in CAUGHT_BY}
