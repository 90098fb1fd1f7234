"""Which layer of the CuPy backend computes a call: a table, and the words of ``explain``. Nothing is launched here."""

import importlib

import ml_dtypes
import numpy as np
import pytest
from cupy_machine import Machine, fake

from mha_spec.call import Sizes

PLAIN = Sizes((2,), 8, 8, 1024, 1024, 64, 64)


@pytest.fixture
def choosing(backend_package):
    return importlib.import_module("mha_backends.cupy.choose")


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({}, "fused: float16, d_k 64, d_v 64, full, tiles of 64 queries and 64 keys"),
        ({"dtype": "bfloat16"}, "fused: bfloat16, d_k 64"),
        ({"options": {"lse", "sink"}}, "d_v 64, full"),
        ({"options": {"band"}}, "by position"),
        ({"options": {"lengths", "sink", "lse"}}, "by position"),
        ({"options": {"mask"}}, "by pair"),
        ({"options": {"bias"}}, "by pair"),
        ({"options": {"segments", "band"}}, "by pair"),
        ({"options": {"softcap"}}, "by pair"),
        ({"d_k": 0, "d_v": 0}, "d_k 16, d_v 16"),
        ({"d_k": 65, "d_v": 5}, "d_k 96, d_v 16, full, tiles of 64 queries and 64 keys"),
        ({"d_k": 192, "d_v": 128}, "32 keys"),
        ({"d_k": 256, "d_v": 256}, "32 keys"),
        ({"m": 0}, "fused"),
        ({"d_k": 257}, "unfused: cuBLAS and softmax_rows, because d_k = 257 is above 256"),
        ({"d_v": 512}, "d_v = 512 is above 256"),
        ({"dtype": "float32"}, "because float32 is no half type"),
        ({"dtype": "float64"}, "because float64 is no half type"),
        ({"capability": 75}, "because compute capability 7.5 is below 8.0"),
        ({"capability": 120}, "fused"),
        ({"options": {"weights"}}, "because the weights are asked for"),
        ({"m": 2**31}, "the kernel counts keys in an int"),
        ({"batch": (2**20,), "n": 2**20}, "a grid has at most 2^31 - 1 blocks"),
        ({"options": {"vjp"}}, "fused backward: float16, d_k 64, d_v 64, full, 64 rows held, 32 passing by"),
        ({"options": {"vjp", "bias"}, "d_k": 128, "d_v": 128}, "by pair, 64 rows held, 16 passing by"),
        ({"options": {"vjp", "band"}, "d_k": 128, "d_v": 128}, "by position, 64 rows held, 32 passing by"),
        ({"options": {"vjp"}, "d_k": 200}, "d_k 256, d_v 64, full, 32 rows held, 16 passing by"),
        ({"options": {"vjp", "grad_weights"}}, "because a gradient of the weights arrives"),
        ({"options": {"vjp"}, "dtype": "float32"}, "because float32 is no half type"),
        ({"options": {"vjp"}, "n": 2**31}, "the kernels count queries and keys in an int"),
        ({"options": {"vjp"}, "batch": (2**20,), "m": 2**20}, "a grid has at most 2^31 - 1 blocks"),
    ],
    ids=lambda x: str({name: sorted(v) if isinstance(v, set) else v for name, v in x.items()}) if isinstance(x, dict) else x,
)
def test_table(choosing, given, want):
    given = dict(given)
    capability, dtype, options = given.pop("capability", 90), given.pop("dtype", "float16"), given.pop("options", ())
    assert want in str(choosing.choose(capability, dtype, PLAIN._replace(**given), frozenset(options)))


def test_widths_hold_what_they_are_chosen_for(choosing):
    for d in range(257):
        kernel = choosing.choose(80, "float16", PLAIN._replace(d_k=d, d_v=256 - d), frozenset())
        assert kernel.d_k >= d and kernel.d_v >= 256 - d
        assert kernel.d_k % 16 == kernel.d_v % 16 == 0


def test_shared_memory_fits_every_device(choosing):
    """99 KiB a block is the least that devices from 8.0 on allow (CUDA C++ programming guide, table of compute capabilities)."""
    fused, backward = (importlib.import_module(f"mha_backends.cupy.{name}") for name in ("fused", "fused_backward"))
    for d_k in choosing.WIDTHS:
        for d_v in choosing.WIDTHS:
            assert fused.shared_memory(choosing.Fused("float16", d_k, d_v, "FULL")) <= 99 * 1024
            for form in ("FULL", "BY_PAIR"):
                kernel = choosing.FusedBackward("float16", d_k, d_v, form)
                assert max(backward.shared_memory(kernel), backward.shared_memory_of_bias(kernel)) <= 99 * 1024
                assert d_k // kernel.slices % 16 == d_v // kernel.slices % 16 == 0


SIX = {
    "a plain call": ({}, "fused: float16, d_k 64, d_v 64, full, tiles of 64 queries and 64 keys"),
    "training, causal": ({"is_causal": True}, "fused: float16, d_k 64, d_v 64, by position, tiles of 64 queries and 64 keys"),
    "decoding": (
        {"is_causal": True, "query_offset": 5, "key_lengths": np.array([6, 4])},
        "fused: float16, d_k 64, d_v 64, by position, tiles of 64 queries and 64 keys",
    ),
    "a mask": ({"mask": np.ones((8, 8), bool)}, "fused: float16, d_k 64, d_v 64, by pair, tiles of 64 queries and 64 keys"),
    "the weights": ({"return_weights": True}, "unfused: cuBLAS and softmax_rows, because the weights are asked for, chunks of 8 queries"),
    "single precision": ({"dtype": "float32"}, "unfused: cuBLAS and softmax_rows, because float32 is no half type, chunks of 8 queries"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "want"), SIX.values(), ids=SIX.keys())
def test_six_typical_requests_explained(backend_package, options, want):
    options = {name: fake(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    q = fake(np.zeros((2, 4, 8, 64)), options.pop("dtype", "float16"))
    assert Machine().api().explain(q, q, q, **options) == want


def test_the_choice_is_made_by_the_device_of_the_query(backend_package, monkeypatch):
    arrays = importlib.import_module("emulator.arrays")
    q = fake(np.zeros((1, 2, 16)), ml_dtypes.bfloat16)
    assert "fused: bfloat16, d_k 16" in Machine().api().explain(q, q, q)
    monkeypatch.setattr(arrays.DEVICE, "compute_capability", "70")
    assert "unfused" in Machine().api().explain(q, q, q)
