"""Cases of EXEC-2 and 3: array options in the form that invites a kernel to write into them, and results that equal an input.

A bias as large as the scores can be added to in place, and a mask can be written into it; with one visible key the output is its
value. Neither may be done.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.features import describing
from mha_conformance.cases.gradients import backward, given, train
from mha_conformance.cases.options import features, request

ARRAYS = ("mask", "bias", "causal", "lengths", "segments", "sink")
"""The options that are arrays, causal by its offset."""


def cases() -> Iterator[Case]:
    yield from unmodified()
    yield from unmodified_backwards()
    yield from own_memory()


def written_out(names: tuple[str, ...], layout: str = "contiguous", **sizes: Any) -> Request:
    """A request with these options, mask and bias as large as the scores."""
    found = request(names, batch=(2,), h=2, **{"n": 3, "m": 4, "d": 2, **sizes}, seed=136, layout=layout)
    full = (*found.operands[0].shape[:-1], found.operands[1].shape[-2])
    arrays = {name: np.broadcast_to(x, full).copy() if name in ("mask", "bias") else x for name, x in found.arrays.items()}
    return replace(found, arrays=arrays)


def unmodified() -> Iterator[Case]:
    """EXEC-2: every array option as large as it may be, every two of them and all; and read-only."""
    for names in (*((name,) for name in ("mask", "bias")), *combinations(ARRAYS, 2), ARRAYS):
        words = " and ".join(names) if len(names) < 3 else "all of them"
        used = features(*names)
        for layout in ("contiguous", "options read-only") if len(names) != 2 or names == ("mask", "bias") else ("contiguous",):
            yield case(
                "MHA-EXEC-2", f"{words} written out{', read-only' * (layout != 'contiguous')}",
                lambda names=names, layout=layout: written_out(names, layout), features=used, rule="facts", group="contract",
                beside=describing(used),
            )  # fmt: skip
    for name, more in {"softcap": ("bias", "softcap"), "scale": ("bias", "scale"), "window": ("bias", "window")}.items():
        used = features(*more)
        yield case(
            "MHA-EXEC-2", f"bias written out beside {name}", lambda more=more: written_out(more), features=used, rule="facts",
            group="contract", beside=describing(used),
        )  # fmt: skip
    for dtype in ("float64", "float16", "bfloat16"):

        def typed(dtype: str = dtype) -> Request:
            found = written_out(("mask", "bias", "sink"))
            return replace(found, operands=operands(137, dtype, batch=(2,), h=2, n=3, m=4, d=2), dtype=dtype, arrays={
                **found.arrays, "bias": np.round(8 * found.arrays["bias"]) / 8,
            })  # fmt: skip

        used = ("mask", "bias", "sink")
        yield case(
            "MHA-EXEC-2", "mask, bias and sink written out", typed, features=used, rule="facts", group="contract", dtype=dtype,
            beside=describing(used),
        )  # fmt: skip
    for name in ("mask", "bias", "lengths", "segments", "sink", "causal"):

        def asked(name: str = name) -> Request:
            found = written_out((name,), "options read-only")
            return replace(found, options={**found.options, "return_weights": True, "return_lse": True})

        used = (*features(name), "weights", "lse")
        yield case(
            "MHA-EXEC-2", f"{name}, read-only, with weights and lse", asked, features=used, rule="facts", group="contract",
            beside=describing(used),
        )  # fmt: skip


def unmodified_backwards() -> Iterator[Case]:
    """GRAD-1: nor does the backward write into what it is given."""
    for kept in (False, True):

        def everything(kept: bool = kept) -> Request:
            forward = written_out(ARRAYS, n=5, m=7, d=4)
            found = backward(138, h=2, arrives=("lse", "weights"))
            return replace(given(found, options=forward.options, **forward.arrays), kept=kept)

        used = (*features(*ARRAYS), "lse", "weights")
        words = "beside all options, written out" + ", output and lse given" * kept
        yield train(
            "MHA-GRAD-1", f"nothing is modified {words}", everything, *used, rule="gradient facts", beside=describing(used)
        )


def own_memory() -> Iterator[Case]:
    """EXEC-3: where each query sees one key the output is a value, and still has memory of its own."""
    one, apart = np.asarray([[True, False, False]]), np.arange(6).reshape(2, 3)
    ways: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any], int]] = {
        "a mask": (("mask",), {"mask": one}, {}, 1),
        "a bias": (("bias",), {"bias": np.where(one, 0.0, -np.inf)}, {}, 1),
        "causal order": (("causal", "offset"), {}, {"is_causal": True, "query_offset": 0}, 1),
        "a window": (("window", "offset"), {}, {"window": (0, 0), "query_offset": 1}, 1),
        "a length": (("lengths",), {}, {"key_lengths": 1}, 1),
        "lengths": (("lengths",), {"key_lengths": np.asarray([1, 1])}, {}, 1),
        "segments": (("segments",), {"query_segments": np.asarray([[0]] * 2), "key_segments": np.asarray([[0, 1, 1]] * 2)}, {}, 1),
        "a mask for each query": (("mask",), {"mask": np.eye(3, dtype=bool)}, {}, 3),
        "a window for each query": (("window",), {}, {"window": (0, 0)}, 3),
        "segments for each query": (("segments",), {"query_segments": apart, "key_segments": apart}, {}, 3),
    }  # fmt: skip
    for name, (used, arrays, options, n) in ways.items():

        def left(arrays: Any = arrays, options: Any = options, n: int = n) -> Request:
            parts = operands(139, "float32", batch=(2,), h=2, n=n, m=3, d=4)
            return Request(parts, "float32", arrays=arrays, options=options)

        yield case(
            "MHA-EXEC-3",
            f"one key is left by {name}",
            left,
            features=used,
            rule="facts",
            group="contract",
            beside=describing(used),
        )

    def no_items() -> Request:
        return Request(operands(140, "float32", batch=(), h=1, n=3, m=1, d=4), "float32")

    yield case("MHA-EXEC-3", "one key for three queries of one head", no_items, rule="facts", group="contract")

    def equal() -> Request:
        query, key, value = operands(141, "float32", batch=(2,), h=1, n=3, m=4, d=4)
        return Request((query, key, np.repeat(value[..., :1, :], 4, axis=-2)), "float32", options={"scale": 0.0})

    yield case(
        "MHA-EXEC-3",
        "all values are equal",
        equal,
        features=("scale",),
        rule="facts",
        group="contract",
        beside=describing(("scale",)),
    )
