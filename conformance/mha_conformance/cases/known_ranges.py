"""Cases at the ends of ranges that known bugs needed: wide integers, huge values, every type, nothing at all, exact zeros."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.inputs import choices, fractions


def cases() -> Iterator[Case]:
    yield from ranges()
    yield from hidden_in_every_dtype()
    yield from no_keys()
    yield from weights_of_hidden_keys()


def ranges() -> Iterator[Case]:
    """Integers that 32 bits do not hold, values near the ends of a type's range, and -inf in each type of bias."""
    parts = operands(1780, "float32", batch=(2,), h=1, n=3, m=6, d=4)
    far = 2**32
    integers: dict[str, tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
        "offsets of 33 bits": ("MHA-MASK-9", ("causal", "offset"), {"query_offset": np.asarray([far, 1 - far])}, {"is_causal": True}),
        "lengths of 33 bits": ("MHA-MASK-12", ("lengths",), {"key_lengths": np.asarray([far + 1, 4])}, {}),
        "ids that differ in sign": (
            "MHA-MASK-13", ("segments",),
            {"query_segments": np.asarray([[-1, 1, 2]] * 2), "key_segments": np.asarray([[1, -1, 2, 1, -1, -2]] * 2)}, {},
        ),
        "ids that differ in bit 33": (
            "MHA-MASK-13", ("segments",),
            {"query_segments": np.asarray([[0, far, 0]] * 2), "key_segments": np.asarray([[0, far, 2 * far] * 2] * 2)}, {},
        ),
    }  # fmt: skip
    for name, (clause, features, arrays, options) in integers.items():

        def whole(arrays: Any = arrays, options: Any = options) -> Request:
            return Request(parts, "float32", arrays=arrays, options=options)

        yield case(clause, name, whole, features=features)
    for dtype, power in (
        ("bfloat16", 100),
        ("bfloat16", -100),
        ("float32", 100),
        ("float32", -100),
        ("float16", 12),
        ("float64", 900),
    ):

        def sized(dtype: str = dtype, power: int = power) -> Request:
            query, key, value = operands(1781, dtype, batch=(1,), h=1, n=4, m=6, d=4)
            return Request((query, key, np.ldexp(value, power)), dtype)

        yield case("MHA-NUM-6", f"values near 2^{power}", sized, group="numerics", dtype=dtype)
    for dtype in ("float64", "float16", "bfloat16"):

        def hidden(dtype: str = dtype) -> Request:
            bias = np.where(choices(1782, (4, 6), 0.6) | np.eye(4, 6, dtype=bool), fractions(1783, (4, 6), dtype), -np.inf)
            return Request(operands(1784, dtype, batch=(1,), h=1, n=4, m=6, d=4), dtype, arrays={"bias": bias})

        yield case("MHA-MASK-5", "bias of -inf in this dtype", hidden, features=("bias",), dtype=dtype)


def hidden_in_every_dtype() -> Iterator[Case]:
    """Huge values and NaN under each array that hides, in the types that other cases leave out."""
    ways: dict[str, tuple[str, Any]] = {
        "mask": ("mask", np.arange(6) != 5),
        "bias": ("bias", np.where(np.arange(6) == 5, -np.inf, 0.5)),
        "key_lengths": ("lengths", np.asarray([5])),
    }
    for (name, (feature, hiding)), (dtype, huge) in product(
        ways.items(), (("bfloat16", 100), ("float16", 15), ("float64", 900))
    ):

        def poisoned(poison: float, name: str = name, hiding: Any = hiding, dtype: str = dtype) -> Request:
            parts = operands(1785, dtype, batch=(1,), h=1, n=2, m=6, d=4)
            for x in parts[1:]:
                x[..., 5, :] = poison
            arrays = {name: hiding if name == "key_lengths" else np.broadcast_to(hiding, (2, 6)).copy()}
            return Request(parts, dtype, arrays=arrays)

        if dtype != "float64":  # there a choice of algorithm by hidden data is as far out of bound
            yield case(
                "MHA-MASK-18", f"2^{huge} hidden by {feature}", lambda make=poisoned, huge=huge: make(2.0**huge), features=(feature,),
                group="poison", dtype=dtype,
            )  # fmt: skip
        yield case(
            "MHA-MASK-19", f"NaN hidden by {feature}", lambda make=poisoned: (make(1.0), make(np.nan)), features=(feature,),
            group="strict", rule="hidden bits", dtype=dtype,
        )  # fmt: skip


def no_keys() -> Iterator[Case]:
    """Weights and lse of no keys."""

    def asked() -> Request:
        return Request(operands(1790, "float32", m=0), "float32", options={"return_weights": True, "return_lse": True})

    yield case("MHA-AUX-3", "no keys, with weights and lse", asked, features=("weights", "lse"))


def weights_of_hidden_keys() -> Iterator[Case]:
    """Each array that hides, with the weights: those of hidden keys are exactly 0."""
    ways: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
        "bias": (("bias",), {"bias": np.where(np.arange(3) == 1, -np.inf, 0.5)[None]}, {}),
        "lengths": (("lengths",), {"key_lengths": np.asarray([2])}, {}),
        "segments": (("segments",), {"query_segments": np.asarray([[0, 1]]), "key_segments": np.asarray([[0, 1, 1]])}, {}),
    }
    for name, (features, arrays, options) in ways.items():

        def asked(arrays: Any = arrays, options: Any = options) -> Request:
            parts = operands(1798, "float32", batch=(1,), h=1, n=2, m=3, d=2)
            return Request(parts, "float32", arrays=arrays, options={**options, "return_weights": True})

        yield case("MHA-AUX-2", f"weights of keys hidden by {name}", asked, features=("weights", *features))
