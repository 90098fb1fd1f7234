"""A contest on tiny workloads: who is let in, who is thrown out, and that everybody who competes computes the same function."""

from dataclasses import replace

import bench_strangers as strangers
import numpy as np
import pytest

from mha_conformance.bench import child, forms
from mha_conformance.bench.competitor import Competitor
from mha_conformance.bench.contest import contest
from mha_conformance.bench.memory import RESOLUTION, rise
from mha_conformance.bench.options import OPTIONS, PLAIN, competitors
from mha_conformance.bench.peers import DEFAULT, DEFAULT_LAYERS, named
from mha_conformance.bench.workload import ROWS, Heads, Layer
from mha_conformance.run.spawned import Spawned
from mha_spec.numerics import error_ratio

TINY = Heads(1, 2, 40, 4)


def held(*competitors, workload=TINY, rounds=2):
    others = [(c.name, competitors[0].name) for c in competitors[1:]]
    return contest(workload, competitors, others, rounds=rounds, seconds=0.0, size=64)


def alone(make, **options):
    return held(Competitor("stranger", make), **options).measurements[0]


def test_a_contest_from_end_to_end():
    told = []
    workload = Heads(2, 2, 20, 4, causal=True)
    competitors = [named("numpy"), named("naive-numpy"), Competitor("nobody", strangers.honest, ("no_such_module",))]
    found = contest(workload, competitors, [("naive-numpy", "numpy")], rounds=3, seconds=0.0, size=64, progress=told.append)
    numpy, naive, nobody = found.measurements
    for m in (numpy, naive):
        assert (m.status, m.reason) == ("timed", "")
        assert len(m.seconds) == len(m.calls) == len(found.gemm) == 3
        assert min(m.seconds) > 0
        assert len(m.error) == 2 and max(m.error) <= 1
        assert "numpy" in m.libraries and m.settings["blas"]
    assert (nobody.status, nobody.reason, nobody.seconds) == ("not installed", "needs no_such_module", ())
    assert all(g.all > 0 and g.one > 0 for g in found.gemm)
    assert found.flops == 2 * (4 + 4) * (20 * 21 // 2) * 2 * 2
    assert [r.of for r in found.ratios] == ["naive-numpy"]
    assert told[-1] == "round 3 of 3"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (strangers.slightly_wrong, "error/bound is "),
        (strangers.wrong_in_one_number, "NaN or an infinity"),
        (strangers.another_type, "expected float32"),
    ],
)
def test_whoever_is_wrong_never_meets_the_clock(make, reason):
    found = alone(make)
    assert found.status == "wrong"
    assert found.reason.startswith("before the clock started: ")
    assert reason in found.reason
    assert found.seconds == ()


def test_whoever_is_wrong_afterwards_has_no_figures_that_count():
    found = held(named("naive-numpy"), Competitor("forgetful", strangers.forgetful))
    assert found.measurements[1].status == "wrong"
    assert found.measurements[1].reason.startswith("after the clock stopped: error/bound")
    assert found.ratios == ()
    assert found.share(found.measurements[1]) is None


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (strangers.crashing, "crash: the process ended with code 7"),
        (strangers.raising, "error: ArithmeticError: nothing of this kind"),
    ],
)
def test_whoever_fails_is_out_and_says_why(make, reason):
    found = alone(make)
    assert (found.status, found.reason, found.seconds) == ("failed", reason, ())


def test_a_backend_without_a_device_is_not_installed():
    found = held(named("cupy"))
    assert found.measurements[0].status in ("not installed", "timed")
    assert found.measurements[0].status == "timed" or found.gemm == ()


SINGLE = {"onnxruntime", "openvino", "jax"}
"""Peers that compute float64 in float32 on a CPU, or whose own precision there is less; a contest finds them wrong."""


def made(name, workload):
    competitor = named(name)
    for module in competitor.needs:
        pytest.importorskip(module, reason=f"{name} needs {module}")
    output = np.asarray(competitor.make(workload)())
    assert output.dtype == workload.dtype
    return error_ratio(output[..., workload.rows, :], *workload.truth(competitor.profile(workload.dtype))).max()


@pytest.mark.parametrize("name", [*DEFAULT, "reference"])
@pytest.mark.parametrize("workload", [TINY, Heads(2, 1, 17, 4, causal=True), Heads(1, 1, 5, 1, dtype="float64")])
def test_every_competitor_computes_the_function(name, workload):
    if workload.dtype == "float64" and name in SINGLE:
        pytest.skip(f"{name} computes float64 in float32, which its own contest says")
    assert made(name, workload) <= 1


