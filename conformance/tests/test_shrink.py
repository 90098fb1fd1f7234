"""From a failing case to the smallest call: cuts keep the meaning of what is left, and the search is the same every time."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mha_conformance.cases import Request, catalogue
from mha_conformance.cases.calls import visible_pairs
from mha_conformance.cli.app import app
from mha_conformance.cli.codes import Code
from mha_conformance.judge.truth import truth
from mha_conformance.report.issue import issue
from mha_conformance.run.conform import Selection, conform
from mha_conformance.run.implementation import Target
from mha_conformance.shrink.cut import keep, sizes, without_batch_axis
from mha_conformance.shrink.search import MOST_TRIES, smallest

BOUND = [
    case for case in catalogue()
    if case.rule == "bound" and case.level != "full" and case.dtype == "float32"
    and [request.target for request in case.make()] == ["attention"]
]  # fmt: skip


@pytest.fixture(autouse=True)
def _strangers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")


def output(request):
    return truth(request, "P32").expected["output"]


@pytest.mark.parametrize("case", BOUND[::5], ids=lambda case: case.id)
def test_a_cut_asks_for_a_part_of_the_same_answer(case):
    """Fewer items, heads, queries or value channels give that part of the output; fewer keys are fewer visible pairs."""
    (request,) = case.make()
    whole, mine = output(request), sizes(request)
    see = visible_pairs(request)
    group = request.operands[0].shape[-3] // max(mine["h"], 1)
    for axis, size in mine.items():
        if size < 2:
            continue
        part = keep(request, axis, 1, size)
        if axis.startswith("batch"):
            expected = whole.take(range(1, size), axis=int(axis.split()[1]))
        elif axis == "h":
            expected = whole[..., group:, :, :]
        elif axis == "n":
            expected = whole[..., 1:, :]
        elif axis == "d_v":
            expected = whole[..., 1:]
        elif axis == "m":
            assert np.array_equal(visible_pairs(part), see[..., 1:])
            continue
        else:
            continue
        np.testing.assert_allclose(output(part), expected, rtol=1e-12, atol=1e-300)


def test_a_batch_axis_of_one_item_can_be_left_out():
    rows = np.arange(12.0).reshape(1, 1, 3, 4)
    mask = np.eye(3, dtype=bool)[None, None]
    request = Request((rows, rows, rows), "float32", arrays={"mask": mask, "key_lengths": np.asarray([2])})
    less = without_batch_axis(request)
    assert less.operands[0].shape == (1, 3, 4)
    assert less.arrays["key_lengths"].shape == ()
    np.testing.assert_array_equal(output(less), output(request)[0])


@pytest.mark.parametrize(
    ("name", "clause", "shapes"),
    [
        ("mask_ignored", "MHA-MASK-2", [(1, 1, 1), (1, 2, 1), (1, 2, 1)]),
        ("no_mean_of_nothing", "MHA-MASK-15", [(1, 1, 1), (1, 1, 1), (1, 1, 1)]),
    ],
)
def test_the_smallest_call_is_small_and_always_the_same(name, clause, shapes):
    one, two = (conform(Target(f"strangers:{name}"), Selection(clauses=(clause,))) for _ in range(2))
    (blamed,) = one.blame
    assert blamed.clause == clause
    small, again = one.smallest[blamed.case], two.smallest[blamed.case]
    assert [x.shape for x in small.requests[0].operands] == shapes
    assert small.verdict == again.verdict
    assert small.verdict.status == "FAIL"
    assert small.tries <= MOST_TRIES


def test_the_issue_is_markdown_whose_call_shows_the_failure(monkeypatch):
    report = conform(Target("strangers:mask_ignored"), Selection(clauses=("MHA-MASK-2",)))
    text = issue(report, report.blame[0])
    assert text.startswith("# strangers:mask_ignored: MHA-MASK-2 does not hold\n")
    assert "mha conform strangers:mask_ignored --case" in text
    code = text.split("```python\n")[1].split("```")[0]
    told = []
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    exec(code.replace("print(", "told.append("), {"told": told})
    worst = report.smallest[report.blame[0].case].verdict.worst
    assert told[0][worst.index] == pytest.approx(worst.got)
    assert abs(worst.got - worst.expected) > worst.bound


def test_what_passes_has_no_smallest_call():
    assert smallest(BOUND[0], lambda case: None) is None


def mha(*arguments):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_diff_names_the_clause_that_separates_two():
    told = mha("diff", "numpy", "strangers:mask_ignored", "--clause", "MHA-MASK-2", "--clause", "MHA-ATTN-6")
    assert told.exit_code == Code.FAILS
    assert told.stdout.startswith("MHA-MASK-2 separates numpy and strangers:mask_ignored\n")
    assert "numpy: PASS" in told.stdout
    assert "strangers:mask_ignored: FAIL, output is outside the bound" in told.stdout
    assert "MHA-ATTN-6" not in told.stdout


def test_diff_finds_numbers_too_far_apart_to_be_both_right():
    told = mha("diff", "strangers:tf32", "strangers:attention", "--clause", "MHA-ATTN-6", "--clause", "MHA-NUM-6")
    assert told.exit_code == Code.FAILS
    assert told.stdout.startswith("MHA-ATTN-6 separates")


def test_diff_of_two_that_agree():
    told = mha("diff", "numpy", "reference", "--clause", "MHA-MASK-2")
    assert told.exit_code == Code.HOLDS
    assert told.stdout.startswith("numpy and reference agree on ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("numpy", "nothing_there"), "nothing_there"),
        (("numpy", "reference", "--clause", "MHA-MASK-0"), "no case matches MHA-MASK-0"),
        (("numpy", "strangers:attention", "--clause", "MHA-MASK-13"), "claim no case together"),
        (("numpy", "reference", "--level", "huge"), "given --level huge"),
    ],
)
def test_diff_that_could_not_run_says_why(arguments, said):
    told = mha("diff", *arguments)
    assert told.exit_code == Code.NOT_RUN
    assert said in told.stderr
