"""Directories and outputs that are not as they should be: each is an error that says so, and nothing in them is run."""

import json
import os
import struct

import numpy as np
import pytest
import vector_reader

from mha_conformance.cases import catalogue
from mha_conformance.cli.codes import Code

CLAUSES = ("MHA-MASK-2", "MHA-AUX-4", "MHA-HEAD-4", "MHA-EXEC-1", "MHA-VAL-8")
ABSENT = ("MHA-NUM-11/many keys/float32", "MHA-NUM-10/products beyond the half range/float16")


@pytest.fixture(scope="module")
def complete(tmp_path_factory, mha_vectors):
    """A small directory, since each test here spoils a copy: the catalogue is cut down to a few cases for this file."""
    few = [case for case in catalogue() if (case.level == "smoke" and case.clause in CLAUSES) or case.id in ABSENT]
    with pytest.MonkeyPatch.context() as patch:
        for user in ("mha_conformance.vectors.write", "mha_conformance.run.conform"):
            patch.setattr(f"{user}.catalogue", lambda: few)
        directory = tmp_path_factory.mktemp("few") / "d"
        assert mha_vectors("write", directory, "--level", "smoke").exit_code == Code.HOLDS
        vector_reader.main(directory)
        assert mha_vectors("check", directory).exit_code == Code.HOLDS
        yield directory


def first(directory):
    """A call that wants one output."""
    for entry in json.loads((directory / "manifest.json").read_text())["vectors"]:
        if entry["clause"] == "MHA-MASK-2":
            return entry, directory / entry["calls"][0]["folder"]
    raise AssertionError("no such call")


class Trap:
    """Runs a command when it is unpickled."""

    def __init__(self, proof):
        self.proof = str(proof)

    def __reduce__(self):
        return os.mkdir, (self.proof,)


def header(text, version=(1, 0)):
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text


def described(x, text):
    return header(text.ljust(117).encode() + b"\n") + x.tobytes()


def save(x, **options):
    import io

    file = io.BytesIO()
    np.lib.format.write_array(file, x, **options)
    return file.getvalue()


