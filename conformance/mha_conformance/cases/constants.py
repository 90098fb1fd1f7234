"""Cases of numbers that no narrower type holds: constants of a call, biases wider than the query, weights far below one.

0.5 and 30 are the same number in every type, so a constant that passed through a narrower one shows only where it is none of these.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from mha_conformance.cases.build import ONE, case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.codes import codes
from mha_conformance.cases.features import DTYPE_BY, describing
from mha_conformance.cases.gradients import backward, given, train
from mha_conformance.cases.inputs import BITS, fractions

DTYPES = ("float64", "float32", "float16", "bfloat16")
CONSTANTS: Mapping[str, tuple[float, ...]] = {"scale": (0.1, -1 / 3), "softcap": (1.1, 29.9)}
SMALL: Mapping[str, Any] = {"batch": (1,), "h": 1, "n": 2, "m": 4, "d": 2}


def cases() -> Iterator[Case]:
    yield from python_floats()
    yield from default_scales()
    yield from wide_biases()
    yield from low_biases()
    yield from small_weights()


def python_floats() -> Iterator[Case]:
    """NUM-2, 3 and 11: a Python float counts with all its bits, forwards and backwards."""
    for dtype, (name, numbers) in product(DTYPES, CONSTANTS.items()):
        for number in numbers:

            def constant(dtype: str = dtype, name: str = name, number: float = number) -> Request:
                query, key, value = operands(680, dtype, **SMALL)
                return Request((query * 4, key, value), dtype, options={name: number, "return_lse": True})

            yield case(
                DTYPE_BY[dtype], f"{name} = {number:.6g}", constant, group="numerics", features=(name, "lse"), dtype=dtype,
                beside=describing((name, "lse")) | {"MHA-AUX-5"},
            )  # fmt: skip
    for name, number in (("scale", 0.1), ("softcap", 1.1)):

        def backwards(name: str = name, number: float = number) -> Request:
            return given(backward(681, "float64"), options={name: number})

        clause = "MHA-GRAD-18" if name == "scale" else "MHA-GRAD-9"
        yield train(clause, f"{name} = {number}", backwards, name, dtype="float64", beside=(DTYPE_BY["float64"],))


def default_scales() -> Iterator[Case]:
    """NUM-2, 3 and 11: the root of d_k is no number of a narrow type, unless d_k is a power of four. Scores near 64, each from a
    channel of its own, so that a query that was rounded again moves them apart; and wide factors with all their bits."""
    for dtype, d in product(DTYPES, (3, 8)):

        def apart(dtype: str = dtype, d: int = d) -> Request:
            step = 2.0 ** (3 - BITS[dtype])
            query = 5.75 + step * np.rint(fractions(682, (1, 1, 2, d), dtype, 0.25) / step)
            value = fractions(683, (1, 1, 3, d), dtype)
            key = (16.0 if d == 3 else 32.0) * np.eye(3, d)[None, None]
            return Request((query, key, value), dtype, options={"return_lse": True})

        yield case(
            DTYPE_BY[dtype], f"a score from each channel, d_k = {d}", apart, features=("lse",), dtype=dtype,
            beside=describing(("lse",)) | {"MHA-AUX-5"},
        )  # fmt: skip
    for dtype, d in product(DTYPES[:2], (32, 64)):

        def wide(dtype: str = dtype, d: int = d) -> Request:
            return Request(operands(687, dtype, batch=(1,), h=1, n=2, m=3, d=d), dtype)

        yield case(DTYPE_BY[dtype], f"few keys of {d} channels", wide, group="numerics", dtype=dtype)
    for dtype in ("float16", "bfloat16"):

        def small_terms(dtype: str = dtype) -> Request:
            key = np.where(np.arange(1024) < 64, 0.0, -4.59375)[None, None, :, None]
            return Request((np.ones((1, 1, 1, 1)), key, np.where(key < 0, 1.0, 0.0)), dtype, options={"return_lse": True})

        yield case(
            "MHA-NUM-3", "many small terms behind a large sum", small_terms, features=("lse",), dtype=dtype,
            beside=describing(("lse",)) | {"MHA-AUX-5"},
        )  # fmt: skip


def wide_biases() -> Iterator[Case]:
    """ATTN-11: a bias wider than the query is read as it is, to its last bit; so is the lse beside it."""
    for dtype, kind in (
        ("float16", "float32"), ("bfloat16", "float32"), ("float16", "float64"), ("bfloat16", "float64"), ("float32", "float64"),
    ):  # fmt: skip

        def fine(lse: bool, dtype: str = dtype, kind: str = kind) -> Request:
            bias = 64 + fractions(683, (ONE["n"], ONE["m"]), "float32", 32.0)
            bias = bias.astype(kind).astype(float)
            options = {"return_lse": True} if lse else {}
            parts = operands(684, dtype, **ONE)
            return Request(parts, dtype, arrays={"bias": bias}, dtypes={"bias": kind}, options=options)

        yield case(
            "MHA-ATTN-11",
            f"a fine bias in {kind}",
            lambda fine=fine: fine(False),
            features=("bias",),
            dtype=dtype,
            beside=(DTYPE_BY[dtype],),
        )
        yield case(
            "MHA-AUX-4" if dtype == "float32" else "MHA-AUX-5",
            f"lse under a fine bias in {kind}",
            lambda fine=fine: fine(True),
            features=("bias", "lse"),
            dtype=dtype,
            beside=(DTYPE_BY[dtype],),
        )


def low_biases() -> Iterator[Case]:
    """MASK-6: what is finite in the type of the bias hides nothing, though the query's type does not hold it."""
    for dtype, low, kind in (
        ("float16", -1e5, "float32"), ("float16", -3e38, "float32"), ("float16", -1e9, "float64"), ("bfloat16", -1e5, "float32"),
        ("bfloat16", -3.4e38, "float32"), ("bfloat16", -1e300, "float64"), ("float16", 1e5, "float32"),
    ):  # fmt: skip

        def finite(dtype: str = dtype, low: float = low, kind: str = kind) -> tuple[Request, ...]:
            query, key, value = operands(686, dtype, batch=(1,), h=1, n=3, m=6, d=4)
            plain = Request((query * 0, key, codes(value.shape)), dtype, arrays={"bias": np.zeros((1, 6))})
            bias = np.full((1, 6), low).astype(kind).astype(float)
            return plain, replace(plain, arrays={"bias": bias}, dtypes={"bias": kind})

        yield case(
            "MHA-MASK-6",
            f"a row of {low:g} in {kind}",
            finite,
            features=("bias",),
            dtype=dtype,
            rule="as first",
            beside=(DTYPE_BY[dtype],),
        )

        def beside_zero(dtype: str = dtype, low: float = low, kind: str = kind) -> Request:
            bias = np.tile(np.asarray([[0.0, low, -np.inf], [low, low, -np.inf]]).astype(kind).astype(float), (1, 4))
            parts = operands(685, dtype, batch=(1,), h=1, n=2, m=12, d=8)
            return Request(
                parts, dtype, arrays={"bias": bias}, dtypes={"bias": kind}, options={"return_weights": True, "return_lse": True}
            )

        yield case(
            "MHA-AUX-3", f"{low:g} in {kind} beside 0, with weights and lse", beside_zero, features=("bias", "weights", "lse"),
            dtype=dtype, beside=(DTYPE_BY[dtype],),
        )  # fmt: skip


