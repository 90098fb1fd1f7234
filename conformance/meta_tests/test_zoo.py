"""Legal kernels of every kind are accused of nothing, in any dtype; ``python -m zoo`` prints how near the bounds they come."""

import numpy as np
import pytest
from honest import Honest, failures, implementation, judged
from zoo.arithmetic import cast_toward_zero, fused, product_toward_zero, quotient_toward_zero, sum_toward_zero, to_tensor_float
from zoo.kernels import ZOO
from zoo.ratios import DTYPES, worst

from mha_conformance.cases import catalogue
from mha_conformance.run.perform import Asked, perform


@pytest.mark.parametrize("kernel", ZOO, ids=lambda kernel: kernel.__name__)
def test_a_legal_kernel_is_accused_of_nothing(kernel, record_property):
    verdicts = judged(kernel())
    assert not failures(verdicts)
    assert {v.dtype for v in verdicts} == set(DTYPES)
    ratios = worst(verdicts)
    for dtype, ratio in ratios.items():
        record_property(dtype, round(ratio, 4))
        assert 0 < ratio <= 1
    print(kernel.__name__, *(f"{dtype} {ratio:.3f}" for dtype, ratio in ratios.items()))


def answers(subject, case_id):
    (case,) = (case for case in catalogue() if case.id == case_id)
    (reply,) = perform(implementation(subject), Asked.by(case))
    return np.asarray(reply.output, dtype=np.float64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ZOO, ids=lambda kernel: kernel.__name__)
def test_its_arithmetic_is_no_wider_than_it_says(kernel, dtype):
    """Computed wider and rounded once, most elements would be those of float64 arithmetic rounded once."""
    case = f"MHA-NUM-6/tail/{dtype}"
    other = (answers(kernel(), case) != answers(Honest(), case)).mean()
    assert other > 0.2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_emulated_operations(dtype):
    """Against exact rational arithmetic."""
    from fractions import Fraction

    random = np.random.default_rng(1)
    a, b, c = (np.ldexp(random.standard_normal(300), random.integers(-20, 20, 300)).astype(dtype) for _ in range(3))
    exact = [[Fraction(float(x)) for x in array] for array in (a, b, c)]
    for got, wanted in (
        (sum_toward_zero(a, b), [x + y for x, y, _ in zip(*exact, strict=True)]),
        (product_toward_zero(a, b), [x * y for x, y, _ in zip(*exact, strict=True)]),
        (quotient_toward_zero(a, np.abs(b)), [x / abs(y) for x, y, _ in zip(*exact, strict=True)]),
    ):
        assert got.dtype == dtype
        for x, y in zip(got, wanted, strict=True):
            assert abs(Fraction(float(x))) <= abs(y) < abs(Fraction(float(np.nextafter(x, x * dtype(2)))))
    found = fused(a, b, c)
    assert found.dtype == dtype
    for x, y, z, w in zip(found, *exact, strict=True):
        half = Fraction(float(np.spacing(np.abs(x)))) / 2
        assert abs(Fraction(float(x)) - (y * z + w)) <= half


def test_tensor_float_keeps_eleven_bits():
    x = np.float32([1.0, 1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-12), np.inf, np.nan, 0.0, np.finfo(np.float32).max])
    found = to_tensor_float(x)
    assert found[:5].tolist() == [1.0, 1 + 2**-10, 1.0, 1 + 2**-9, -1.0]
    assert np.array_equal(found[5:], x[5:], equal_nan=True)


def test_a_cast_toward_zero_never_grows():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(2).standard_normal(1000).astype(np.float32) * 1e3
    for kind in (np.float16, ml_dtypes.bfloat16):
        y = cast_toward_zero(x, np.dtype(kind)).astype(np.float32)
        assert (np.abs(y) <= np.abs(x)).all()
        assert (np.abs(x - y) < np.abs(x) * 2.0**-7).all()
