"""The command ``mha weights``: what it writes is what was there, and what it cannot place it refuses."""

import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from mha_backends.torch import MultiHeadAttention
from mha_conformance.cli.app import app
from mha_conformance.cli.codes import Code
from mha_core.weights import FORMATS


def mha(*arguments):
    told = CliRunner().invoke(app, ["weights", *map(str, arguments)], catch_exceptions=False, env={"COLUMNS": "200"})
    return told.exit_code, told.stdout, told.stderr


@pytest.fixture
def checkpoint(tmp_path):
    """Two layers of torch's module in one file, and something beside the second."""
    torch.manual_seed(0)
    arrays = {}
    for i in (0, 1):
        state = torch.nn.MultiheadAttention(8, 2).state_dict()
        arrays |= {f"layer.{i}.attn.{name}": x.numpy() for name, x in state.items()}
    arrays["layer.1.attn.norm.weight"] = np.ones(8, np.float32)
    file = tmp_path / "model.safetensors"
    save_file(arrays, file)
    return file, arrays


def test_formats_are_listed():
    code, said, _ = mha("formats")
    assert code == Code.HOLDS
    for name in FORMATS:
        assert name in said
    assert "--heads, --kv-heads" in said


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_there_and_back_through_files(checkpoint, tmp_path, suffix):
    source, arrays = checkpoint
    middle, end = tmp_path / f"middle{suffix}", tmp_path / "end.safetensors"
    code, said, _ = mha(
        "convert", source, middle, "--from", "torch-mha", "--to", "hf-bert", "--heads", 2, "--prefix", "layer.0.attn.",
        "--to-prefix", "attention.",
    )  # fmt: skip
    assert code == Code.HOLDS and "attention.self.query.weight" in said and "(8, 8)" in said
    found = load_file(middle) if suffix == ".safetensors" else dict(np.load(middle))
    np.testing.assert_array_equal(found["attention.self.key.weight"], arrays["layer.0.attn.in_proj_weight"][8:16])
    code, _, _ = mha("convert", middle, end, "--from", "hf-bert", "--to", "torch-mha", "--heads", 2, "--prefix", "attention.")
    assert code == Code.HOLDS
    back = load_file(end)
    assert set(back) == {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}
    for name, x in back.items():
        np.testing.assert_array_equal(x, arrays[f"layer.0.attn.{name}"])


def test_bfloat16_stays_bfloat16(tmp_path):
    ours = MultiHeadAttention(8, 4, n_kv_heads=2, d_k=16)
    arrays = {k: x.numpy().astype(ml_dtypes.bfloat16) for k, x in ours.state_dict().items()}
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file(arrays, source)
    formats = ("--from", "mha-core", "--to", "hf-llama", "--heads", 4, "--kv-heads", 2)
    assert mha("convert", source, target, *formats)[0] == Code.HOLDS
    assert load_file(target)["k_proj.weight"].tobytes() == arrays["W_K.weight"].tobytes()
    code, _, said = mha("convert", source, tmp_path / "b.npz", *formats)
    assert code == Code.NOT_RUN and "bfloat16" in said and not (tmp_path / "b.npz").exists()


PREFIX = ("--prefix", "layer.1.attn.")
REFUSED = [
    (("--from", "torch-mha", "--to", "hf-bert", "--heads", 2, *PREFIX), "'norm.weight'"),
    (("--from", "torch-mha", "--to", "hf-bert", "--heads", 2, *PREFIX, "--leave-out", "norm"), "'norm' to leave out"),
    (("--from", "torch-mha", "--to", "hf-bert", "--heads", 2, "--prefix", "layer.7."), "layer.7."),
    (("--from", "torch-mha", "--to", "hf-bert", "--prefix", "layer.0.attn."), "torch-mha with nothing; expected heads"),
    (("--from", "torch-mha", "--to", "hf-bert", "--heads", 2, "--kv-heads", 2, "--prefix", "layer.0.attn."), "kv_heads"),
    (("--from", "torch-mha", "--to", "hf-bert", "--heads", 3, "--prefix", "layer.0.attn."), "3 heads"),
    (("--from", "hf-bert", "--to", "torch-mha", "--heads", 2, "--prefix", "layer.0.attn."), "'self.query.weight'"),
    (("--from", "torch", "--to", "hf-bert"), "no format 'torch'"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_what_cannot_be_placed_is_refused(checkpoint, tmp_path, arguments, words):
    target = tmp_path / "out.npz"
    code, said, why = mha("convert", checkpoint[0], target, *arguments)
    assert code == Code.NOT_RUN and words in why and not said and not target.exists()


def test_what_is_left_out_by_name_is_left_out(checkpoint, tmp_path):
    told = mha("convert", checkpoint[0], tmp_path / "out.npz", *REFUSED[0][0], "--leave-out", "norm.weight")
    assert told[0] == Code.HOLDS


def test_files_that_cannot_be_used(checkpoint, tmp_path, monkeypatch):
    formats = ("--from", "torch-mha", "--to", "hf-bert", "--heads", 2, "--prefix", "layer.0.attn.")
    source, broken, lone = checkpoint[0], tmp_path / "broken.safetensors", tmp_path / "lone.npz"
    broken.write_bytes(b"no header")
    with lone.open("wb") as stream:
        np.save(stream, np.ones(3))
    out = tmp_path / "out.npz"
    for given, target, words in (
        (tmp_path / "none.npz", out, "no file"),
        (tmp_path / "model.bin", out, ".safetensors or .npz"),
        (source, tmp_path / "out.pt", ".safetensors or .npz"),
        (source, source, "there already"),
        (source, tmp_path / "no" / "out.npz", "no folder"),
        (broken, out, "cannot be read"),
        (lone, out, "one array"),
    ):
        code, _, why = mha("convert", given, target, *formats)
        assert code == Code.NOT_RUN and words in why
    monkeypatch.setitem(sys.modules, "safetensors", None)
    code, _, why = mha("convert", source, out, *formats)
    assert code == Code.NOT_RUN and "pip install 'mha-core[weights]'" in why