RUNS = "{'descr': __import__('os').mkdir('proof'), 'fortran_order': False, 'shape': (1,), }"
UNREADABLE = {
    "data cut short": (lambda x: save(x)[:-5], "is truncated: "),
    "header cut short": (lambda x: save(x)[:60], "is no .npy file"),
    "empty": (lambda x: b"", "is no .npy file"),
    "text": (lambda x: b"1.0 2.0 3.0\n", "is no .npy file"),
    "raw numbers": (lambda x: x.tobytes(), "is no .npy file"),
    "too long": (lambda x: save(x) + b"\0" * 4, "goes on after its array"),
    "much too long": (lambda x: save(x) + b"\0" * 10_000, "need no more than"),
    "double precision": (lambda x: save(x.astype(np.float64)), "holds '<f8', expected '<f4'"),
    "integers": (lambda x: save(x.astype(np.int32)), "holds '<i4', expected '<f4'"),
    "big-endian": (lambda x: save(x.astype(">f4")), "holds '>f4', expected '<f4'"),
    "a record": (lambda x: save(x.view([("a", "<f4")])), "expected '<f4'"),
    "flat": (lambda x: save(x.reshape(-1)), "has shape ("),
    "an axis too many": (lambda x: save(x[None]), "has shape (1, "),
    "version 3": (lambda x: save(x, version=(3, 0)), "is .npy of version (3, 0)"),
    "a header of 60000 bytes": (lambda x: header(b" " * 60_000), "need no more than"),
    "a header that claims a gigabyte": (lambda x: header(b"", (2, 0))[:8] + struct.pack("<I", 2**30) + save(x), "is no .npy file"),
    "a header of 4000 brackets": (lambda x: header(b"(" * 4000), "is no .npy file"),
    "a header that calls": (lambda x: described(x, RUNS), "is no .npy file"),
    "a negative shape": (lambda x: described(x, "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"), "has shape (-1,)"),
    "an endless shape": (lambda x: described(x, f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**62}, {2**62}), }}"), "has shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_output_that_is_not_the_array_it_should_be(name, answered, mha_vectors, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    entry, place = first(answered)
    spoil, why = UNREADABLE[name]
    path = place / "output.npy"
    path.write_bytes(spoil(np.load(path)))
    told = mha_vectors("check", answered, "--case", entry["id"], "--json", "-")
    assert told.exit_code == Code.FAILS, told.stderr
    (found,) = json.loads(told.stdout)["cases"]
    assert found["status"] == "FAIL"
    assert found["reason"].startswith("an output file cannot be read: 0/output.npy ") and why in found["reason"]
    assert not (tmp_path / "proof").exists()


def test_a_pickle_is_not_loaded(answered, mha_vectors, tmp_path):
    entry, place = first(answered)
    proof = tmp_path / "proof"
    trap = np.empty(1, dtype=object)
    trap[0] = Trap(proof)
    np.save(place / "output.npy", trap, allow_pickle=True)
    told = mha_vectors("check", answered, "--case", entry["id"])
    assert told.exit_code == Code.FAILS and "pickled Python objects, which are never loaded" in told.stdout
    assert not proof.exists()
    np.load(place / "output.npy", allow_pickle=True)
    assert proof.exists(), "the trap would have told"


def test_a_nan_and_an_infinity_where_numbers_are_expected(answered, mha_vectors):
    entry, place = first(answered)
    x = np.load(place / "output.npy")
    for wrong in (np.nan, np.inf):
        np.save(place / "output.npy", np.where(np.arange(x.size).reshape(x.shape) == 1, np.float32(wrong), x))
        told = mha_vectors("check", answered, "--case", entry["id"])
        assert told.exit_code == Code.FAILS
        assert told.stdout.startswith(f"{entry['clause']} FAIL") and f"= {wrong}, expected" in told.stdout


def test_fortran_order_and_another_header_are_read(answered, mha_vectors):
    entry, place = first(answered)
    x = np.load(place / "output.npy")
    for good in (
        save(np.asfortranarray(x)),
        save(x, version=(2, 0)),
        described(x, f"{{'shape': {tuple(x.shape)}, 'fortran_order': False, 'descr': '<f4'}}"),
    ):
        (place / "output.npy").write_bytes(good)
        assert mha_vectors("check", answered, "--case", entry["id"]).exit_code == Code.HOLDS


def edit(directory, change):
    path = directory / "manifest.json"
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def call(found):
    return found["vectors"][0]["calls"][0]


def flip(path):
    """One bit of the last byte."""
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


DIRECTORIES = {
    "no manifest": (lambda d: (d / "manifest.json").unlink(), "has no manifest.json"),
    "no JSON": (lambda d: (d / "manifest.json").write_text("{"), "is no JSON"),
    "no text": (lambda d: (d / "manifest.json").write_bytes(b"\xff\xfe\x00"), "is no JSON"),
    "too deep": (lambda d: (d / "manifest.json").write_text("[" * 10**5), "is no JSON"),
    "a list": (lambda d: (d / "manifest.json").write_text("[]"), "is no manifest of test vectors"),
    "another format": (lambda d: edit(d, lambda m: m.update(format=2)), "is no manifest of test vectors"),
    "another specification": (lambda d: edit(d, lambda m: m.update(spec_version="9.0.0")), "has spec_version '9.0.0', this suite has"),
    "another suite": (lambda d: edit(d, lambda m: m.update(suite_version="9")), "check with that version"),
    "other constants": (lambda d: edit(d, lambda m: m.update(constants="0" * 64)), "has constants"),
    "another dtype": (lambda d: edit(d, lambda m: m.update(dtype="float64")), "has dtype 'float64'"),
    "an unknown profile": (lambda d: edit(d, lambda m: m.update(profile="P8")), "names no profile and level that are known"),
    "a profile that is a list": (lambda d: edit(d, lambda m: m.update(profile=["P32"])), "names no profile and level"),
    "a looser profile": (lambda d: edit(d, lambda m: m.update(profile="PTF32")), "index.txt changed or missing"),
    "an unknown level": (lambda d: edit(d, lambda m: m.update(level="easy")), "does not keep the schema"),
    "a higher level": (lambda d: edit(d, lambda m: m.update(level="core")), "changed or missing"),
    "a vector less": (lambda d: edit(d, lambda m: m["vectors"].pop()), "manifest.json: MHA-"),
    "a vector more": (lambda d: edit(d, lambda m: m["vectors"].append({"id": "mine"})), "manifest.json: mine changed or missing"),
    "a vector that is a number": (lambda d: edit(d, lambda m: m["vectors"].append(7)), "manifest.json: 7"),
    "an id that is a list": (lambda d: edit(d, lambda m: m["vectors"][0].update(id=[])), "changed or missing"),
    "vectors that are none": (lambda d: edit(d, lambda m: m.update(vectors=None)), "does not keep the schema"),
    "a case taken off the list": (lambda d: edit(d, lambda m: m["not_in_files"].pop()), "not_in_files"),
    "another shape": (lambda d: edit(d, lambda m: call(m)["outputs"]["output"].update(shape=[1])), "manifest.json: MHA-"),
    "another rule": (lambda d: edit(d, lambda m: m["vectors"][0].update(rule="bound ")), "manifest.json: MHA-"),
    "no calls": (lambda d: edit(d, lambda m: m["vectors"][0].update(calls=3)), "manifest.json: MHA-"),
    "a path that leaves": (
        lambda d: edit(d, lambda m: call(m)["outputs"]["output"].update(file="../../../etc/passwd")), "manifest.json: MHA-",
    ),
    "an absolute path": (lambda d: edit(d, lambda m: call(m)["inputs"]["query"].update(file="/etc/passwd")), "manifest.json: MHA-"),
    "an input of other numbers": (lambda d: flip(first(d)[1] / "query.npy"), "/0/query.npy changed or missing"),
    "an input cut short": (lambda d: os.truncate(first(d)[1] / "key.npy", 130), "/0/key.npy changed or missing"),
    "an input that is gone": (lambda d: (first(d)[1] / "value.npy").unlink(), "/0/value.npy changed or missing"),
    "an index of other words": (lambda d: (d / "index.txt").write_text("all done\n"), "index.txt changed or missing"),
    "a misspelt output": (
        lambda d: (first(d)[1] / "output.npy").rename(first(d)[1] / "ouput.npy"), "0/ouput.npy; outputs are plain files",
    ),
    "an output that nobody wants": (lambda d: (first(d)[1] / "lse.npy").write_bytes(b""), "0/lse.npy"),
    "a program": (lambda d: (d / "numpy.py").write_text("raise SystemExit('run')"), "numpy.py"),
    "a folder": (lambda d: (d / "cases" / "mine").mkdir(), "cases/mine/"),
    "a folder for a file": (
        lambda d: ((first(d)[1] / "output.npy").unlink(), (first(d)[1] / "output.npy").mkdir()), "0/output.npy/",
    ),
    "a link that leaves": (
        lambda d: ((first(d)[1] / "output.npy").unlink(), (first(d)[1] / "output.npy").symlink_to("/etc/passwd")),
        "0/output.npy (a link)",
    ),
    "a linked folder": (
        lambda d: ((d / "cases").rename(d.parent / "elsewhere"), (d / "cases").symlink_to(d.parent / "elsewhere")), "cases (a link)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_that_is_not_as_it_was_written(name, answered, mha_vectors):
    """Code 2, one line that says what and where, and no verdict."""
    spoil, why = DIRECTORIES[name]
    spoil(answered)
    told = mha_vectors("check", answered)
    assert told.exit_code == Code.NOT_RUN, told.stdout
    assert told.stderr.startswith("mha could not run: ") and why in told.stderr
    assert len(told.stderr) < 1000 and "conform" not in told.stdout


def test_a_pipe_is_not_waited_for(answered, mha_vectors):
    path = first(answered)[1] / "output.npy"
    path.unlink()
    os.mkfifo(path)
    told = mha_vectors("check", answered)
    assert told.exit_code == Code.NOT_RUN and "0/output.npy" in told.stderr


def test_expected_results_and_bounds_are_not_believed(answered, mha_vectors):
    """They may be anything, or gone; values in the manifest that belong to them may change too."""
    entry, place = first(answered)
    np.save(place / "output.npy", np.load(place / "output.npy") + 1)
    (place / "expected.output.npy").write_bytes((place / "output.npy").read_bytes())
    (place / "bound.output.npy").unlink()
    edit(answered, lambda m: [call["outputs"]["output"].pop("bound") for e in m["vectors"] for call in e["calls"]])
    told = mha_vectors("check", answered, "--case", entry["id"])
    assert told.exit_code == Code.FAILS and told.stdout.startswith(f"{entry['clause']} FAIL")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("features = [", "cannot be used"),
        ("features = 3", "cannot be used"),
        ('features = ["masks"]', "unknown features ['masks']"),
        ('feature = ["mask"]', "unknown keys ['feature']"),
        ('profiles = { float32 = "PTF32" }', "the vectors are for P32 in float32"),
        ('dtypes = ["float16"]', "the vectors are for P32 in float32"),
        ('determinism = "mostly"', "determinism 'mostly'"),
    ],
)
def test_a_claims_file_that_cannot_be_used(text, why, answered, mha_vectors, tmp_path):
    claims = tmp_path / "claims.toml"
    claims.write_text(text)
    told = mha_vectors("check", answered, "--claims", claims)
    assert told.exit_code == Code.NOT_RUN and why in told.stderr
    assert mha_vectors("check", answered, "--claims", tmp_path / "none.toml").exit_code == Code.NOT_RUN


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("MHA-MASK-2/nothing", "no case matches MHA-MASK-2/nothing"),
        ("MHA-NUM-11/many keys/float32", "was written for level smoke, which leaves out MHA-NUM-11/many keys/float32"),
        ("MHA-VAL-8/a mask of floats/float32", "no case could be judged: needs a live callable"),
        ("MHA-NUM-10/products beyond the half range/float16", "no case could be judged: float16 has vectors of its own"),
    ],
)
def test_a_case_that_does_not_lie_there(case, why, answered, mha_vectors):
    told = mha_vectors("check", answered, "--case", case)
    assert told.exit_code == Code.NOT_RUN and why in told.stderr


def test_a_report_needs_a_folder(answered, mha_vectors, tmp_path):
    told = mha_vectors("check", answered, "--json", tmp_path / "none" / "r.json")
    assert told.exit_code == Code.NOT_RUN and "there is no folder" in told.stderr


def test_a_place_that_is_no_directory(tmp_path, mha_vectors):
    for place in (tmp_path / "none", tmp_path):
        told = mha_vectors("check", place)
        assert told.exit_code == Code.NOT_RUN and "has no manifest.json" in told.stderr
