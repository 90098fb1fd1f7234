"""Which mutants count, which of them are drawn, and which tests they face."""

from pathlib import Path

import pytest
from mutation.mutants import MODULES, ROOT, Mutant, sample
from mutation.selection import COMMAND, FILES, stages

BOUNDS = "spec/mha_spec/numerics_steps.py"


def place(text, module=BOUNDS):
    """(line, column) of a text in a module."""
    lines = (ROOT / module).read_text(encoding="utf-8").splitlines()
    return next((at, line.index(text)) for at, line in enumerate(lines, start=1) if text in line)


@pytest.mark.parametrize(
    ("operator", "text", "counts"),
    [
        ("ReplaceBinaryOperator_Mul_Add", "* np.asarray(k, dtype", True),
        ("ReplaceBinaryOperator_Mul_BitOr", "* np.asarray(k, dtype", False),  # no float takes it
        ("ReplaceBinaryOperator_BitAnd_BitOr", "& falls) | lost", True),
        ("ReplaceBinaryOperator_BitAnd_Add", "& falls) | lost", False),
        ("ReplaceBinaryOperator_BitOr_BitAnd", "| None) -> float", False),  # an annotation
        ("ReplaceComparisonOperator_Gt_GtE", "> 0.0, ell, 1.0", True),
        ("ReplaceComparisonOperator_Gt_Is", "> 0.0, ell, 1.0", False),
        ("ReplaceComparisonOperator_IsNot_Is", "is not None", True),
        ("NumberReplacer", "2.0 * np.asarray(k, dtype", True),
        ("ReplaceBinaryOperator_Mul_Add", "*errors: Any", False),  # the star of an argument
    ],
)
def test_which_mutants_count(operator, text, counts):
    mutant = Mutant(BOUNDS, operator, 0, *place(text))
    assert sample([mutant]) == ([mutant] if counts else [])


def test_the_sample_is_drawn_by_lot_and_is_always_the_same():
    many = [Mutant(module, "NumberReplacer", at, 1, 0) for module in MODULES for at in range(100)]
    drawn = sample(many)
    assert len(drawn) == len(set(drawn)) == 300
    assert drawn == sample(reversed(many))
    assert {mutant.module for mutant in drawn} == set(MODULES)
    without = sample(mutant for mutant in many if mutant.module != BOUNDS)
    assert [mutant for mutant in drawn if mutant.module != BOUNDS] == without[: len([m for m in drawn if m.module != BOUNDS])]


def test_what_is_mutated_and_what_it_faces_is_there():
    for name in (*MODULES, *FILES):
        assert (ROOT / name).is_file()
    assert COMMAND[-len(FILES) :] == FILES


@pytest.mark.parametrize("module", MODULES)
def test_a_mutant_faces_what_knows_it_best_first_and_every_test_once(module):
    faced = [test for tests in stages(Path(module)) for test in tests]
    assert len(faced) == len(set(faced)) and set(faced) <= set(FILES)
    assert "conformance/meta_tests/test_near_the_bound.py" in faced
    assert (faced[0].partition("/")[0] == "spec") == module.startswith("spec")
