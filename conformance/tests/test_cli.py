"""The command ``mha``: what it prints, for people and for programs, and its exit codes."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from mha_conformance.cli import entry
from mha_conformance.cli import examples as command
from mha_conformance.cli.app import app
from mha_conformance.cli.codes import Code
from mha_conformance.run.examples import Outcome
from mha_core import AttentionResult, Unsupported, bind
from mha_spec import SPEC_VERSION
from mha_spec.clauses import load

CLAUSE = "MHA-MASK-2"


def mha(*arguments):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def saboteur(attend, **changes):
    from mha_backends import reference

    backend = reference.create()
    return bind(replace(backend, name="saboteur", attend=lambda call: attend(backend, call), **changes))


def off_by_one(backend, call):
    output, *others = backend.attend(call)
    return AttentionResult(output + 1, *others)


def refuse(backend, call):
    raise Unsupported("saboteur", "anything", "nothing")


def unclaiming(name):
    """A backend that claims no option, so that the door refuses them."""
    from mha_backends import reference

    backend = reference.create()
    return bind(replace(backend, name=name, claims=replace(backend.claims, features=frozenset())))


def test_backends_lists_every_entry_point():
    told = mha("backends")
    assert told.exit_code == Code.HOLDS
    for name in ("reference", "numpy", "torch", "cupy"):
        assert name in told.stdout
    record = json.loads(mha("backends", "--json").stdout)
    assert record["spec_version"] == SPEC_VERSION
    states = {b["name"]: b["state"] for b in record["backends"]}
    assert states["reference"] == "ready"
    assert "broken" not in states.values()


def test_clauses_lists_all_an_area_or_one():
    lines = mha("clauses").stdout.splitlines()
    assert len(lines) == 1 + len(load().clauses)
    area = mha("clauses", "mask").stdout.splitlines()[1:]
    assert len(area) > 1
    assert all(line.startswith("MHA-MASK-") for line in area)
    assert mha("clauses", "MHA-MASK").stdout.splitlines()[1:] == area
    one = mha("clauses", "mask-2").stdout
    clause = load()[CLAUSE]
    assert clause.text in one
    assert clause.examples[0].code.splitlines()[0] in one


def test_clauses_as_json_says_no_place_of_this_machine():
    record = json.loads(mha("clauses", "--json").stdout)
    assert [c["id"] for c in record["clauses"]] == [c.id for c in load().clauses]
    assert {"/" in c["file"] for c in record["clauses"]} == {False}


def test_cite_names_the_version_and_the_clause():
    assert f"Specification version {SPEC_VERSION}" in mha("cite").stdout
    one = mha("cite", CLAUSE).stdout
    assert f"Clause {CLAUSE} (MUST)" in one
    assert SPEC_VERSION in one
    assert load()[CLAUSE].plain in one


def test_version_names_both():
    assert f"MHA specification {SPEC_VERSION}, mha-core " in mha("--version").stdout


@pytest.mark.parametrize(
    "arguments", [("clauses", "MHA-MASK-0"), ("cite", "nothing"), ("examples", "reference", "--clause", "X-1")]
)
def test_an_unknown_clause_could_not_run(arguments):
    told = mha(*arguments)
    assert told.exit_code == Code.NOT_RUN
    assert "no clause MHA-" in told.stderr


def test_examples_that_pass():
    told = mha("examples", "reference", "--clause", CLAUSE)
    assert told.exit_code == Code.HOLDS
    count = len(load()[CLAUSE].examples)
    said = f"reference agrees with the examples of MHA {SPEC_VERSION}: {count} passed, 0 failed, 0 not supported of {count}"
    assert told.stdout.splitlines() == [said]


def test_a_failing_example_is_shown_with_its_clause_and_its_line(monkeypatch):
    monkeypatch.setattr(command, "load", lambda name: saboteur(off_by_one))
    told = mha("examples", "saboteur", "--clause", CLAUSE)
    assert told.exit_code == Code.FAILS
    assert f"FAIL {CLAUSE} (MUST)" in told.stdout
    assert "3-equations.md:" in told.stdout
    assert load()[CLAUSE].plain in told.stdout
    record = json.loads(mha("examples", "saboteur", "--clause", CLAUSE, "--json").stdout)
    assert record["exit_code"] == Code.FAILS
    assert {(o["clause"], o["status"], o["file"]) for o in record["outcomes"]} == {(CLAUSE, "FAIL", "3-equations.md")}


def test_nothing_supported_is_no_pass(monkeypatch):
    monkeypatch.setattr(command, "load", unclaiming)
    told = mha("examples", "bare", "--clause", "MHA-MASK-12")
    assert told.exit_code == Code.NOT_RUN
    assert "NOT_SUPPORTED" in told.stdout


def test_a_claimed_request_that_is_refused_is_a_failure(monkeypatch):
    monkeypatch.setattr(command, "load", lambda name: saboteur(refuse))
    told = mha("examples", "saboteur", "--clause", CLAUSE)
    assert told.exit_code == Code.FAILS
    assert "backend 'saboteur' was given anything" in told.stdout


def test_no_device_could_not_run(monkeypatch):
    monkeypatch.setattr(command, "load", lambda name: saboteur(off_by_one, devices=tuple))
    told = mha("examples", "saboteur")
    assert told.exit_code == Code.NOT_RUN
    assert "no device" in told.stderr


def test_a_broken_plug_in_could_not_run(monkeypatch):
    def broken(name):
        raise RuntimeError("a driver is too old")

    monkeypatch.setattr(command, "load", broken)
    told = mha("examples", "theirs")
    assert told.exit_code == Code.NOT_RUN
    assert "theirs is broken: RuntimeError: a driver is too old" in told.stderr


def test_an_unknown_backend_or_dtype_could_not_run():
    told = mha("examples", "nobody")
    assert told.exit_code == Code.NOT_RUN
    assert "reference" in told.stderr
    told = mha("examples", "reference", "--dtype", "float8")
    assert told.exit_code == Code.NOT_RUN
    assert "float64" in told.stderr


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([("MUST", "PASS")], Code.HOLDS),
        ([("MUST", "PASS"), ("MUST", "NOT_SUPPORTED")], Code.HOLDS),
        ([("MUST", "PASS"), ("INFO", "FAIL")], Code.HOLDS),
        ([("MUST", "PASS"), ("MUST", "FAIL")], Code.FAILS),
        ([("MUST", "FAIL"), ("SUITE", "FAIL")], Code.DEFECT),
        ([("MUST", "NOT_SUPPORTED")], Code.NOT_RUN),
        ([], Code.NOT_RUN),
    ],
)
def test_exit_code_of_outcomes(outcomes, code, monkeypatch):
    monkeypatch.setattr(command, "_level", lambda outcome: outcome.example)
    assert command.exit_code([Outcome(level, status) for level, status in outcomes]) == code


def test_a_defect_of_the_suite_is_code_3(monkeypatch, capsys):
    def defect(*arguments):
        raise ZeroDivisionError("in the suite")

    monkeypatch.setattr(command, "run", defect)
    monkeypatch.setattr(sys, "argv", ["mha", "examples", "reference", "--clause", CLAUSE])
    assert entry.main() == Code.DEFECT
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "defect of the suite" in said


def test_a_wrong_command_could_not_run(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mha", "nothing"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == Code.NOT_RUN


def _python(code, tmp_path):
    return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)


def test_without_its_extra_it_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['typer'] = None; from mha_conformance.cli.entry import main; sys.exit(main())"
    told = _python(code, tmp_path)
    assert told.returncode == Code.NOT_RUN
    assert "pip install 'mha-core[conformance]'" in told.stderr
    assert "Traceback" not in told.stderr


def test_the_entry_needs_only_the_standard_library(tmp_path):
    code = (
        "import sys, mha_conformance.cli.entry; print(*{name.partition('.')[0] for name in sys.modules}"
        " - set(sys.stdlib_module_names) - {'__main__', 'sitecustomize', 'usercustomize'})"
    )
    loaded = set(_python(code, tmp_path).stdout.split())
    assert "mha_conformance" in loaded
    assert not loaded & {"numpy", "rich", "typer", "mha_core", "mha_spec", "ml_dtypes", "torch"}


def test_a_reader_that_goes_away_is_no_verdict(tmp_path):
    code = "import sys; from mha_conformance.cli.entry import main; sys.argv = ['mha', 'clauses']; sys.exit(main())"
    process = subprocess.Popen([sys.executable, "-u", "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    with process.stderr:
        process.stderr.read()
    assert process.wait(timeout=60) == Code.NOT_RUN
