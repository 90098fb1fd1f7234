"""The committed results of the meta-tests speak of this code, and say what they should."""

import pytest
from kill_table import SABOTEURS, Row
from mutation import table
from mutation.mutants import MODULES, SAMPLE, module_hash
from refresh import STALE, code_hash, read
from zoo.kernels import ZOO


@pytest.mark.parametrize("name", ["kill-table", "zoo", "mutation"])
def test_a_committed_result_is_not_older_than_the_code_it_speaks_of(name):
    assert read(name)["code"] == code_hash(name), STALE + name


def test_the_committed_kill_table_is_whole():
    rows = [Row(**row) for row in read("kill-table")["rows"]]
    assert sorted((row.clause, row.saboteur) for row in rows) == sorted((s.clause, s.name) for s in SABOTEURS)
    assert [row for row in rows if not row.right] == []


def test_no_honest_kernel_was_accused_at_level_full():
    found = read("zoo")
    assert found["level"] == "full"
    assert found["kernels"].keys() == {kernel.__name__ for kernel in ZOO}
    for kernel in found["kernels"].values():
        assert kernel["accused"] == []
        assert kernel["judged"] > 1000
        assert all(0 < ratio <= 1 for ratio in kernel["ratios"].values())


def test_every_mutant_was_killed_or_its_life_is_explained():
    found = read("mutation")
    assert len(found["rows"]) == SAMPLE
    assert found["modules"] == {module: module_hash(module) for module in MODULES}, STALE + "mutation"
    assert {row["outcome"] for row in found["rows"]} <= {"killed", "timeout", "survived"}
    assert [row for row in table.survivors(found["rows"]) if not row["reason"]] == []


def test_every_explanation_is_of_a_mutant_that_lives():
    alive = {(row["module"], row["before"], row["after"]) for row in table.survivors(read("mutation")["rows"])}
    assert set(table.explained()) == alive
    assert len(table.explained()) == len(table.reasons())
