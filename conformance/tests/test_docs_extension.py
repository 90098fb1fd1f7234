"""The parts of the site's own extension, each where it could go wrong unseen. Whole pages are checked when the site is built."""

import sys
from pathlib import Path

import pytest

from mha_core import load as load_backend
from mha_spec.clauses import Example, load

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))
WHY = "the site is built with the extra docs, which the extra test does not contain"
docstrings, equations, explained, finished, mathml, ran = (
    pytest.importorskip(module, reason=WHY) for module in ("docstrings", "equations", "explained", "finished", "mathml", "ran")
)


def test_a_shape_in_a_docstring_is_no_markup():
    assert docstrings.as_rst(["(*b h n d_k) -> d_, |x|"]) == [r"(\*b h n d_k) -> d\_, \|x\|"]


def test_names_in_backticks_become_code_and_roles_stay():
    said = docstrings.as_rst(["``query`` and `key` of :math:`a_1`"])
    assert said == [r"``query``\  and ``key``\  of :math:`a_1`\ "]


def test_a_command_in_a_docstring_becomes_a_block():
    said = docstrings.as_rst(["Run", "", "    python x.py *", "", "now."])
    assert [line for line in said if line] == ["Run", "::", "    python x.py *", "now."]


def test_a_list_in_a_docstring_has_the_line_before_it_that_it_needs():
    assert docstrings.as_rst(["These:", "- one", "- two"]) == ["These:", "", "- one", "- two"]


def test_a_formula_keeps_its_source_and_its_names_are_words():
    said = mathml.mathml(r"\mathrm{softmax}(x)", "inline")
    assert r'alttext="\mathrm{softmax}(x)"' in said
    assert "<mi>softmax</mi>" in said


def test_a_bar_knows_its_side():
    said = mathml.mathml(r"a \lvert b \rvert", "inline")
    assert said.index('form="prefix">|') < said.index("<mi>b</mi>") < said.index('form="postfix">|')


def test_an_example_that_fails_ends_the_build_with_its_place_in_the_text():
    wrong = Example("MHA-MASK-2", "same(array([1.0]), [2.0])\n", "text.md", 7)
    with pytest.raises(Exception, match=r"text\.md:7: an example of MHA-MASK-2 fails on numpy"):
        ran._on_each(wrong, {"numpy": load_backend("numpy")})


def test_each_equation_is_shown_at_one_clause_that_exists():
    ids = {clause.id for clause in load().clauses}
    shown = [equation.name for clause in ids for equation in equations.of(clause)[0]]
    assert sorted(shown) == sorted(equation.name for equation in equations.equations())
    assert {clause for equation in equations.equations() for clause in equation.clauses} <= ids


def test_a_missing_anchor_and_a_script_from_the_network_are_found(tmp_path):
    clause = load().clauses[0]
    (tmp_path / "spec").mkdir()
    for page in ("clauses", Path(clause.file).stem):
        (tmp_path / "spec" / f"{page}.html").write_text(f'<div id="{clause.id}">', encoding="utf-8")
    (tmp_path / "index.html").write_text('<a href="https://e.org"><script defer src="https://e.org/x.js">', encoding="utf-8")
    found = finished.faults(tmp_path)
    assert [fault for fault in found if f"{clause.id}" in fault.split()] == []
    assert f"clauses.html has no anchor {load().clauses[1].id}" in found
    assert [fault for fault in found if "network" in fault] == [
        'index.html loads from the network: <script defer src="https://'
    ]


def test_six_requests_are_explained_and_nothing_is_left_behind():
    before = {name for name in sys.modules if "cupy" in name}
    answers = explained.answers()
    assert len(answers) == 6
    assert [answer.partition(":")[0] for *_, answer, _ in answers] == ["fused"] * 4 + ["unfused"] * 2
    assert [tiled.partition(":")[0] for *_, tiled in answers] == ["cutile"] * 3 + ["fused"] + ["unfused"] * 2
    assert all("not cutile, because" in tiled for *_, tiled in answers[3:])
    assert {name for name in sys.modules if "cupy" in name} == before