@pytest.mark.parametrize("name", DEFAULT_LAYERS)
@pytest.mark.parametrize("workload", [Layer(2, 3, 20, 4), Layer(1, 2, 3, 2, dtype="float64")])
def test_every_layer_is_the_layer(name, workload):
    assert made(name, workload) <= 1


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_judged_by_its_own_call(name, option):
    (competitor,) = [c for c in competitors(name, Heads(2, 2, 24, 4)) if c.name == option]
    workload = competitor.workload
    output = np.asarray(competitor.make(workload)())
    assert output.dtype == workload.dtype
    assert error_ratio(output[..., workload.rows, :], *workload.truth(competitor.profile(workload.dtype))).max() <= 1
    if option in ("causal", "window", "key_lengths", "segments", "mask"):  # the plain answer would be wrong
        assert workload.visible_share < 1
        plain = np.asarray(competitors(name, Heads(2, 2, 24, 4))[0].make(replace(workload, option=PLAIN))())
        assert error_ratio(plain[..., workload.rows, :], *workload.truth(competitor.profile(workload.dtype))).max() > 1


def test_a_contest_of_options():
    workload = Heads(1, 2, 16, 4)
    some = [c for c in competitors("numpy", workload) if c.name in (PLAIN, "causal", "float16")]
    found = held(*some, workload=workload)
    assert [(m.name, m.status) for m in found.measurements] == [(PLAIN, "timed"), ("causal", "timed"), ("float16", "timed")]
    assert all(g.loop > 0 for g in found.gemm)
    assert found.n == 16


@pytest.mark.parametrize("form", forms.FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("workload", [Layer(2, 3, 20, 4), Layer(1, 2, 3, 2, dtype="float64")])
def test_both_forms_of_the_layer_are_the_layer(form, workload):
    output = np.asarray(form.make(workload)())
    truth = workload.truth(form.profile(workload.dtype))
    assert output.dtype == workload.dtype
    assert error_ratio(output[..., workload.rows, :], *truth).max() <= 1


def test_the_forms_are_paired_within_a_library():
    names = [form.name for form in forms.FORMS]
    assert [name for pair in forms.PAIRS for name in pair] == names
    assert all(of.split()[0] == to.split()[0] for of, to in forms.PAIRS)


def test_the_judged_rows_hold_the_first_and_the_last():
    assert len(Heads(1, 1, 1000, 4).rows) == ROWS
    for n in (1, 5, 16, 1000):
        rows = Heads(1, 1, n, 4).rows
        assert rows[0] == 0 and rows[-1] == n - 1
        assert len(rows) == min(n, ROWS)


def test_the_operations_are_those_of_the_specification():
    assert Heads(1, 8, 4, 64).flops == 32_768
    assert Layer(1, 8, 4, 64).flops == 8_421_376  # MHA-COST-3


def test_a_rise_is_what_a_call_holds():
    """Every page of an array of ones is written, so all of them are resident."""
    result, peak = rise(lambda: np.ones(32 * 2**20, dtype=np.uint8).sum())
    assert result == 32 * 2**20
    if peak is None:
        pytest.skip("this system does not say the highest mark of a process (memory.py)")
    assert abs(peak - 32 * 2**20) <= 4 * RESOLUTION


def test_the_loop_holds_the_scores_of_one_head_and_the_merged_form_those_of_all():
    """What MHA-COST-5 says of the scores; here they are 1 MiB a head, and all else is less than 1 MiB together."""
    held_by = {}
    for form in forms.FORMS:
        process = Spawned(child.weigh, form, Layer(1, 8, 512, 2))
        kind, held_by[form.name] = process.receive(120)
        process.close()
        assert kind == "weighed"
    if None in held_by.values():
        pytest.skip("this system does not say the highest mark of a process (memory.py)")
    for loop, merged in forms.PAIRS:
        assert held_by[loop] < 6 * 2**20
        assert held_by[merged] > 12 * 2**20


def test_a_rise_that_cannot_be_seen_is_not_measured(monkeypatch, tmp_path):
    monkeypatch.setattr("mha_conformance.bench.memory._PROCESS", tmp_path / "none")
    assert rise(lambda: 3) == (3, None)


def _echo(pipe):
    pipe.send(("opened", None))
    while True:
        pipe.send(("echo", pipe.recv()))


def test_a_spawned_process_answers_and_then_does_not():
    process = Spawned(_echo)
    assert process.receive(60) == ("opened", None)
    assert process.ask("word", 60) == ("echo", "word")
    assert process.receive(0.01) == ("timeout", "no answer within 0.01 s")
    process.close()
    assert process.ask("word", 1)[0] == "crash"
