"""What a run writes: JSON by its schema, JUnit, a comparison, and the command that shows one failure again."""

import json
import math
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from typer.testing import CliRunner

from mha_conformance.cli.app import app
from mha_conformance.cli.codes import Code
from mha_conformance.judge.verdict import FAILING
from mha_conformance.report import document, junit
from mha_conformance.run.conform import Selection, conform
from mha_conformance.run.implementation import Target

HERE = Path(__file__).parent
SCHEMA = json.loads(document.SCHEMA.read_text(encoding="utf-8"))
CHOSEN = ("MHA-MASK-2", "MHA-MASK-15", "MHA-MASK-20", "MHA-ATTN-8", "MHA-NUM-6", "MHA-VAL-8", "MHA-AUX-1")


@pytest.fixture(scope="module")
def reports():
    """By name: one that conforms, one that fails in many ways, one that crashes."""
    before = os.getcwd()
    os.chdir(HERE)
    try:
        yield {
            name: conform(Target(f"strangers:{name}"), Selection(clauses=CHOSEN))
            for name in ("attention", "mask_ignored", "crashes")
        }
    finally:
        os.chdir(before)


def test_the_schema_is_one_and_every_report_keeps_it(reports):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for report in reports.values():
        jsonschema.validate(document.as_json(report), SCHEMA)


def test_the_schema_can_refuse(reports):
    good = document.as_json(reports["attention"])
    for change in ({"verdict": None}, {"format": 2}, {"cases": []}, {"more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**good, **change}, SCHEMA)
    worse = json.loads(json.dumps(good))
    worse["cases"][0]["status"] = "OK"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(worse, SCHEMA)


def test_json_holds_no_nan_and_no_infinity(reports, tmp_path):
    """Infinite ratios are common among failures: they are words in the file."""
    assert any(v.ratio is not None and math.isinf(v.ratio) for v in reports["mask_ignored"].verdicts)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    for name, report in reports.items():
        document.write(report, tmp_path / f"{name}.json")
        json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"), parse_constant=refuse)


def test_a_report_says_what_it_was_made_with(reports):
    record = document.as_json(reports["attention"])["provenance"]
    assert len(record["constants"]) == 64
    assert "numpy" in record["libraries"]
    assert {"spec", "suite", "python", "platform", "date", "level"} <= set(record)


def test_a_file_that_is_no_report(tmp_path):
    for text in ("{}", "[1]", '{"format": 99}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match="no report of format"):
            document.read(tmp_path / "x.json")


def test_junit_counts_what_the_report_counts(reports, tmp_path):
    for name, report in reports.items():
        junit.write(report, tmp_path / "j.xml")
        suite = ElementTree.parse(tmp_path / "j.xml").getroot()
        failing = [v for v in report.verdicts if v.status in FAILING]
        assert int(suite.get("tests")) == len(suite.findall("testcase")) == len(report.verdicts)
        assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) == len(failing)
        skipped = suite.findall("testcase/skipped")
        assert int(suite.get("skipped")) == len(skipped) > 0
        assert all(": " in node.get("message") for node in skipped)
        if name != "attention":
            assert failing
            assert suite.find("testcase/failure").text.splitlines()[-1].startswith("mha conform strangers:")


def mha(*arguments):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_report_compares(reports, tmp_path):
    files = []
    for name, report in reports.items():
        files.append(str(tmp_path / f"{name}.json"))
        document.write(report, Path(files[-1]))
    told = mha("report", files[0], files[1])
    assert told.exit_code == Code.FAILS
    assert "strangers:attention: holds 7 clauses of MHA" in told.stdout
    assert "strangers:mask_ignored: does not conform to MHA" in told.stdout
    row = next(line for line in told.stdout.splitlines() if line.startswith("MHA-MASK-2/mask shared/float32"))
    assert row.split()[-2:] == ["PASS", "FAIL"]
    same = mha("report", files[0], files[0])
    assert same.exit_code == Code.HOLDS
    assert "no case differs" in same.stdout
    assert mha("report", str(tmp_path / "none.json")).exit_code == Code.NOT_RUN


def test_the_command_of_a_failure_shows_that_failure_alone(reports, tmp_path):
    """Copied from the report into a shell: code 1, one case, the same clause."""
    record = document.as_json(reports["mask_ignored"])
    command = shlex.split(record["blame"][0]["reproduce"])
    assert command[:2] == ["mha", "conform"]
    start = [sys.executable, "-c", "import sys; from mha_conformance.cli.entry import main; sys.exit(main())", *command[1:]]
    told = subprocess.run(
        [*start, "--json", str(tmp_path / "again.json")], cwd=HERE, capture_output=True, text=True, timeout=120
    )
    assert told.returncode == Code.FAILS, told.stderr
    again = document.read(tmp_path / "again.json")
    assert [case["case"] for case in again["cases"]] == [record["blame"][0]["case"]]
    assert again["cases"][0]["status"] == "FAIL"
    assert told.stdout.startswith(f"{record['blame'][0]['clause']} FAIL")
    first = next(case for case in record["cases"] if case["case"] == record["blame"][0]["case"])
    assert again["cases"][0] == first


def test_the_command_carries_every_option(reports):
    report = replace(reports["mask_ignored"], target=Target("a:b", "torch", "cuda:0", "bnhd", "my claims.toml"))
    words = shlex.split(document.reproduce(report, report.blame[0]))
    assert words[:5] == ["mha", "conform", "a:b", "--case", report.blame[0].case]
    assert words[5:] == ["--arrays", "torch", "--device", "cuda:0", "--layout", "bnhd", "--claims", "my claims.toml"]
