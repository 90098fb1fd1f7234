"""What several test files of this room stand on: a directory of vectors, and the same with the outputs of a device."""

import shutil

import pytest
import vector_reader
from typer.testing import CliRunner

from mha_conformance.cli.app import app
from mha_conformance.cli.codes import Code


@pytest.fixture(scope="session")
def mha_vectors():
    """``mha vectors ...`` in this process."""
    return lambda *arguments: CliRunner().invoke(app, ["vectors", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="session")
def written(tmp_path_factory, mha_vectors):
    """P32 at level smoke, without outputs."""
    directory = tmp_path_factory.mktemp("vectors") / "device"
    told = mha_vectors("write", directory, "--level", "smoke")
    assert told.exit_code == Code.HOLDS, told.stderr
    return directory


@pytest.fixture(scope="session")
def complete(written, tmp_path_factory):
    directory = tmp_path_factory.mktemp("vectors") / "answered"
    shutil.copytree(written, directory)
    vector_reader.main(directory)
    return directory


@pytest.fixture
def answered(complete, tmp_path):
    """A copy to spoil, in which every call has right outputs; it is many files, so it goes afterwards."""
    yield shutil.copytree(complete, tmp_path / "my device")
    shutil.rmtree(tmp_path)
