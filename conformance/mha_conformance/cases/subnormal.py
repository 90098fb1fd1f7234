"""Cases of NUM: operands, weights and outputs below the smallest normal number of their type."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.execution import DTYPES
from mha_conformance.cases.inputs import integers
from mha_spec.profiles import TYPES

FAR_SCORE: Mapping[str, float] = {"float32": -88.5, "bfloat16": -88.5, "float16": -10.75, "float64": -709.5}
"""A score whose weight beside a score of 0 lies one to two powers of two below the smallest normal number."""
ROWS: dict[str, Any] = {"batch": (2,), "h": 2, "n": 4, "m": 6, "d": 4}


def cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for name, make in MAKERS.items():

            def posed(make: Callable[[str], Request] = make, dtype: str = dtype) -> Request:
                return make(dtype)

            weights = name == "subnormal weights"
            yield case(
                "MHA-NUM-23", name, posed, features=("weights",) if weights else (), group="numerics", dtype=dtype,
                beside=("MHA-AUX-1",) if weights else (), level="smoke" if (name, dtype) == ("subnormal values", "float32") else "core",
            )  # fmt: skip


def _subnormal(seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    """Numbers of the largest subnormal power of two, so that halving one, as a scale does, costs its last bit at most."""
    top = 2 ** (TYPES[dtype].bits - 2)
    return integers(seed, shape, top, 2 * top) * TYPES[dtype].smallest_subnormal


def _values(dtype: str) -> Request:
    """Values of one sign, so that their means are as small."""
    query, key, value = operands(1810, dtype, **ROWS)
    return Request((query, key, _subnormal(1811, value.shape, dtype)), dtype)


def _queries(dtype: str) -> Request:
    """The products with huge keys are ordinary; taken for 0, they make every key count alike."""
    query, key, value = operands(1820, dtype, **ROWS)
    return Request((_subnormal(1821, query.shape, dtype), key / TYPES[dtype].smallest_normal / 4, value), dtype)


def _keys(dtype: str) -> Request:
    query, key, value = operands(1830, dtype, **ROWS)
    return Request((query / TYPES[dtype].smallest_normal / 4, _subnormal(1831, key.shape, dtype), value), dtype)


def _outputs(dtype: str) -> Request:
    """The smallest normal number and zeros: no operand is subnormal, and every mean is."""
    query, key, value = operands(1840, dtype, **ROWS)
    value = np.zeros_like(value)
    value[..., 1, :] = TYPES[dtype].smallest_normal
    return Request((query / 8, key / 8, value), dtype)


def _weights(dtype: str) -> Request:
    query, key = np.zeros((1, 1, 1, 4)), np.zeros((1, 1, 2, 4))
    query[..., 0], key[..., 1, 0] = 16.0, FAR_SCORE[dtype] / 8  # the scale is 1/2
    return Request((query, key, np.ones((1, 1, 2, 4))), dtype, options={"return_weights": True})


MAKERS: Mapping[str, Callable[[str], Request]] = {
    "subnormal values": _values,
    "subnormal queries": _queries,
    "subnormal keys": _keys,
    "subnormal outputs": _outputs,
    "subnormal weights": _weights,
}
