"""Guard bands (MHA-CONF-17): where they lie, what they see, and whom they blame."""

from pathlib import Path

import numpy as np
import pytest

from mha_conformance.run.arrays import converter, laid_out, numpy_dtype
from mha_conformance.run.conform import Selection, conform
from mha_conformance.run.guards import BAND, LINE, STRANGE, Guards, filler
from mha_conformance.run.implementation import Target

LAYOUTS = ("contiguous", "transposed", "padded", "every second", "reversed", "broadcast", "read-only")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "bool")


@pytest.fixture(autouse=True)
def _strangers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_strides_and_rights_are_as_they_were_and_every_byte_around_is_seen(layout, dtype):
    pytest.importorskip("ml_dtypes")
    x = laid_out(np.arange(24).reshape(2, 3, 4).astype(numpy_dtype(dtype)), layout, "value")
    guards = Guards()
    inside = guards.around(x, "value")
    assert np.array_equal(inside, x)
    assert (inside.strides, inside.dtype, inside.flags.writeable) == (x.strides, x.dtype, x.flags.writeable)
    assert not np.shares_memory(inside, x)
    memory = guards.bands[0].memory
    assert memory.ctypes.data % LINE == 0
    assert guards.touched() == ()
    own = {int(at) for at in (inside.ctypes.data - memory.ctypes.data) + offsets(inside)}
    assert min(own) >= BAND
    assert max(own) + inside.itemsize + BAND <= memory.size
    places = [0, min(own) - 1, max(own) + inside.itemsize, memory.size - 1]
    taken = {byte for at in own for byte in range(at, at + inside.itemsize)}
    places += [at for at in range(min(own), max(own)) if at not in taken][:3]  # in a gap
    for at in places:
        memory[at] ^= 1
        assert guards.touched() == ("value",), at
        memory[at] ^= 1
    if inside.flags.writeable:
        inside[...] = 0  # its own elements are another clause's matter
    assert guards.touched() == ()


def offsets(x):
    """The byte offset of each element from the first."""
    return sum(np.indices(x.shape)[axis] * stride for axis, stride in enumerate(x.strides)).ravel()


def test_what_stands_around():
    assert np.isnan(filler("float32"))
    assert filler("int64") == STRANGE
    assert STRANGE % 2 == 1
    assert filler("bool")
    assert not any(filler(dtype, loud=False) for dtype in ("float32", "int64", "bool"))
    guards = Guards()
    for shape in ((0, 3, 4), (2, 3, 0), (), (5,)):
        assert guards.around(np.ones(shape, np.float32), "x").shape == shape
    assert guards.touched() == ()


def test_torch_gets_the_very_memory():
    pytest.importorskip("torch")
    guards = Guards()
    inside = guards.around(laid_out(np.ones((2, 3, 4), np.float32), "padded", "key"), "key")
    tensor = converter("torch", None)(inside, "key")
    assert tensor.stride() == tuple(stride // 4 for stride in inside.strides)
    tensor.as_strided((1,), (1,), tensor.storage_offset() + 4).fill_(0)  # the gap behind the first row
    assert guards.touched() == ("key",)


@pytest.mark.parametrize(
    ("name", "clause", "said"),
    [
        ("reads_past", "MHA-EXEC-4", "only where NaN stands around the arrays; with zeros there, the case holds"),
        ("writes_before", "MHA-EXEC-2", "memory that is not its own was written: around query"),
    ],
)
def test_who_leaves_its_arrays_is_blamed_for_that_alone(name, clause, said):
    report = conform(Target(f"strangers:{name}"), Selection(clauses=("MHA-ATTN-1", "MHA-ATTN-6", "MHA-ATTN-8")))
    assert [v.clause for v in report.blame] == [clause]
    assert said in report.blame[0].reason
    assert report.smallest[report.blame[0].case].verdict.status == "FAIL"
    assert report.sentence.endswith(f"{clause}.")
