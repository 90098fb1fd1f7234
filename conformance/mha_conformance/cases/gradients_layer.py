"""Cases of GRAD-17: the gradients of a layer, all of them in each case."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.gradients import DTYPES, given, some_mask, train
from mha_conformance.cases.inputs import eighths, fractions
from mha_conformance.cases.layer import projections


def cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield train(
            "MHA-GRAD-17", "three inputs", lambda dtype=dtype: backward(projections(900, dtype), dtype), "layer", dtype=dtype,
            level="smoke" if dtype == "float32" else "core",
        )  # fmt: skip
    for biases in ("qkvo", "q", "o"):
        yield train("MHA-GRAD-17", f"biases {biases}", lambda b=biases: backward(projections(905, biases=b)), "layer")
    yield train("MHA-GRAD-17", "one head", lambda: backward(projections(910, h=1, biases="qkvo")), "layer")
    yield train("MHA-GRAD-17", "2 of 4 heads", lambda: backward(projections(911, h=4, h_kv=2)), "layer", "grouped")

    def widths() -> Request:
        return backward(
            projections(912, d_in_k=10, d_in_v=7, d_out=9, d_k=3, d_v=5, biases="qkvo"), d_in_k=10, d_in_v=7, d_out=9
        )

    yield train("MHA-GRAD-17", "widths of their own", widths, "layer", "d_v")

    def square() -> Request:
        return backward(projections(913, h=4, d_model=16), d_model=16, n=4, m=4)

    yield train("MHA-GRAD-17", "every size equal", square, "layer")

    def arrived() -> Request:
        lse, weights = eighths(914, (2, 3, 5)), fractions(915, (2, 3, 5, 7), "float32")
        return given(backward(projections(916)), grad_lse=lse, grad_weights=weights)

    yield train("MHA-GRAD-17", "lse and weights of the heads", arrived, "layer", "lse", "weights")

    def options() -> Request:
        arrays = {"mask": some_mask(917), "bias": fractions(918, (5, 7), "float32"), "sink_logits": eighths(919, (3,))}
        return given(backward(projections(920)), options={"softcap": 2.0}, **arrays)

    yield train("MHA-GRAD-17", "mask, bias, sink and softcap", options, "layer", "mask", "bias", "sink", "softcap")


def backward(
    weights: Mapping[str, Any], dtype: str = "float32", *, n: int = 5, m: int = 7, d_model: int = 12, d_in_k: int | None = None,
    d_in_v: int | None = None, d_out: int | None = None,
) -> Request:  # fmt: skip
    """A request for the gradients of a layer, of items that are unlike."""

    def tokens(seed: int, count: int, width: int | None) -> Any:
        size = np.asarray([1.0, 0.25])[:, None, None]
        return size * fractions(seed, (2, count, width or d_model), dtype, 1.0)

    operands = (tokens(930, n, None), tokens(931, m, d_in_k), tokens(932, m, d_in_v))
    return Request(operands, dtype, target="layer vjp", projections=weights, arrays={"grad_output": tokens(933, n, d_out)})
