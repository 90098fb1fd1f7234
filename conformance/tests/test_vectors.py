"""Cases as files: what is written, that it can be read, and how the outputs that come back are judged."""

import hashlib
import json
import re
import shlex
import shutil
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest
import vector_reader

from mha_conformance.cases import catalogue
from mha_conformance.cli.codes import Code
from mha_conformance.report import document
from mha_conformance.run.sequences import TARGETS
from mha_conformance.vectors.arrays import STORED, decoded, encoded
from mha_conformance.vectors.coverage import LIVE, folder, why_not
from mha_conformance.vectors.manifest import GUIDE

SCHEMA = json.loads((GUIDE / "schema.json").read_text(encoding="utf-8"))


def manifest(directory):
    return json.loads((directory / "manifest.json").read_text())


def case(directory, clause):
    """The first entry of a clause, and the folder of its first call."""
    entry = next(entry for entry in manifest(directory)["vectors"] if entry["clause"] == clause)
    return entry, directory / entry["calls"][0]["folder"]


def test_the_manifest_keeps_the_schema_and_the_schema_can_refuse(written):
    good = manifest(written)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(good, SCHEMA)
    good["vectors"] = good["vectors"][:1]
    call = good["vectors"][0]["calls"][0]
    for place, key, wrong in (
        (good, "format", 2),
        (good, "vectors", []),
        (call, "folder", "../../etc"),
        (call["inputs"]["query"], "dtype", "float128"),
        (call["options"], "dropout", 0.1),
        (call["outputs"]["output"], "file", "/etc/passwd.npy"),
    ):
        before = place.get(key)
        place[key] = wrong
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good, SCHEMA)
        place.pop(key) if before is None else place.update({key: before})


def test_every_case_of_the_dtype_is_a_vector_or_is_listed_with_its_reason(written):
    found = manifest(written)
    wanted = {c.id for c in catalogue() if c.dtype == "float32" and c.level == "smoke"}
    vectors, others = ([entry["id"] for entry in found[key]] for key in ("vectors", "not_in_files"))
    assert len(vectors) + len(others) == len(wanted) and {*vectors, *others} == wanted
    assert vectors and others
    assert all(entry["reason"].startswith(LIVE) for entry in found["not_in_files"])
    reasons = {c.id: why_not(c) for c in catalogue()}
    for c in catalogue():
        live = c.rule in ("refused", "facts", "gradient facts") or c.clause == "MHA-EXEC-7" or c.group == "train"
        live |= c.rule == "memory" or "dropout" in c.features
        live |= any("int" in kind and kind != "int64" for r in c.make() for kind in r.dtypes.values())
        live |= any(
            r.layout != "contiguous" or r.target.endswith("vjp") or r.target in TARGETS or beyond_doubles(r) for r in c.make()
        )
        assert bool(reasons[c.id]) == live, c.id


def beyond_doubles(request):
    alone = [side for x in request.options.values() for side in (x if isinstance(x, tuple) else (x,)) if isinstance(side, int)]
    return any(
        abs(int(i)) > 2**53 for i in [*alone, *(i for x in request.arrays.values() if x.dtype.kind == "i" for i in x.flat)]
    )


def test_folders_are_names_on_every_system():
    """Lower case, short, no dot, no space, no device name of an old system, and no two alike."""
    names = [folder(c.id) for c in catalogue()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"cases/mha-[a-z0-9-]{1,80}", name) for name in names)
    assert folder("MHA-MASK-2/mask shared/float32") == "cases/mha-mask-2-mask-shared-float32-83776954"


def test_the_files_are_what_the_manifest_says(written):
    for entry in manifest(written)["vectors"]:
        for call in entry["calls"]:
            for name, one in call["inputs"].items():
                path = written / one["file"]
                assert path == written / call["folder"] / f"{name}.npy"
                assert hashlib.sha256(path.read_bytes()).hexdigest() == one["sha256"]
                assert path.read_bytes()[:10] == b"\x93NUMPY\x01\x00\x76\x00"
                x = np.load(path, allow_pickle=False)
                assert x.dtype == STORED[one["dtype"]] == one["stored"] and list(x.shape) == one["shape"]
                if x.dtype == np.int64:
                    assert (np.abs(x) <= 2**53).all()
            for name, one in call["outputs"].items():
                expected, bound = (np.load(written / one[kind]["file"]) for kind in ("expected", "bound"))
                assert list(expected.shape) == list(bound.shape) == one["shape"], name
                assert expected.dtype == bound.dtype == np.float64
                assert not (written / one["file"]).exists()


