"""A test of the tests: each bug planted into a fused kernel is seen, and the kernel without it is not accused."""

import mmap
import re
from collections import Counter

import numpy as np
import pytest
from cupy_gradients import bounds_of, factors_of, forget, launches_of, with_grad, worst
from cupy_machine import TYPES, fake, formula, operands, wide
from emulator.arrays import Array, fake_cupy
from emulator.launches import SCHEDULES, Fault
from planted import BACKWARD_BUGS, BUGS

from mha_core import Dropout
from mha_spec.numerics import PROFILES, attention_bound, error_ratio

RIGHT = "right"
DROPOUT = Dropout(0.4, 2**40 + 7, head_start=7, query_start=3, key_start=2**33 + 2)
NORESERVE = 0x4000  # Linux: only the pages that are touched count. The module mmap has no name for it before Python 3.13


class Question:
    """A call: its launches in their order, the memory that they read and write, and whether what comes out is right."""

    def seen(self, launches):
        """What comes of these launches under all schedules."""
        try:
            right = Counter(self.is_right(launches, schedule) for schedule in SCHEDULES)
        except Fault:
            return "fault"
        return RIGHT if not right[False] else "sometimes wrong" if right[True] else "wrong"


class Forward(Question):
    """A call of ``attention``."""

    def __init__(self, machine, kind, q, k, v, **options):
        kept, running = [], machine.cuda
        machine.cuda = type(machine.cuda)(fake_cupy(kept.append), machine.cuda.cublas)
        q, k, v = (x if isinstance(x, Array) else fake(x, TYPES[kind]) for x in (q, k, v))
        given = {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        self.result = machine.api().attention(q, k, v, **given, return_lse=True)
        machine.cuda = running
        self.launches = kept
        self.memory = [q, k, v, self.result.output, self.result.lse, *(x for x in given.values() if isinstance(x, np.ndarray))]
        equal = {name: x for name, x in options.items() if name not in ("bias", "sink_logits", "dropout")}
        if "bias" in options:
            equal["bias"] = np.where(options["bias"] == -np.inf, -np.inf, 0.0)
        self.bounds = attention_bound(
            wide(q), wide(k), wide(v), PROFILES["PB16" if kind == "bfloat16" else "P16"], scale=q.shape[-1] ** -0.5,
            bias=wide(options.get("bias")), visible=formula(*(np.zeros(x.shape) for x in (q, k, v)), **equal)[1] > 0,
            sink=wide(options.get("sink_logits")), factors=factors_of(q, k, v, options.get("dropout")),
        )  # fmt: skip

    def is_right(self, launches, schedule):
        for x in self.result[:3:2]:
            x.reshape(-1).view("uint8")[...] = 255
        for launch in launches:
            launch.run(schedule)
        truth = self.bounds.truth
        output = error_ratio(wide(self.result.output), truth.output, self.bounds.output)
        lse = error_ratio(wide(self.result.lse), truth.lse, self.bounds.lse)
        return max(output.max(initial=0), lse.max(initial=0)) <= 1


class Backward(Question):
    """A call of ``attention_vjp``, whose forward has been."""

    def __init__(self, machine, kind, *arrays, **options):
        self.launches, self.memory, self.found = launches_of(machine, kind, *arrays, **options)
        drop = options.pop("dropout", None)
        self.bounds = bounds_of(kind, *self.memory[:4], options, factors_of(*self.memory[:3], drop))

    def is_right(self, launches, schedule):
        forget(self.found)
        for launch in launches:
            launch.run(schedule)
        return worst(self.found, self.bounds) <= 1


@pytest.fixture
def posed(machine):
    """The launches by name; each is hard in its own way."""
    rng = np.random.default_rng(3)

    def pose(name):
        if name == "full":
            sizes = {"batch": (), "n": 70, "m": 200, "d_k": 24, "d_v": 40}
            return Forward(machine, "float16", *operands(rng, **sizes), sink_logits=np.array([1.0, 2.0, -np.inf, 0.5]))
        if name == "loud sink":
            return Forward(machine, "float16", *operands(rng, batch=(), n=3), sink_logits=np.full(4, 500.0))
        if name == "bfloat16":
            return Forward(machine, "bfloat16", *operands(rng, batch=(), n=3))
        if name == "position":  # rows of which some see nothing, and some nothing of the block's first tile; odd strides
            sizes = {"batch": (), "h": 1, "h_kv": 1, "n": 100, "m": 150, "d_k": 5, "d_v": 7}
            return Forward(machine, "float16", *operands(rng, **sizes), window=(20, 1), query_offset=65)
        if name == "pair":  # NaN in values that some rows see and others do not; low scores
            q, k, v = operands(rng, n=70, m=75)
            v[..., 3, 1] = v[..., 70, 2] = np.nan
            mask = np.arange(70 * 75).reshape(70, 75) % 7 != 0
            return Forward(machine, "float16", q, k, v, mask=mask, bias=np.full((1, 75), -100000.0, "float32"))
        if name == "dropout":
            return Forward(machine, "float16", *operands(rng, n=10, m=30), dropout=DROPOUT)
        assert name == "far"
        return far_apart(machine, rng)

    return pose


def far_apart(machine, rng):
    """Keys that lie 4 GiB apart, in memory that nobody but them touches."""
    m, d = 3, 8
    reserved = mmap.mmap(-1, (m - 1) * 2**32 + 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    far = np.ndarray((1, m, d), "float16", reserved, strides=(0, 2**32, 2))
    far[...] = rng.standard_normal((1, m, d))
    q = rng.standard_normal((1, 2, d))
    return Forward(machine, "float16", q, far.view(Array), rng.standard_normal((1, m, d)))


@pytest.fixture
def posed_backward(machine):
    """The same of the gradients."""
    rng = np.random.default_rng(4)

    def pose(name):
        if name == "full":
            arrays = with_grad(rng, batch=(), n=70, m=100, d_k=12, d_v=16)
            return Backward(machine, "float16", *arrays, grad_lse=rng.standard_normal((4, 70)).astype("float32"))
        if name == "position":  # rows of which some see nothing, and tiles that nobody sees
            arrays = with_grad(rng, batch=(), h=1, h_kv=1, n=100, m=150, d_k=5, d_v=7)
            lse, sinks = rng.standard_normal((1, 100)).astype("float32"), np.ones(1, "float32")
            return Backward(machine, "float16", *arrays, window=(20, 1), query_offset=-40, grad_lse=lse, sink_logits=sinks)
        if name == "pair":  # NaN in a row and in a key, which some see and others do not
            q, k, v, g = with_grad(rng, n=70, m=75)
            g[0, 0, 3, 1] = q[1, 2, 5, 0] = k[0, 1, 40, 2] = np.nan
            mask = rng.random((2, 4, 70, 75)) < 0.4
            bias = rng.standard_normal((70, 75)).astype("float32")
            return Backward(machine, "float16", q, k, v, g, mask=mask, bias=bias, softcap=1.0)
        if name == "dropout":
            return Backward(machine, "float16", *with_grad(rng, n=10, m=30), dropout=DROPOUT)
        if name == "bias":
            mask, bias = rng.random((70, 75)) < 0.4, rng.standard_normal((1, 75)).astype("float32")
            return Backward(machine, "float16", *with_grad(rng, n=70, m=75), mask=mask, bias=bias)
        if name == "large":  # dS beyond float16; the later queries send the larger ones
            q, k, v, g = with_grad(rng, batch=(), n=70, m=75)
            g[:, :40] /= 1e3
            return Backward(machine, "float16", q / 4096, k / 4096, v * 3000, g * 300)
        assert name == "wide"
        return Backward(machine, "float16", *with_grad(rng, batch=(), h=1, h_kv=1, n=5, m=7, d_k=256, d_v=256))

    return pose


def test_the_kernels_themselves_are_not_accused(posed, posed_backward):
    for pose, bugs in ((posed, BUGS), (posed_backward, BACKWARD_BUGS)):
        for name in {bug.launch for bug in bugs}:
            call = pose(name)
            assert call.seen(call.launches) == RIGHT


def check(call, bug, folder):
    counts = [launch.source.count(bug.old) for launch in call.launches]
    assert max(counts) == 1, "the kernel has changed: plant this bug anew"
    broken = [launch._replace(source=launch.source.replace(bug.old, bug.new)) for launch in call.launches]
    if bug.seen_as in ("thread", "address"):
        said = ""
        for launch, count in zip(broken, counts, strict=True):
            if count:
                said += "".join(launch.sanitized(bug.seen_as, call.memory, folder, schedule) for schedule in SCHEDULES[:2])
        assert {"thread": "data race", "address": "heap-buffer-overflow"}[bug.seen_as] in said
        assert re.search(r"(fused|tiles|backward_keys)\.cu:\d+", said)
    elif bug.seen_as == "banks":
        broken[0].run()
        assert broken[0].bank_conflicts() > 2
    else:
        assert call.seen(broken) == bug.seen_as


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.name}, {bug.seen_as}")
def test_planted(posed, tmp_path, bug):
    check(posed(bug.launch), bug, tmp_path)


@pytest.mark.parametrize("bug", BACKWARD_BUGS, ids=lambda bug: f"{bug.name}, {bug.seen_as}")
def test_planted_backward(posed_backward, tmp_path, bug):
    check(posed_backward(bug.launch), bug, tmp_path)


def test_there_are_enough():
    assert len({bug.name for bug in BUGS}) >= 25
    assert len({bug.name for bug in BACKWARD_BUGS}) >= 20
