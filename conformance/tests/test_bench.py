"""What a contest says of itself, with made-up rounds: noise, medians, ratios, JSON, tables, and exit codes. Nothing here is timed."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from mha_conformance.bench import noise
from mha_conformance.bench.gemm import Gemm
from mha_conformance.bench.options import OPTIONS
from mha_conformance.bench.plot import plot
from mha_conformance.bench.record import Contest, Measurement, as_json
from mha_conformance.cli import bench as command
from mha_conformance.cli.app import app
from mha_conformance.cli.codes import Code

MIB = 2**20
QUIET = (Gemm(2, 100e9, 55e9, 100e9), Gemm(2, 90e9, 50e9, 90e9), Gemm(2, 95e9, 50e9, 95e9))
LIBRARIES = {"libraries": {"numpy": "2.0"}, "settings": {"blas": ["openblas 0.3, 2 threads, Zen"]}}


def measured(name, *seconds, peak=8 * MIB, error=(0.1, 0.2)):
    calls = (1,) * len(seconds)
    return Measurement(name, "timed", seconds=seconds, calls=calls, error=error, peak_bytes=peak, **LIBRARIES)


FAST = measured("fast", 1.0, 2.0, 1.0)
SLOW = measured("slow", 2.0, 6.0, 2.5, peak=32 * MIB)


def contest(*measurements, gemm=QUIET, pairs=(("slow", "fast"),)):
    return Contest("a workload", 40 * 10**9, gemm, measurements, pairs)


def mha(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)


@pytest.fixture
def staged(monkeypatch):
    """``mha bench`` with a contest that is already decided."""

    def stage(*found):
        given = []

        def run(workload, competitors, pairs, **options):
            given.append((workload, [c.name for c in competitors], pairs, options))
            return found[(len(given) - 1) % len(found)]

        monkeypatch.setattr(command, "contest", run)
        return given

    return stage


def test_a_quiet_machine():
    assert noise.reasons(QUIET) == ()


def test_rates_that_differ_by_more_than_15_percent_are_noise():
    at_the_border = [Gemm(2, 100e9, 50e9, 100e9), Gemm(2, 85.0e9, 50e9, 85e9)]
    assert noise.reasons(at_the_border) == ()
    (reason,) = noise.reasons([*at_the_border, Gemm(2, 84.0e9, 50e9, 84e9)])
    assert reason == "GEMM rates of the rounds differ by 16%, from 84.0 GFLOP/s to 100.0 GFLOP/s; 15% is the most"


def test_two_threads_that_are_no_faster_than_one_are_noise():
    assert noise.reasons([Gemm(2, 80e9, 50e9, 80e9)]) == ()
    (reason,) = noise.reasons([Gemm(2, 50e9, 50e9, 50e9), Gemm(2, 51e9, 50e9, 51e9), Gemm(2, 50e9, 20e9, 50e9)])
    assert reason == "two threads give 1.02 times the GEMM rate of one; 1.6 is the least"
    many = [Gemm(16, 400e9, 50e9, 60e9)]  # all sixteen are faster, two are not
    assert len(noise.reasons(many)) == 1


def test_one_thread_has_nothing_to_scale():
    assert noise.reasons([Gemm(1, 50e9, 50e9, 0.0)]) == ()


def test_no_round_is_no_silence():
    assert noise.reasons([]) == ("no round was finished",)


def test_medians_spreads_and_ratios_are_of_single_rounds():
    found = contest(FAST, SLOW)
    assert (FAST.median, FAST.spread) == (1.0, 1.0)
    assert (SLOW.median, SLOW.spread) == (2.5, 1.6)
    (ratio,) = found.ratios
    assert (ratio.of, ratio.to, ratio.time, ratio.memory) == ("slow", "fast", 2.5, 4.0)  # the median of 2, 3 and 2.5
    assert found.share(FAST) == 0.4  # the median of 40/100, 20/90 and 40/95


def test_noise_forbids_ratios_of_time_and_leaves_those_of_memory():
    found = contest(FAST, SLOW, gemm=(*QUIET[:2], Gemm(2, 20e9, 10e9, 20e9)))
    (ratio,) = found.ratios
    assert (ratio.time, ratio.memory) == (None, 4.0)
    assert found.share(FAST) is None


@pytest.mark.parametrize("peak", [None, 0, MIB // 2])
def test_memory_that_cannot_be_told_from_nothing_has_no_ratio(peak):
    assert contest(measured("fast", 1.0, 1.0, 1.0, peak=peak), SLOW).ratios[0].memory is None


def test_only_those_who_were_timed_are_divided():
    wrong = Measurement("slow", "wrong", "before the clock started", error=(7.0,))
    assert contest(FAST, wrong).ratios == ()


def test_the_json_holds_every_round_and_nothing_that_json_cannot():
    wrong = Measurement("wrong", "wrong", "before the clock started: all NaN", error=(float("inf"),))
    record = json.loads(json.dumps(as_json([contest(FAST, SLOW, wrong)], Code.FAILS), allow_nan=False))
    assert set(record) == {"format", "machine", "contests", "exit_code"}
    assert (record["format"], record["exit_code"]) == ("mha-bench/1", 1)
    (found,) = record["contests"]
    assert set(found) == {"workload", "n", "flops", "convention", "noise", "gemm", "competitors", "ratios"}
    assert found["gemm"][0] == {"threads": 2, "all": 100e9, "one": 55e9, "two": 100e9, "loop": 0.0}
    assert found["ratios"] == [{"of": "slow", "to": "fast", "time": 2.5, "memory": 4.0}]
    fast, _, last = found["competitors"]
    assert fast["seconds"] == [1.0, 2.0, 1.0]
    assert (fast["median"], fast["gemm_share"], fast["loop_share"], fast["peak_bytes"]) == (1.0, 0.4, None, 8 * MIB)
    assert (last["status"], last["median"], last["error_per_bound"]) == ("wrong", None, [None])
    assert set(fast) == set(last)


def test_a_quiet_contest_is_a_table_with_ratios(staged):
    staged(contest(FAST, SLOW))
    told = mha("numpy", "naive-numpy", "--lengths", "64")
    assert told.exit_code == Code.HOLDS
    lines = told.stdout.splitlines()
    assert lines[0] == "a workload, 40.000 GFLOP (MHA-COST-2: visible)"
    assert lines[1].split("  ")[0] == ""
    assert lines[2].split() == ["fast", "1000.000", "100%", "40%", "8.0", "2.0e-01"]
    assert "slow / fast: 2.50 times the time, 4.00 times the extra memory" in lines
    assert "numpy 2.0, openblas 0.3, 2 threads, Zen" in lines


def test_in_noise_there_are_rounds_and_a_reason_and_no_ratio(staged):
    staged(contest(FAST, SLOW, gemm=(*QUIET[:2], Gemm(2, 20e9, 10e9, 20e9))))
    told = mha("numpy", "--lengths", "64")
    assert told.exit_code == Code.NOT_RUN
    lines = told.stdout.splitlines()
    assert lines[2].split() == ["fast", "1000.000", "2000.000", "1000.000", "8.0", "2.0e-01"]
    assert lines[4].split() == ["GEMM,", "GFLOP/s", "100.0", "90.0", "20.0"]
    assert "slow / fast: 4.00 times the extra memory" in lines
    assert "no ratio of times: GEMM rates of the rounds differ by 80%" in told.stdout
    assert "times the time" not in told.stdout


WRONG = Measurement("slow", "wrong", "before the clock started: error/bound is 12", error=(12.0,))
FAILED = Measurement("slow", "failed", "crash: the process ended with code 7")
ABSENT = Measurement("slow", "not installed", "needs no_such_module")


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (contest(FAST, SLOW), Code.HOLDS),
        (contest(FAST, pairs=()), Code.HOLDS),
        (contest(FAST, WRONG), Code.FAILS),
        (contest(FAST, WRONG, gemm=()), Code.FAILS),
        (contest(FAST, SLOW, gemm=()), Code.NOT_RUN),
        (contest(FAST, SLOW, FAILED), Code.NOT_RUN),
        (contest(FAST, ABSENT), Code.NOT_RUN),  # nothing is left to compare with
        (contest(FAST, SLOW, ABSENT), Code.HOLDS),
        (contest(ABSENT, pairs=()), Code.NOT_RUN),
    ],
)
def test_exit_codes(found, code):
    assert command.exit_code([found]) == code
    assert command.exit_code([contest(FAST, SLOW), found]) == code


@pytest.mark.parametrize("out", [WRONG, FAILED, ABSENT])
def test_whoever_is_out_is_named_with_the_reason(out, staged):
    staged(contest(FAST, out))
    assert f"slow: {out.status}, {out.reason}" in mha("numpy").stdout.splitlines()


def test_the_jobs_have_defaults_of_their_own(staged):
    given = staged(contest(FAST, SLOW))
    mha("--json")
    assert [workload.label for workload, *_ in given] == [f"attention (1, 8, {n}, 64) float32" for n in (512, 1024)]
    _, names, pairs, _ = given[0]
    assert names == ["numpy", "torch", "torch-sdpa", "onnxruntime", "openvino", "jax", "naive-numpy"]
    assert pairs == tuple((name, "numpy") for name in names[1:])
    given.clear()
    told = mha("--seed-article")
    (workload, names, pairs, _), *others = given
    assert not others
    assert workload.label == "layer of 8 heads on (8, 512, 512) float32"
    assert names == ["numpy loop", "numpy merged", "torch loop", "torch merged"]
    assert "the article's own figures, loop / merged: 4.0 times the time, 2.0 times the memory" in told.stdout
    given.clear()
    mha("--layer")
    assert [(workload.label, names) for workload, names, *_ in given] == [
        ("layer of 8 heads on (8, 512, 512) float32", ["numpy", "torch", "torch-mha"])
    ]
    given.clear()
    mha("torch", "--options", "--json")
    assert [(workload.label, names, pairs) for workload, names, pairs, _ in given] == [
        ("attention (1, 8, 1024, 64) float32", list(OPTIONS), tuple((name, "plain") for name in list(OPTIONS)[1:]))
    ]


def test_what_is_asked_is_what_is_run(staged):
    given = staged(contest(FAST, SLOW))
    mha("torch-sdpa", "numpy", "--lengths", "7,9", "--batch", "2", "--heads", "3", "--d", "5", "--causal", "--dtype", "float64")
    labels = [workload.label for workload, *_ in given]
    assert labels == [f"attention (2, 3, {n}, 5) float64, causal" for n in (7, 9)]
    assert given[0][1:3] == (["torch-sdpa", "numpy"], (("numpy", "torch-sdpa"),))
    given.clear()
    mha("numpy", "--rounds", "3", "--seconds", "0")
    assert given[0][3]["rounds"] == 3 and given[0][3]["seconds"] == 0


def test_the_json_is_all_that_standard_output_holds(staged):
    staged(contest(FAST, SLOW))
    told = mha("numpy", "--lengths", "64", "--json")
    record = json.loads(told.stdout)
    assert record["exit_code"] == told.exit_code == Code.HOLDS
    assert {"spec_version", "package_version"} <= set(record)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nobody",), "nobody is called 'nobody'; known are cupy, numpy, "),
        (("--lengths", "many"), "expected numbers of at least 1"),
        (("--lengths", "0"), "expected numbers of at least 1"),
        (("--dtype", "float16"), "expected one of float32, float64"),
        (("--rounds", "0"), "expected at least 1"),
        (("--batch", "0"), "expected at least 1"),
        (("--seed-article", "numpy"), "takes no names"),
        (("--seed-article", "--causal"), "no --causal"),
        (("--options", "--causal"), "no --causal"),
        (("--options", "--layer"), "expected one of them"),
        (("--options", "numpy", "torch"), "takes at most 1"),
        (("--layer", "torch-sdpa"), "torch-sdpa is no layer"),
        (("torch-mha",), "torch-mha is a layer"),
        (("--svg", "no-such-folder/plot.svg"), "there is no folder no-such-folder"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, said):
    told = mha(*arguments)
    assert told.exit_code == Code.NOT_RUN
    assert said in told.stderr


LOOPED = tuple(replace(g, loop=0.8 * g.all) for g in QUIET)


def test_the_bare_loop_is_a_column_of_its_own(staged):
    found = contest(FAST, SLOW, gemm=LOOPED)
    assert found.loop_share(FAST) == pytest.approx(0.5)  # 40 % of GEMM, which is 80 % of itself
    staged(found)
    lines = mha("numpy").stdout.splitlines()
    assert "of GEMM  of bare loop  extra MiB" in lines[1]
    assert lines[2].split() == ["fast", "1000.000", "100%", "40%", "50%", "8.0", "2.0e-01"]
    assert contest(FAST, gemm=(*LOOPED[:2], QUIET[2])).loop_share(FAST) is None


def test_options_stand_beside_the_share_of_pairs_that_they_leave_visible(staged):
    staged(contest(replace(FAST, name="plain"), replace(SLOW, name="causal"), gemm=LOOPED, pairs=(("causal", "plain"),)))
    lines = mha("--options", "--lengths", "4").stdout.splitlines()
    assert "visible" in lines[1] and "of GEMM" not in lines[1]
    assert lines[3].split() == ["causal", "2500.000", "160%", "62%", "32.0", "2.0e-01"]  # 10 of 16 pairs
    assert "causal / plain: 2.50 times the time, 4.00 times the extra memory" in lines


def drawn(*contests):
    root = ElementTree.fromstring(plot(contests))
    return root, "".join(root.itertext())


def test_a_plot_shows_speed_and_memory_against_length():
    long = replace(contest(FAST, SLOW), workload="another", n=2048)
    root, text = drawn(replace(contest(FAST, SLOW), n=512), long)
    assert "a workload to another" in text
    assert "fast 40% at 512 tokens, 40% at 2048 tokens" in text
    lines = root.findall(".//{*}polyline")
    assert len(lines) == 4  # two competitors in two diagrams
    assert [len(line.get("points").split()) for line in lines] == [2] * 4
    for line in lines[:2]:  # a share of 40 % stands at 60 % of the height from above
        assert all(0 <= float(y) <= 240 for _, y in re.findall(r"(\S+),(\S+)", line.get("points")))
    assert lines[0].get("points").split()[0] == "0.0,144.0"


def test_a_plot_of_noise_has_no_speed_and_says_why():
    noisy = contest(FAST, SLOW, gemm=(*QUIET[:2], Gemm(2, 20e9, 10e9, 20e9)))
    root, text = drawn(replace(noisy, n=512))
    assert "GEMM rates of the rounds differ by 80%" in text
    assert len(root.findall(".//{*}polyline")) == 2  # memory does not depend on noise


def test_a_name_is_text_and_no_markup_in_a_plot():
    root, text = drawn(replace(contest(measured("<b>&", 1.0, 1.0, 1.0)), n=1))
    assert "<b>&" in text and root.find(".//{*}b") is None


def test_the_plot_is_written_where_it_is_wanted(staged, tmp_path):
    staged(replace(contest(FAST, SLOW), n=512))
    mha("numpy", "--svg", str(tmp_path / "plot.svg"))
    assert (tmp_path / "plot.svg").read_text(encoding="utf-8").startswith("<svg")