def test_the_index_and_the_manifest_are_one(written):
    title, *lines = (written / "index.txt").read_text().splitlines()
    assert re.fullmatch(r"# test vectors of .*, format 1, specification \d+\.\d+\.\d+, profile P32, level smoke", title)
    calls = [call for entry in manifest(written)["vectors"] for call in entry["calls"]]
    assert len(lines) == len(calls)
    for line, call in zip(lines, calls, strict=True):
        place, target, *words = line.split(" ")
        assert (place, target) == (call["folder"], call["target"])
        files = dict(word.split("=") for word in words if ":" in word and not word.startswith("want="))
        assert files == {k: f"{x['dtype']}:{','.join(map(str, x['shape']))}" for k, x in call["inputs"].items()}
        wanted = [word.removeprefix("want=").split(":") for word in words if word.startswith("want=")]
        assert wanted == [[k, ",".join(map(str, x["shape"]))] for k, x in call["outputs"].items()]
        options = dict(word.split("=") for word in words if ":" not in word)
        assert set(options) == set(call["options"])
        for name, value in call["options"].items():
            if name == "window":
                value = ",".join("none" if side is None else str(side) for side in value)
                assert options[name] == value
            else:
                exact = float.fromhex(value["hex"]) if isinstance(value, dict) else value
                assert float.fromhex(options[name]) == exact == (value["decimal"] if isinstance(value, dict) else exact)


