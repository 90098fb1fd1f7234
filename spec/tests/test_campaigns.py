"""The results of the campaigns: as old as the code that they speak of, and the tables of the text are made from them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "campaigns"))

import chance
import power
import record
import soundness
import soundness_backward
import tables

from mha_spec.numerics import PROFILES, STATISTICS, constants_hash

RUN = "python spec/campaigns/{}.py && python spec/campaigns/tables.py"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("soundness", lambda: record.code(soundness.DEPENDS)),
        ("soundness_backward", lambda: record.code(soundness_backward.DEPENDS)),
        ("chance", lambda: record.code(chance.DEPENDS, chance.inputs())),
        ("power", lambda: record.code(power.DEPENDS)),
    ],
)
def test_a_result_is_that_of_this_code_and_these_constants(name, code):
    found = record.read(name)
    assert found["constants_sha256"] == constants_hash(), RUN.format(name)
    assert found["code"] == code(), RUN.format(name)


def test_a_result_of_other_code_is_old(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("x = 1\n")
    before = record.code([file], ["inputs"])
    assert before == record.code([file], ["inputs"])
    assert before != record.code([file], ["other inputs"])
    file.write_text("x = 2\n")
    assert before != record.code([file], ["inputs"])


@pytest.mark.parametrize("chapter", tables.TABLES)
def test_the_tables_of_the_text_are_made_from_the_results(chapter):
    text = (tables.TEXT / chapter).read_text(encoding="utf-8")
    assert tables.filled(chapter, text) == text, "python spec/campaigns/tables.py"
    with pytest.raises(ValueError, match="no place for the table"):
        tables.filled(chapter, "no table")


def test_legal_arithmetic_kept_every_bound_in_a_hundred_thousand_runs():
    found = record.read("soundness")
    assert found["sound"]
    assert {row["profile"] for row in found["rows"]} == set(PROFILES)
    assert sum(row["runs"] for row in found["rows"]) > 100_000


def test_legal_gradients_kept_every_bound():
    """The fp8 profiles are not judged backwards."""
    found = record.read("soundness_backward")
    assert found["sound"]
    assert {row["profile"] for row in found["rows"]} == {name for name in PROFILES if not name.startswith("PE")}
    for row in found["rows"]:
        assert all(0 < row[name] < 1 for name in ("query", "key", "value", "bias", "sink_logits"))
        assert row["zeros"] > 10 and row["left out"] > 1
    assert sum(row["runs"] for row in found["rows"]) > 30_000


def test_legal_arithmetic_kept_every_statistic_with_room():
    found = record.read("chance")
    assert found["sound"]
    assert {row["profile"] for row in found["rows"]} == set(PROFILES)
    for row in found["rows"]:
        assert row["mean square ANY"][0] < 0.9
        for kind in ("mean square RN", "farthest RN", "farthest ANY", "filter RN", "filter ANY"):
            assert row[kind][0] < 0.75, (row["profile"], kind)


MATRICES = {(m["profile"], m["values"]): {row["fault"]: row for row in m["rows"]} for m in record.read("power")["matrices"]}
KILLS = {
    "scale 1 / sqrt(d + 1)": "filter",
    "scale times 1.001": "filter",
    "last key lost": "filter",
    "causal, one key too many": "filter",
    "heads exchanged": "filter",
    "scores stored in the input's type": "STAT RN",
    "weights stored in the next coarser type": "STAT RN",
    "one element 5 % too large": "PROB",
    "one tile 2 % too large": "PROB",
    "the last 8 elements are 0": "HARD",
    "all zeros": "HARD",
}
"""The tier that claims a fault, for profiles whose storage is not as coarse as fp8."""
NAMED = {
    "scale times 1.001": "the scale is 1.0010",
    "last key lost": "the last key is left out",
    "causal, one key too many": "one key too many under causal",
    "heads exchanged": "heads 0 and 1 are exchanged",
}


@pytest.mark.parametrize("setting", [key for key in MATRICES if not key[0].startswith("PE")], ids=str)
def test_every_fault_is_found_by_the_tier_that_claims_it(setting):
    found = MATRICES[setting]
    for fault, tier in KILLS.items():
        if fault in found:
            assert found[fault][tier] > 1, fault
    for fault, words in NAMED.items():
        assert found[fault]["named"].startswith(words), fault


@pytest.mark.parametrize("setting", MATRICES, ids=str)
def test_a_legal_kernel_is_found_by_none(setting):
    legal = MATRICES[setting]["none: a legal kernel"]
    assert all(legal[tier] < 0.75 for tier in ("HARD", "PROB", "STAT RN", "STAT ANY", "filter"))
    cut = MATRICES[setting]["none: the output is cut off"]
    assert all(cut[tier] < 1 for tier in ("HARD", "STAT ANY"))


def test_the_usual_rules_accept_zeros_where_values_are_small_and_reject_what_is_legal():
    small = MATRICES["PB16", 2.0**-7]
    assert not small["all zeros"]["four constants"]
    assert MATRICES["PB16", 1.0]["none: a legal kernel"]["assert_close"]
    assert MATRICES["PB16", 1.0]["none: a legal kernel"]["ONNX"]
    assert STATISTICS["deviations"] == 8
