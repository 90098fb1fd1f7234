"""The command ``mha trace``: what it prints, what it writes, and its exit codes."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from mha_conformance.cli.app import app
from mha_conformance.cli.codes import Code
from mha_conformance.trace.trace import Agreement
from mha_spec import SPEC_VERSION

CHINESE = "老白 拿起 他的 锅铲"


def mha(*arguments, **environment):
    return CliRunner().invoke(
        app, ["trace", *map(str, arguments)], catch_exceptions=False, env={"COLUMNS": "80", **environment}
    )


@pytest.fixture
def heads(tmp_path):
    file = tmp_path / "heads.npz"
    np.savez(file, **dict.fromkeys("qkv", np.ones((2, 3, 4), np.float32)), tokens=np.array(["锅", "[bold]x", "<i>"]))
    return file


def test_a_sentence_is_shown_in_six_steps():
    told = mha(CHINESE)
    assert told.exit_code == Code.HOLDS
    for words in (
        "untrained", "(h, n, d_k) = (8, 4, 8)", "A_i = softmax(S_i)", "MHA-ATTN-5", "one head", "head 7",
        "8 heads of width 8 cost 135,168 FLOPs, one head of width 64 the same", "within the bound",
    ):  # fmt: skip
        assert words in told.stdout
    assert told.stdout.splitlines()[0] == CHINESE
    assert "\x1b" not in told.stdout


def test_the_same_words_come_again_and_another_seed_says_others():
    assert mha(CHINESE).stdout == mha(CHINESE).stdout != mha(CHINESE, "--seed", 1).stdout


def test_a_narrow_terminal_takes_more_lines():
    narrow = mha(CHINESE, COLUMNS="40").stdout
    assert "   A_i = softmax(S_i)\n   shares" in narrow
    assert len(narrow.splitlines()) > len(mha(CHINESE).stdout.splitlines())


def test_arrays_of_a_file_are_shown_as_they_are_named(heads):
    told = mha("--npz", heads)
    assert told.exit_code == Code.HOLDS
    assert told.stdout.splitlines()[0] == "heads.npz"
    assert "[bold]x" in told.stdout and "no projections to merge" in told.stdout


def test_json_has_every_array():
    record = json.loads(mha(CHINESE, "--json").stdout)
    assert record["spec_version"] == SPEC_VERSION and record["tokens"] == CHINESE.split()
    for step in record["steps"]:
        assert list(np.shape(step["array"])) == step["shape"]
    weights = next(step for step in record["steps"] if step["name"] == "weights")
    np.testing.assert_allclose(np.sum(weights["array"], axis=-1), 1)
    assert record["merged_against_looped"]["within"] is True
    assert record["flops"]["heads"] == record["flops"]["one_head"]


def test_json_has_words_for_what_is_no_number(tmp_path):
    np.savez(tmp_path / "nan.npz", **dict.fromkeys("qkv", np.full((1, 1, 1), np.nan)))
    record = json.loads(mha("--npz", tmp_path / "nan.npz", "--json").stdout, parse_constant=pytest.fail)
    assert record["one_head"]["weights"] == [[["nan"]]]


def test_pictures_are_written(tmp_path):
    told = mha(CHINESE, "--svg", tmp_path / "a.svg", "--html", tmp_path / "a.html")
    assert told.exit_code == Code.HOLDS and "a.svg" in told.stdout and "a.html" in told.stdout
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<svg")
    assert SPEC_VERSION in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert json.loads(mha(CHINESE, "--json", "--svg", tmp_path / "b.svg").stdout)
    assert (tmp_path / "b.svg").is_file()


def test_projections_of_a_file(tmp_path):
    w = np.ones((2, 4, 3))
    np.savez(tmp_path / "w.npz", w_q=w, w_k=w, w_v=w, w_o=np.ones((2, 3, 4)))
    told = mha("a b", "--projections", tmp_path / "w.npz")
    assert told.exit_code == Code.HOLDS
    assert "the projections from the file" in told.stdout and "untrained" not in told.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give a sentence, or --npz FILE"),
        (("",), "without tokens"),
        (("a", "--npz", "{heads}"), "and not both"),
        (("--npz", "{heads}", "--heads", "2", "--no-positions"), "--heads, --no-positions would be ignored"),
        (("a", "--projections", "{heads}"), "w_q, w_k, w_v, w_o missing"),
        (("a", "--projections", "{heads}", "--d-model", "8"), "--d-model would be ignored"),
        (("--npz", "nowhere.npz"), "no file at nowhere.npz"),
        (("a", "--heads", "7"), "MHA-PROJ-10"),
        (("a", "--heads", "0"), "MHA-PROJ-10"),
        (("a", "--d-model", "100000"), "at most 2048"),
        (("a", "--svg", "nowhere/a.svg"), "cannot be written: No such file or directory"),
        (("a", "--html", "."), "cannot be written: Is a directory"),
    ],
)
def test_what_could_not_run(arguments, words, heads):
    told = mha(*(argument.format(heads=heads) for argument in arguments))
    assert told.exit_code == Code.NOT_RUN
    assert words in told.stderr
    assert told.stdout == ""


def test_a_merged_form_beyond_the_bound_does_not_hold(monkeypatch):
    from mha_conformance.trace import trace

    monkeypatch.setattr(trace, "_agreement", lambda *arrays: Agreement(1.0, 2.0, 256, 25, 4))
    told = mha(CHINESE)
    assert told.exit_code == Code.FAILS
    assert "BEYOND the bound" in told.stdout


def test_colours_are_the_terminals_choice(monkeypatch):
    plain = mha(CHINESE, FORCE_COLOR="1", NO_COLOR="1").stdout
    assert "48;2" not in plain and "%" in plain.split("head 7")[1]
    assert "\x1b[" in mha(CHINESE, FORCE_COLOR="1", COLORTERM="truecolor", TERM="xterm").stdout