def small_weights() -> Iterator[Case]:
    """NUM-2, 8 and 11: weights that a narrower type would call 0, over values that make them count."""
    for dtype, steps in (("float64", (0.0, -90.0, -300.0, -690.0)), ("float32", (0.0, -20.0, -60.0, -85.0))):
        for weights in (False, True):

            def ladder(dtype: str = dtype, steps: tuple[float, ...] = steps, weights: bool = weights) -> Request:
                m = len(steps)
                key = np.asarray(steps)[None, None, :, None]
                value = np.eye(m)[None, None] * np.ldexp(1.0, np.rint(-np.asarray(steps) / np.log(2)).astype(int))[:, None]
                query = np.asarray([1.0, 0.75])[None, None, :, None]
                return Request(
                    (query, key, value), dtype, options={"scale": 1.0, **({"return_weights": True} if weights else {})}
                )

            used = ("scale", "d_v", *(("weights",) if weights else ()))
            clause = "MHA-NUM-8" if weights else DTYPE_BY[dtype]
            yield case(
                clause, f"{'weights' if weights else 'values'} down to e^{steps[-1]:g}", ladder, features=used, dtype=dtype,
                beside=describing(used) | ({DTYPE_BY[dtype]} if weights else frozenset()),
            )  # fmt: skip