@pytest.mark.parametrize(
    ("dtype", "patterns"),
    [
        ("bfloat16", {1.5: 0x3FC0, -2.0: 0xC000, float("inf"): 0x7F80}),
        ("float8_e4m3fn", {1.5: 0x3C, -2.0: 0xC0, 448.0: 0x7E}),
        ("float8_e5m2", {1.5: 0x3E, -2.0: 0xC0, float("inf"): 0x7C}),
    ],
)
def test_types_that_numpy_lacks_are_stored_as_their_bits(dtype, patterns, tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(encoded(list(patterns), dtype))
    assert np.load(path, allow_pickle=False).tolist() == list(patterns.values())
    assert decoded(path, dtype, (len(patterns),)).tolist() == list(patterns)


def test_right_outputs_conform(answered, mha_vectors):
    told = mha_vectors("check", answered)
    assert told.exit_code == Code.HOLDS, told.stdout
    last = told.stdout.splitlines()[-1]
    assert last.startswith("my device conforms to MHA ") and "profile P32, by its output files, for core, bias" in last
    assert "class strict" not in last and "cases, needs a live callable: a refusal is no file" in told.stdout


def test_a_claims_file_claims_more_and_less(answered, tmp_path, mha_vectors):
    claims = tmp_path / "claims.toml"
    claims.write_text('features = ["mask"]\nstrict = true\ndeterminism = "run-to-run"\n')
    told = mha_vectors("check", answered, "--name", "chip", "--claims", claims, "--json", "-")
    assert told.exit_code == Code.HOLDS, told.stdout
    record = json.loads(told.stdout)
    jsonschema.validate(record, json.loads(document.SCHEMA.read_text(encoding="utf-8")))
    assert record["name"] == "chip" and record["claims"]["features"] == ["mask"] and record["claims"]["strict"]
    assert "for core, mask; class strict" in record["verdict"]
    statuses = {found["case"]: found["status"] for found in record["cases"]}
    assert {statuses[c.id] for c in catalogue() if c.id in statuses and "bias" in c.features} == {"NOT_SUPPORTED"}
    assert set(statuses.values()) == {"PASS", "NOT_SUPPORTED", "NOT_EXPRESSIBLE"}


def test_no_outputs_could_not_run(written, mha_vectors):
    told = mha_vectors("check", written)
    assert told.exit_code == Code.NOT_RUN and "holds no outputs" in told.stderr


def test_a_missing_output_is_not_run_and_then_nothing_conforms(answered, mha_vectors):
    entry, place = case(answered, "MHA-MASK-2")
    (place / "output.npy").unlink()
    both = next(e for e in manifest(answered)["vectors"] if {"weights", "lse"} <= set(e["calls"][0]["outputs"]))
    (answered / both["calls"][0]["outputs"]["lse"]["file"]).unlink()
    told = mha_vectors("check", answered, "--json", "-")
    assert told.exit_code == Code.NOT_RUN
    record = json.loads(told.stdout)
    assert not record["conforms"] and not record["blame"]
    assert record["verdict"].startswith("is not known to conform to MHA") and "not run: 2 claimed cases." in record["verdict"]
    found = {c["case"]: c for c in record["cases"] if c["status"] == "NOT_RUN"}
    assert found[entry["id"]]["reason"] == "claimed, but its output files are missing"
    assert found[both["id"]]["reason"] == "claimed, but some of its output files are missing: 0/lse.npy"
    assert "not judged: 1 cases, claimed, but its output files are missing" in mha_vectors("check", answered).stdout


def test_what_was_never_answered_is_not_claimed(written, tmp_path, mha_vectors):
    """Only the core and masks: the rest is not supported, and the core cannot be left out."""
    directory = shutil.copytree(written, tmp_path / "d")
    vector_reader.main(directory, "mask")
    last = mha_vectors("check", directory).stdout.splitlines()[-1]
    assert "for core, mask; " in last and "not claimed: bias, causal" in last
    core = next(e for e in manifest(directory)["vectors"] if not e["features"] and e["rule"] == "bound")
    (directory / core["calls"][0]["outputs"]["output"]["file"]).unlink()
    assert mha_vectors("check", directory).exit_code == Code.NOT_RUN


def test_a_wrong_output_is_blamed_shown_and_shown_again(answered, tmp_path, mha_vectors):
    entry, place = case(answered, "MHA-MASK-2")
    path = place / "output.npy"
    x = np.load(path)
    x[0, 0, 2] += 1
    np.save(path, x)
    told = mha_vectors(
        "check", answered, "--junit", tmp_path / "j.xml", "--json", tmp_path / "r.json", "--issue", tmp_path / "i.md"
    )
    assert told.exit_code == Code.FAILS
    lines = told.stdout.splitlines()
    assert lines[0] == "MHA-MASK-2 FAIL"
    assert f"    files    {place.parent}" in lines
    again = next(line for line in lines if line.startswith("    again")).removeprefix("    again    ")
    assert document.read(tmp_path / "r.json")["blame"][0]["reproduce"] == again
    failure = ElementTree.parse(tmp_path / "j.xml").getroot().find("testcase/failure")
    assert failure.text.splitlines()[-1] == again
    assert again in (tmp_path / "i.md").read_text().splitlines()
    words = shlex.split(again)
    assert words[:3] == ["mha", "vectors", "check"]
    told = mha_vectors(*words[2:], "--json", "-")
    assert told.exit_code == Code.FAILS
    record = json.loads(told.stdout)
    assert [(c["case"], c["status"]) for c in record["cases"]] == [(entry["id"], "FAIL")]
    assert record["verdict"].startswith("does not conform to MHA") and "MHA-MASK-2" in record["verdict"]


def test_a_failure_beside_missing_outputs_counts_both(answered, mha_vectors):
    _, place = case(answered, "MHA-MASK-2")
    np.save(place / "output.npy", np.load(place / "output.npy") + 1)
    (case(answered, "MHA-ATTN-10")[1] / "output.npy").unlink()
    told = mha_vectors("check", answered)
    assert told.exit_code == Code.FAILS
    assert told.stdout.rstrip().endswith("; not run: 1 claimed cases.")


def test_an_expected_failure_is_one_here_too(answered, tmp_path, mha_vectors):
    entry, place = case(answered, "MHA-MASK-2")
    np.save(place / "output.npy", np.load(place / "output.npy") + 1)
    claims = tmp_path / "claims.toml"
    listed = '[[xfail]]\ncase = "{}"\nreason = "known"\nlink = "https://example.org/1"\nexpires = 9999-12-31\n'
    claims.write_text(listed.format(entry["id"]))
    told = mha_vectors("check", answered, "--claims", claims)
    assert told.exit_code == Code.HOLDS
    assert "listed as failing: MHA-MASK-2" in told.stdout


def test_write_takes_new_and_empty_directories_only(written, tmp_path, mha_vectors):
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("")
    assert mha_vectors("write", tmp_path / "empty", "--level", "smoke", "--profile", "PB16").exit_code == Code.HOLDS
    for place, why in (
        (tmp_path / "mine", "is not empty"),
        (tmp_path / "file", "is not empty"),
        (written, "already holds vectors"),
    ):
        told = mha_vectors("write", place)
        assert told.exit_code == Code.NOT_RUN and why in told.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--level", "all"), "the levels are smoke, core, full"),
        (("--profile", "P8"), "there is no profile 'P8'; the profiles are P64, P32"),
        (("--profile", "PE4M3"), "the catalogue has no case of that dtype"),
    ],
)
def test_write_says_what_there_is(arguments, why, tmp_path, mha_vectors):
    told = mha_vectors("write", tmp_path / "d", *arguments)
    assert told.exit_code == Code.NOT_RUN and why in told.stderr
    assert not Path(tmp_path / "d").exists()
