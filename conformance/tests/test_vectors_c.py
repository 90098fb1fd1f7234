"""The C program of the examples: short, plain C99, and it conforms; with a fault planted in it, the right clause is blamed."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from mha_conformance.cli.codes import Code

SOURCE = Path(__file__).parents[1] / "examples" / "attention.c"
CLAIMS = SOURCE.with_suffix(".toml")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

compiled = pytest.mark.skipif(COMPILER is None, reason="no C compiler: none of cc, gcc and clang is on the path")

PLANTED = {
    "MHA-MASK-7": ("causal->x[0] && j > position", "causal->x[0] && j >= position"),
    "MHA-MASK-2": ("if (mask && !at(", "if (mask && at("),
    "MHA-MASK-12": ("j >= of_item(length, b)", "j > of_item(length, b)"),
    "MHA-ATTN-2": ("1 / sqrt((double)d)", "1 / (double)d"),
    "MHA-HEAD-2": ("g / (h / h_kv)", "g % h_kv"),
    "MHA-MASK-15": ("if (!see[j]) continue;  ", "if (!see[j] && total) continue;  "),
    "MHA-AUX-6": (
        "lse->x[row] = shift + log(total)",
        "lse->x[row] = shift + log(total - (sink ? exp(sink->x[g] - shift) : 0))",
    ),
}


def build(source, program):
    told = subprocess.run(
        [COMPILER, "-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic-errors", "-o", str(program), "-x", "c", "-", "-lm"],
        input=source, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr


@pytest.fixture(scope="module")
def smoke(written, tmp_path_factory):
    """Each program writes all of its outputs again, so one copy is enough."""
    return shutil.copytree(written, tmp_path_factory.mktemp("c") / "d")


def judged(source, directory, program, mha_vectors):
    build(source, program)
    subprocess.run([str(program), str(directory)], check=True, timeout=120)
    return mha_vectors("check", directory, "--name", "attention.c", "--claims", CLAIMS, "--json", "-")


def test_it_is_short_and_names_its_clauses():
    source = SOURCE.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 150
    assert max(map(len, source.splitlines())) <= 128
    assert source.count("MHA-") > 20


@compiled
def test_it_conforms_at_core(tmp_path, mha_vectors):
    core = tmp_path / "core"
    assert mha_vectors("write", core, "--level", "core", "--profile", "P32").exit_code == Code.HOLDS
    told = judged(SOURCE.read_text(encoding="utf-8"), core, tmp_path / "attention", mha_vectors)
    assert told.exit_code == Code.HOLDS, told.stdout[-3000:]
    record = json.loads(told.stdout)
    assert record["verdict"].startswith("conforms to MHA ")
    assert "profile P32" in record["verdict"] and record["verdict"].endswith("not claimed: dropout, layer, vjp.")
    assert sum(case["status"] == "PASS" for case in record["cases"]) > 600
    assert record["satisfied"] == {"float32": "P32"}


@compiled
@pytest.mark.parametrize("clause", PLANTED)
def test_a_planted_fault_is_blamed_on_its_clause_first(clause, smoke, tmp_path, mha_vectors):
    source, (right, wrong) = SOURCE.read_text(encoding="utf-8"), PLANTED[clause]
    assert source.count(right) == 1
    told = judged(source.replace(right, wrong), smoke, tmp_path / "attention", mha_vectors)
    assert told.exit_code == Code.FAILS
    assert json.loads(told.stdout)["blame"][0]["clause"] == clause


@compiled
def test_it_stops_at_what_it_does_not_know(written, tmp_path):
    """An option that it would have to ignore, and a dtype that it does not read."""
    build(SOURCE.read_text(encoding="utf-8"), tmp_path / "attention")
    (tmp_path / "cases").symlink_to(written / "cases")
    line = (written / "index.txt").read_text().splitlines()[1]
    for wrong, why in ((f"{line} dropout=0x1p-3", "dropout"), (line.replace("query=float32", "query=bfloat16"), "bfloat16")):
        (tmp_path / "index.txt").write_text(wrong + "\n")
        told = subprocess.run([tmp_path / "attention", tmp_path], capture_output=True, text=True, timeout=60)
        assert told.returncode == 1 and why in told.stderr
