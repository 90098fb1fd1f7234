"""Cases of MASK: rows that see nothing, however it comes about."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.cases.build import case
from mha_conformance.cases.case import Case, Level, Request
from mha_conformance.cases.codes import coded
from mha_conformance.cases.features import describing


def cases() -> Iterator[Case]:
    n, m = 5, 7
    row = np.ones((n, m), dtype=bool)
    row[1] = row[4] = False
    item = np.ones((2, 1, n, m), dtype=bool)
    item[1] = False
    ways: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
        "a masked row": (("mask",), {"mask": row}, {}),
        "a masked batch item": (("mask",), {"mask": item}, {}),
        "everything masked": (("mask",), {"mask": np.zeros((n, m), dtype=bool)}, {}),
        "a bias of -inf": (("bias",), {"bias": np.where(row, 0.0, -np.inf)}, {}),
        "causal": (("causal", "offset"), {}, {"is_causal": True, "query_offset": -3}),
        "a window outside": (("window", "offset"), {}, {"window": (0, 0), "query_offset": 4}),
        "a length of 0": (("lengths",), {"key_lengths": np.asarray([0, 7])}, {}),
        "a negative length": (("lengths",), {"key_lengths": np.asarray([-2, 3])}, {}),
        "a segment without keys": (("segments",), {"query_segments": np.full((2, n), 9), "key_segments": np.zeros((2, m), int)}, {}),
        "an intersection": (("mask", "lengths"), {"mask": np.arange(m)[None] >= np.full((n, 1), 3), "key_lengths": np.asarray([3, 6])}, {}),
    }  # fmt: skip
    later = np.arange(5) >= 3
    few, square = {"m": 3}, {"m": 5}
    aligned: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any], dict[str, int]]] = {
        "causal, bottom-right, n > m": (("causal", "offset"), {}, {"is_causal": True, "query_offset": -2}, few),
        "a window, bottom-right, n > m": (("window", "offset"), {}, {"window": (1, 0), "query_offset": -2}, few),
        "a window, top-left, n > m": (("window", "offset"), {}, {"window": (0, 0), "query_offset": 0}, few),
        "causal and a mask, n = m": (("causal", "mask"), {"mask": np.broadcast_to(later, (n, 5))}, {"is_causal": True}, square),
        "a window and a length, n = m": (("window", "lengths"), {"key_lengths": np.asarray([2, 5])}, {"window": (1, 1)}, square),
    }  # fmt: skip
    for name, (features, arrays, options, sizes) in ({name: (*way, {"m": m}) for name, way in ways.items()} | aligned).items():
        first = name == "a masked row"

        def empty(arrays: Any = arrays, options: Any = options, sizes: Any = sizes) -> Request:
            return Request(coded(n, **sizes, spread=1.0, items=2), "float32", arrays=arrays, options=options)

        yield case(
            "MHA-MASK-15" if first else "MHA-MASK-16",
            name,
            empty,
            features=features,
            level="core" if name in aligned else "smoke",
            beside=("MHA-MASK-14",) if name in aligned else (),
        )

        def with_sink(empty: Callable[[], Request] = empty) -> Request:
            asked = empty()
            return replace(asked, arrays={**asked.arrays, "sink_logits": np.asarray([0.5])})

        yield case(
            "MHA-MASK-17", f"{name}, with sinks", with_sink, features=(*features, "sink"), level="smoke" if first else "core",
            beside=describing(features).union(("MHA-MASK-1", "MHA-MASK-14", "MHA-MASK-16") if name in aligned else ()),
        )  # fmt: skip

        used = (*features, "weights", "lse")
        finer: Level = "full" if name in aligned else "core"
        crossed = describing(used).union(("MHA-AUX-3",), ("MHA-MASK-14",) if name in aligned else ())

        def with_results(empty: Callable[[], Request] = empty, sinks: bool = False) -> Request:
            asked = empty()
            arrays = {**asked.arrays, **({"sink_logits": np.asarray([0.5])} if sinks else {})}
            return replace(asked, arrays=arrays, options={**asked.options, "return_weights": True, "return_lse": True})

        yield case("MHA-MASK-16", f"{name}, with weights and lse", with_results, features=used, beside=crossed, level=finer)
        yield case(
            "MHA-MASK-17", f"{name}, with sinks, weights and lse", lambda with_results=with_results: with_results(sinks=True),
            features=(*used, "sink"), level=finer, beside=crossed.union(("MHA-MASK-1", "MHA-MASK-16") if name in aligned else ()),
        )  # fmt: skip

    def lse_of_sinks() -> Request:
        sinks = {"sink_logits": np.asarray([0.5])}
        return Request(coded(n, m, spread=1.0, items=2), "float32", arrays={"mask": row, **sinks}, options={"return_lse": True})

    yield case(
        "MHA-MASK-17", "lse of an empty row with a sink", lse_of_sinks, features=("mask", "sink", "lse"), beside=("MHA-MASK-2",)
    )

    def no_keys() -> Request:
        return Request(coded(n, 0), "float32")

    yield case("MHA-MASK-16", "no keys at all", no_keys, level="smoke")
