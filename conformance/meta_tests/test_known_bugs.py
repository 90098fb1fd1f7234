"""Every known bug ends in exactly one place: a saboteur, the zoo, a clause of its own, a later feature, or outside with a reason."""

import re
from collections import Counter

import pytest
from kill_table import SABOTEURS
from known_bugs import DISPOSITIONS, known_bugs
from zoo.kernels import ZOO

from mha_spec.clauses import load

BUGS = known_bugs()
CLAIMED = Counter(bug for saboteur in SABOTEURS for bug in saboteur.bugs)


def test_the_list_is_whole():
    """121 threads; ids that are missing were never in it."""
    assert len(BUGS) == 121
    assert [bug.id for bug in BUGS] == sorted({bug.id for bug in BUGS})
    assert not CLAIMED.keys() - {bug.id for bug in BUGS}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_it_ends_in_one_place(bug):
    assert re.fullmatch(r"B\d{3}", bug.id)
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", bug.thread)
    assert bug.disposition in DISPOSITIONS and bug.words
    assert CLAIMED[bug.id] == (bug.disposition == "saboteur")
    name, _, reason = bug.words.partition(": ")
    if bug.disposition == "saboteur":
        (saboteur,) = (saboteur for saboteur in SABOTEURS if bug.id in saboteur.bugs)
        assert saboteur.name == bug.words
        assert bug.thread in saboteur.after
    elif bug.disposition == "control":
        (kernel,) = (kernel for kernel in ZOO if kernel.__name__ == name)
        assert f"{bug.id}, {bug.thread}" in kernel.__doc__
    elif bug.disposition == "clause":
        (clause,) = (clause for clause in load().clauses if clause.id == name)
        assert bug.thread in clause.why
    else:
        assert reason
