"""``mha gpu-check`` on a machine without a GPU: what it says, what it leaves behind, and how its parts are kept apart."""

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from mha_conformance.cli.codes import Code
from mha_conformance.cli.gpu_check import exit_code
from mha_conformance.gpu import check, result
from mha_conformance.gpu.child import read, write
from mha_conformance.gpu.device import missing
from mha_conformance.gpu.parts import BUDGET, PARTS
from mha_conformance.gpu.rows import Part, Row, merged

no_gpu = pytest.mark.skipif(not missing(), reason="this machine has a GPU: what is said without one is not said here")

CHILD = """
import os, sys, time
from pathlib import Path
from mha_conformance.gpu.child import write
from mha_conformance.gpu.rows import Row
name, file = sys.argv[1:]
def rows():
    yield Row("first", "HOLDS")
    if name == "crashes": os.kill(os.getpid(), 11)
    if name == "raises": raise ValueError("what went wrong")
    if name == "hangs": time.sleep(60)
    yield Row("second", "MEASURED", 2.0, "TB/s")
write(rows(), Path(file))
"""


def mha(*arguments):
    start = "import sys; from mha_conformance.cli.entry import main; sys.exit(main())"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-c", start, *arguments], capture_output=True, text=True, env=environment)


def part(name, seconds=30):
    return Part(name, "is made up", seconds, ("first", "second"), lambda: iter(()))


@pytest.fixture
def start(tmp_path):
    (tmp_path / "child.py").write_text(CHILD)
    return sys.executable, str(tmp_path / "child.py")


def test_a_part_that_fails_costs_itself_alone(start):
    names = ("crashes", "raises", "hangs", "goes well")
    told = []
    parts = [part(name, 8 if name == "hangs" else 30) for name in names]
    done = {one.part.name: one for one in check.check(told.append, parts, start=start)}
    assert told == [f"{name}: is made up" for name in names]
    assert [row.status for row in done["goes well"].rows] == ["HOLDS", "MEASURED"] and not done["goes well"].trouble
    for name, trouble in (
        ("crashes", "ended with -11"),
        ("raises", "ValueError: what went wrong"),
        ("hangs", "stopped after 8 s"),
    ):
        assert trouble in done[name].trouble
        first, second = done[name].rows
        assert first.status == "HOLDS"
        assert second == Row("second", "NOT RUN" if name == "hangs" else "CRASHED", why=done[name].trouble)


def test_no_part_begins_when_the_time_is_up(start):
    (done,) = check.check(lambda text: None, [part("goes well")], budget=0, start=start)
    assert {(row.status, row.why) for row in done.rows} == {("NOT RUN", "the time was up")}


def test_it_ends_within_eight_minutes():
    assert BUDGET < 480
    assert all(part.seconds <= BUDGET for part in PARTS)


def test_the_most_important_parts_come_first():
    assert [part.name for part in PARTS][:4] == ["device", "primitives", "suite", "sanitizer"]


def test_only_what_was_planned_is_found():
    assert merged(part("x"), [Row("second", "HOLDS")], "why", False)[0] == Row("first", why="why")
    with pytest.raises(AssertionError, match="not planned"):
        merged(part("x"), [Row("third", "HOLDS")], "", False)


def test_rows_travel_and_a_line_cut_off_is_none(tmp_path):
    rows = [Row("a", "MEASURED", 1.5, "TB/s"), Row("b", "FAILS", why="so")]
    write(iter(rows), tmp_path / "rows")
    assert read(tmp_path / "rows") == rows
    (tmp_path / "rows").write_text((tmp_path / "rows").read_text()[:-3])
    assert read(tmp_path / "rows") == rows[:1]
    assert read(tmp_path / "nowhere") == []


def done_with(*rows, trouble=""):
    return [check.Done(Part("p", "does", 1, tuple(r.what for r in rows), lambda: iter(())), rows, 1.0, trouble)]


@pytest.mark.parametrize(
    ("rows", "trouble", "code"),
    [
        ([Row("a", "HOLDS"), Row("b", "MEASURED", 1.0), Row("c", why="it is not installed")], "", Code.HOLDS),
        ([Row("a", "HOLDS"), Row("b", "FAILS")], "", Code.FAILS),
        ([Row("a", "CRASHED")], "", Code.FAILS),
        ([Row("a", "HOLDS"), Row("b")], "stopped after 8 s", Code.NOT_RUN),
    ],
)
def test_exit_codes(rows, trouble, code):
    assert exit_code(done_with(*rows, trouble=trouble)) == code


def test_what_was_not_run_has_a_colour_of_its_own_and_no_bar(tmp_path):
    done = done_with(Row("a", "MEASURED", 3.0, "TB/s"), Row("b < c", why="no | torch"), Row("d", "MEASURED", 1.5, "TB/s"))
    result.write(done, tmp_path, dry_run=False)
    assert len(set(result.COLOURS.values())) == len(result.COLOURS)
    svg = ElementTree.parse(tmp_path / "gpu-check.svg").getroot()
    bars = [node for node in svg.iter("{http://www.w3.org/2000/svg}rect") if node.get("x") == "400"]
    assert [(node.get("fill"), node.get("class")) for node in bars] == [
        (result.COLOURS["MEASURED"], None), ("url(#not-run)", "not-run"), (result.COLOURS["MEASURED"], None),
    ]  # fmt: skip
    assert [float(bars[at].get("width")) for at in (0, 2)] == [400, 200]
    table = (tmp_path / "gpu-check.md").read_text()
    assert "| a | MEASURED | 3 TB/s |  |" in table and "| b < c | NOT RUN |  | no \\| torch |" in table
    assert "1 NOT RUN" in table.splitlines()[0]


def test_a_dry_run_runs_nothing_and_says_so(tmp_path):
    ended = mha("gpu-check", "--dry-run", "--out", str(tmp_path))
    assert ended.returncode == 0
    assert "a dry run: nothing is run" in ended.stdout
    for one in PARTS:
        assert f"{one.name}: {one.does}" in ended.stdout
    document = json.loads((tmp_path / "gpu-check.json").read_text())
    assert document["dry_run"] is True
    assert document["counts"] == {"NOT RUN": sum(len(one.rows) for one in PARTS)}
    assert "MEASURED" not in (tmp_path / "gpu-check.md").read_text() and "HOLDS" not in (tmp_path / "gpu-check.svg").read_text()


def test_a_dry_run_leaves_nothing_where_nobody_asked_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert mha("gpu-check", "--dry-run").returncode == 0
    assert list(tmp_path.iterdir()) == []


@no_gpu
def test_without_a_gpu_it_is_one_sentence_and_code_2(tmp_path):
    ended = mha("gpu-check", "--out", str(tmp_path / "out"))
    assert ended.returncode == 2
    assert ended.stdout == "" and len(ended.stderr.strip().splitlines()) == 1
    assert "--dry-run" in ended.stderr and "--device emulator" in ended.stderr
    assert not (tmp_path / "out").exists()


@no_gpu
def test_conform_without_a_gpu_is_one_sentence_and_code_2():
    ended = mha("conform", "cupy")
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
    assert "MHA-EXEC-10" in ended.stderr and "mha conform cupy --device emulator" in ended.stderr
