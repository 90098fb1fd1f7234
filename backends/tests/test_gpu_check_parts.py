"""The parts of ``mha gpu-check`` on devices that are played: golden data on the emulator, speeds with a clock of our own."""

import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from cupy_machine import Machine, fake
from emulator import golden as emulated
from emulator.compiler import missing

from mha_conformance.gpu import contestants, golden, primitives, rates, sanitizer, speed, suite
from mha_conformance.gpu.rows import Row


def test_the_golden_data_are_what_the_emulator_gives(machine):
    """To write them anew: PYTHONPATH=conformance python conformance/emulator/golden.py"""
    np.testing.assert_array_equal(emulated.computed(), golden.golden())


def test_the_golden_data_say_what_each_primitive_should_give():
    """Beside the emulator: what NumPy says of the same inputs."""
    held = dict(
        zip(
            (p.name for p in golden.PRIMITIVES),
            np.split(golden.golden(), np.cumsum([p.words for p in golden.PRIMITIVES])[:-1]),
            strict=True,
        )
    )
    x = golden.inputs()
    matrices = x[:128].view("float16").reshape(4, 8, 8)
    lane = np.arange(32)
    for k in range(4):
        np.testing.assert_array_equal(
            held["load_matrices"][k].copy().view("float16").reshape(8, 4, 2).reshape(8, 8), matrices[k]
        )
        np.testing.assert_array_equal(held["load_transposed"][k].copy().view("float16").reshape(8, 8), matrices[k].T)
    factor_a = np.block([[matrices[0], matrices[2]], [matrices[1], matrices[3]]]).astype("float32")
    factor_b = np.concatenate([matrices[0], matrices[1]]).astype("float32")
    sums = factor_a @ factor_b
    for k in range(4):
        got = held["multiply_add of float16"][k].copy().view("float32")
        np.testing.assert_array_equal(got, k + 1 + sums[lane // 4 + 8 * (k // 2), 2 * (lane % 4) + k % 2])
    floats = x[256:].view("float32")
    with np.errstate(all="ignore"):
        pairs = np.stack([floats[:32], floats[32:]], 1).astype("float16").view("uint32").reshape(32)
    np.testing.assert_array_equal(held["pair_of float16"][0], pairs)
    power = held["power_of_two"][0].copy().view("float32")
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(power, np.exp2(floats[:32]), rtol=1e-6)
    assert power[6] == 0
    for bit in range(5):
        np.testing.assert_array_equal(held["exchanged"][bit], x[256:288][lane ^ (1 << bit)])
    np.testing.assert_array_equal(held["from_lane"][0], x[31 - lane])


def test_primitives_hold_on_the_emulator(machine):
    rows = list(primitives.on(machine.cuda))
    assert [row.what for row in rows] == list(primitives.ROWS)
    assert {row.status for row in rows} == {"HOLDS"}


WRONG = {
    "fragments": (
        "multiply_add(element(), c, a, b[0], b[1]);", "multiply_add(element(), c, a, b[1], b[0]);",
        {"multiply_add of float16", "multiply_add of bfloat16"},
    ),
    "operands": ("pair_of(bfloat16(), x, y)", "pair_of(bfloat16(), y, x)", {"pair_of bfloat16"}),
    "accuracy": ("power_of_two(x)", "power_of_two(x + 0x1p-18f)", {"power_of_two"}),
    "a wait": ("await_copies<1>();", "await_copies<2>();", {"copy_16, the second group"}),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "wrong"), WRONG.values(), ids=WRONG.keys())
def test_a_primitive_that_is_wrong_is_named(backend_package, old, new, wrong):
    if why := missing():
        pytest.skip(f"no kernel is run here: {why}")

    def edited(source):
        assert source.count(old) == 1
        return source.replace(old, new)

    rows = list(primitives.on(Machine(edit=edited).cuda))
    assert {row.what for row in rows if row.status == "FAILS"} >= wrong - {"multiply_add of bfloat16"} or old.startswith(
        "multiply"
    )
    assert {row.what for row in rows if row.status == "FAILS"} == wrong
    assert all("words, first word" in row.why for row in rows if row.status == "FAILS")


@pytest.fixture
def cupy(machine, monkeypatch):
    """The fake CuPy with what speeds need of it."""
    monkeypatch.setitem(sys.modules, "cupy", machine.cupy)
    machine.cupy.ones = lambda shape, dtype: np.ones(shape, dtype)
    machine.cupy.matmul = np.matmul
    machine.cupy.copyto = np.copyto
    return machine.cupy


def one_second(work):
    work()
    return 1.0


SMALL = (speed.Workload(1, 2, 20, 20, 16, True), speed.Workload(1, 2, 1, 30, 16))


def fused(machine):
    return lambda *given: contestants.of_api(machine.api(), "fused", *given)


def test_who_is_right_is_timed(machine, cupy):
    rows = list(speed.contest(SMALL, False, one_second, {"fused": fused(machine)}))
    assert [row.status for row in rows] == ["MEASURED", "MEASURED"]
    assert [row.unit for row in rows] == ["TFLOP/s", "TB/s"]
    assert rows[0].value == 4 * 2 * 20 * 20 * 0.5 * 16 / 1e12
    assert rows[1].value == 2 * 2 * 2 * 30 * 16 / 1e12


def test_who_is_wrong_is_not_timed(machine, cupy):
    def broken(*given):
        work = fused(machine)(*given)
        return work._replace(again=lambda: pytest.fail("it was timed"), result=lambda: work.result() + np.float16(0.25))

    (row,) = speed.contest(SMALL[:1], False, one_second, {"fused": broken})
    assert row.status == "FAILS" and row.value > 1 and row.why == "it is wrong, and not timed"


def test_who_cannot_take_part_is_not_run_and_says_why(machine, cupy):
    """cuda-tile is not installed here, this torch has no CUDA, and d = 512 is not for the fused kernel."""
    names = {name: contestants.CONTESTANTS[name] for name in ("torch flash", "torch cudnn")}
    rows = list(speed.contest(SMALL[:1], True, one_second, names))
    wide = list(speed.contest((speed.Workload(1, 1, 4, 4, 512),), False, one_second, {"fused": fused(machine)}))
    assert {row.status for row in rows + wide} == {"NOT RUN"}
    assert {row.why for row in rows} == {"this torch is not built for CUDA"}
    assert "d_k = 512 is above 256" in wide[0].why


def test_gradients_are_held_to_their_bound(cupy):
    workload = SMALL[0]
    arrays = speed.drawn(workload)
    reference = importlib.import_module("mha_backends.reference")
    q, k, v, g = (np.array(x).astype("float64") for x in arrays)
    right = reference.attention_vjp(q, k, v, g, is_causal=True).query
    assert speed.error(workload, arrays, right, True) < 1e-3
    assert speed.error(workload, arrays, right * 1.5, True) > 1


def test_rates(cupy):
    gemm, copy = rates.run(one_second, side=8, size=16)
    assert (gemm.status, gemm.value) == ("MEASURED", 2 * 8**3 / 1e12)
    assert (copy.status, copy.value) == ("MEASURED", 32 / 1e12)


def test_the_clock_takes_the_median_of_events(cupy):
    clock = importlib.import_module("mha_conformance.gpu.clock")
    times = iter(range(100))

    class Event:
        def record(self):
            self.at = next(times)

        def synchronize(self):
            pass

    cupy.cuda.Event, cupy.cuda.get_elapsed_time = Event, lambda begin, end: end.at - begin.at
    calls = []
    assert clock.on_device(lambda: calls.append(1)) == 1e-3
    assert len(calls) == clock.REPEATS + clock.WARM


@pytest.mark.parametrize(
    ("code", "said", "status"),
    [
        (0, "========= ERROR SUMMARY: 0 errors", "HOLDS"),
        (9, "========= ERROR SUMMARY: 3 errors", "FAILS"),
        (9, "========= RACECHECK SUMMARY: 2 hazards displayed", "FAILS"),
        (1, "no such tool", "CRASHED"),
        (0, "", "CRASHED"),
    ],
)
def test_the_sanitizer_must_have_looked(code, said, status):
    assert sanitizer.told("memcheck", code, said).status == status


def test_without_the_sanitizer(monkeypatch):
    monkeypatch.setattr(sanitizer.shutil, "which", lambda name: None)
    assert list(sanitizer.run()) == [Row(tool, why="compute-sanitizer is not on the path") for tool in sanitizer.TOOLS]


def test_the_small_calls_of_the_sanitizer(machine, monkeypatch):
    api = machine.api()
    monkeypatch.setattr("mha_core.load", lambda name: api)
    api.backend.from_host(np.zeros(1), "float16")
    sanitizer.small_calls()
    assert len([name for name, *_ in machine.launches if name == "fused_forward"]) >= 6


def test_what_the_suite_says_in_rows():
    cases = [{"status": status} for status in ("PASS", "PASS", "FAIL", "NOT_RUN", "CRASH")]
    rows = list(suite.told({"cases": cases, "verdict": "does not conform"}, 1))
    assert [row.what for row in rows] == list(suite.ROWS)
    assert [(row.status, row.value) for row in rows] == [("FAILS", None), ("MEASURED", 2), ("FAILS", 2), ("MEASURED", 1)]


def test_the_device_is_named(cupy, monkeypatch):
    device = importlib.import_module("mha_conformance.gpu.device")
    cupy.cuda.runtime.getDeviceProperties = lambda at: {"name": b"a chip", "major": 9, "minor": 0, "totalGlobalMem": 2**34}
    cupy.cuda.runtime.driverGetVersion = cupy.cuda.runtime.runtimeGetVersion = lambda: 13000
    cupy.cuda.Device, cupy.cuda.nvrtc = lambda: SimpleNamespace(id=0), SimpleNamespace(getVersion=lambda: (13, 0))
    rows = {row.what: row for row in device.run()}
    assert list(rows) == list(device.ROWS)
    assert rows["device"].why == "a chip" and rows["memory"].value == 16 and rows["cuda-tile"].status == "NOT RUN"
    assert device.missing() == ""


def test_a_device_that_is_missing(backend_package, monkeypatch):
    device = importlib.import_module("mha_conformance.gpu.device")
    assert fake is not None
    monkeypatch.setitem(sys.modules, "cupy", Machine(has_device=False).cupy)
    assert device.missing() == "no CUDA device or no driver"
