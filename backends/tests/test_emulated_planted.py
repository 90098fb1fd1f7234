"""A test of the tests: each bug planted into the fused kernel is seen, and the kernel without it is not accused."""

import mmap
from collections import Counter

import numpy as np
import pytest
from cupy_machine import TYPES, fake, formula, operands, wide
from emulator.arrays import Array, fake_cupy
from emulator.launches import SCHEDULES, Fault
from planted import BUGS

from mha_spec.numerics import PROFILES, attention_bound, error_ratio

RIGHT = "right"
NORESERVE = 0x4000  # Linux: only the pages that are touched count. The module mmap has no name for it before Python 3.13


class Posed:
    """One call to the fused kernel: its launch, the memory that it reads and writes, and what must come out."""

    def __init__(self, machine, kind, q, k, v, **options):
        kept = []
        machine.cuda = type(machine.cuda)(fake_cupy(kept.append), machine.cuda.cublas)
        q, k, v = (x if isinstance(x, Array) else fake(x, TYPES[kind]) for x in (q, k, v))
        given = {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        self.result = machine.api().attention(q, k, v, **given, return_lse=True)
        (self.launch,) = kept
        self.memory = [q, k, v, self.result.output, self.result.lse, *(x for x in given.values() if isinstance(x, np.ndarray))]
        equal = {name: x for name, x in options.items() if name not in ("bias", "sink_logits")}
        if "bias" in options:
            equal["bias"] = np.where(options["bias"] == -np.inf, -np.inf, 0.0)
        self.bounds = attention_bound(
            wide(q), wide(k), wide(v), PROFILES["PB16" if kind == "bfloat16" else "P16"], scale=q.shape[-1] ** -0.5,
            bias=wide(options.get("bias")), visible=formula(*(np.zeros(x.shape) for x in (q, k, v)), **equal)[1] > 0,
            sink=wide(options.get("sink_logits")),
        )  # fmt: skip

    def is_right(self, launch, schedule):
        for x in self.result[:3:2]:
            x.reshape(-1).view("uint8")[...] = 255
        launch.run(schedule)
        truth = self.bounds.truth
        output = error_ratio(wide(self.result.output), truth.output, self.bounds.output)
        lse = error_ratio(wide(self.result.lse), truth.lse, self.bounds.lse)
        return max(output.max(initial=0), lse.max(initial=0)) <= 1

    def seen(self, launch):
        try:
            right = Counter(self.is_right(launch, schedule) for schedule in SCHEDULES)
        except Fault:
            return "fault"
        return RIGHT if not right[False] else "sometimes wrong" if right[True] else "wrong"


@pytest.fixture
def posed(machine):
    """The launches by name; each is hard in its own way."""
    rng = np.random.default_rng(3)

    def pose(name):
        if name == "full":
            sizes = {"batch": (), "n": 70, "m": 200, "d_k": 24, "d_v": 40}
            return Posed(machine, "float16", *operands(rng, **sizes), sink_logits=np.array([1.0, 2.0, -np.inf, 0.5]))
        if name == "loud sink":
            return Posed(machine, "float16", *operands(rng, batch=(), n=3), sink_logits=np.full(4, 500.0))
        if name == "bfloat16":
            return Posed(machine, "bfloat16", *operands(rng, batch=(), n=3))
        if name == "position":  # rows of which some see nothing, and some nothing of the block's first tile; odd strides
            sizes = {"batch": (), "h": 1, "h_kv": 1, "n": 100, "m": 150, "d_k": 5, "d_v": 7}
            return Posed(machine, "float16", *operands(rng, **sizes), window=(20, 1), query_offset=65)
        if name == "pair":  # NaN in values that some rows see and others do not; low scores
            q, k, v = operands(rng, n=70, m=75)
            v[..., 3, 1] = v[..., 70, 2] = np.nan
            mask = np.arange(70 * 75).reshape(70, 75) % 7 != 0
            return Posed(machine, "float16", q, k, v, mask=mask, bias=np.full((1, 75), -100000.0, "float32"))
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
    return Posed(machine, "float16", q, far.view(Array), rng.standard_normal((1, m, d)))


def test_the_kernel_itself_is_not_accused(posed):
    for name in {bug.launch for bug in BUGS}:
        call = posed(name)
        assert call.seen(call.launch) == RIGHT


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.name}, {bug.seen_as}")
def test_planted(posed, tmp_path, bug):
    call = posed(bug.launch)
    assert call.launch.source.count(bug.old) == 1, "the kernel has changed: plant this bug anew"
    broken = call.launch._replace(source=call.launch.source.replace(bug.old, bug.new))
    if bug.seen_as in ("thread", "address"):
        said = "".join(broken.sanitized(bug.seen_as, call.memory, tmp_path, schedule) for schedule in SCHEDULES[:2])
        assert {"thread": "data race", "address": "heap-buffer-overflow"}[bug.seen_as] in said
        assert "fused.cu:" in said or "tiles.cu:" in said
    elif bug.seen_as == "banks":
        broken.run()
        assert broken.bank_conflicts() > 2
    else:
        assert call.seen(broken) == bug.seen_as


def test_there_are_enough():
    assert len({bug.name for bug in BUGS}) >= 25
