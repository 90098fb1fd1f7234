"""The guide suffices: a reader that was written from it alone, without a module of this project, conforms in every dtype."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mha_conformance.cases import catalogue
from mha_conformance.cli.codes import Code
from mha_conformance.vectors.arrays import STORED
from mha_conformance.vectors.coverage import why_not
from mha_conformance.vectors.manifest import GUIDE, inputs

TEXT = (GUIDE / "INTERPRETING.md").read_text(encoding="utf-8")
READER = Path(__file__).with_name("vector_reader.py")
STRICT = "strict = true\ndeterminism = 'bit-exact'\n"


def test_the_reader_knows_nothing_of_this_project():
    imported = re.findall(r"^(?:import|from) (\w+)", READER.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(imported) <= {*sys.stdlib_module_names, "numpy"}


@pytest.mark.parametrize(("profile", "level"), [("P32", "smoke"), ("P64", "core"), ("P16", "core"), ("PB16", "core")])
def test_a_reader_written_from_the_guide_conforms(profile, level, tmp_path, mha_vectors):
    """In a process that cannot import us; it answers layers and merges too, and it is strict."""
    directory, claims = tmp_path / "d", tmp_path / "claims.toml"
    claims.write_text(STRICT)
    assert mha_vectors("write", directory, "--level", level, "--profile", profile).exit_code == Code.HOLDS
    subprocess.run([sys.executable, "-I", str(READER), str(directory)], cwd=tmp_path, check=True, timeout=300)
    told = mha_vectors("check", directory, "--claims", claims)
    assert told.exit_code == Code.HOLDS, told.stdout[-3000:]
    assert "there is no function for" not in told.stdout and f"profile {profile}" in told.stdout


def test_each_directory_carries_the_guide_and_the_schema(written):
    for name in ("INTERPRETING.md", "schema.json"):
        assert (written / name).read_bytes() == (GUIDE / name).read_bytes()
    assert "](" not in TEXT, "a link leads nowhere from a directory of vectors"


def rows(heading):
    """The first cells of the table that follows ``heading``."""
    table = TEXT.split(heading, 1)[1].split("\n\n", 2)
    lines = next(part for part in table if part.startswith("|")).splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def test_the_table_of_dtypes_is_that_of_the_code():
    table = {row[0].strip("`"): (row[1], row[2].strip("`").replace("\\", "")) for row in rows("For reading, skip")[0:]}
    assert table == {dtype: (stored, np.dtype(stored).newbyteorder("<").str) for dtype, stored in STORED.items()}


def test_the_guide_names_every_input_option_and_rule():
    options = {name.strip("` ") for row in rows("The lse is $\\log") for name in row[0].split(",")}
    cases = [case for case in catalogue() if not why_not(case)]
    requests = [request for case in cases for request in case.make()]
    attention = {name for request in requests if request.target == "attention" for name in (*inputs(request), *request.options)}
    assert attention == options | {"query", "key", "value"}
    for request in requests:
        for name in (*inputs(request), *request.options):
            assert f"`{name}`" in TEXT or re.fullmatch(r"(output|lse)_\d+", name), name
    assert {row[0].strip("`") for row in rows("## How outputs are judged")} == {case.rule for case in cases}


def test_the_case_to_begin_with_is_right():
    import vector_reader

    query, key, value = np.ones((1, 1, 1)), np.log([[[1.0], [3.0]]]), np.array([[[0.0], [4.0]]])
    with np.errstate(divide="ignore"):
        for given, output, lse in (({}, 3.0, np.log(4)), ({"key_lengths": 1}, 0.0, 0.0), ({"key_lengths": 0}, 0.0, -np.inf)):
            found = vector_reader.attention(query, key, value, given)
            assert np.isclose(found[0], output).all() and np.isclose(found[2], lse).all()
