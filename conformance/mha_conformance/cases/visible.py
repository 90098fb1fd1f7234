"""Cases of MASK: who sees whom, empty rows, hidden data, NaN."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mha_conformance.cases.attention import codes
from mha_conformance.cases.build import case, operands
from mha_conformance.cases.calls import visible_pairs
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.inputs import choices, fractions, integers

ALIGNMENTS = {"square": (6, 6, 0), "top-left": (4, 7, 0), "bottom-right": (4, 7, 3), "past the end": (3, 4, 9)}
"""(n, m, query_offset) of causal and windowed cases."""


def cases() -> Iterator[Case]:
    yield from masks()
    yield from biases()
    yield from bands()
    yield from lengths_and_segments()
    yield from compositions()
    yield from empty_rows()
    yield from hidden_data()
    yield from nans()


def coded(n: int, m: int, d: int = 4, spread: float = 0.0, items: int = 1, h: int = 1) -> tuple[Any, Any, Any]:
    """Equal scores (or graded ones) over position-coded values: the output reveals the visible set."""
    query, key, _ = operands(200, "float32", batch=(items,), h=h, n=n, m=m, d=d)
    return query * spread, key, codes((items, h, m, d))


def masks() -> Iterator[Case]:
    n, m = 5, 7
    shapes = {"shared": (n, m), "full": (2, 2, n, m), "per batch": (2, 1, n, m), "per head": (1, 2, n, m), "per key": (2, 1, 1, m),
              "one row": (1, m), "one column": (n, 1)}  # fmt: skip
    for name, shape in shapes.items():

        def masked(shape: tuple[int, ...] = shape) -> Request:
            mask = choices(210, shape, 0.6)
            if shape[-1] > 1:
                mask[..., 0] = True
            wide = {"items": 2, "h": 2} if len(shape) == 4 else {}
            return Request(coded(n, m, spread=1.0, **wide), "float32", arrays={"mask": mask})

        clause = "MHA-MASK-2" if name == "shared" else "MHA-MASK-4"
        yield case(
            clause, f"mask {name}", masked, features=("mask",), level="smoke" if name in ("shared", "per key") else "core"
        )

    def all_true() -> Request:
        return Request(coded(n, m, spread=1.0), "float32", arrays={"mask": np.ones((n, m), dtype=bool)})

    yield case("MHA-MASK-2", "all True", all_true, features=("mask",))

    for power in (8, 17):

        def very_low(power: int = power) -> tuple[Request, ...]:
            query, key, value = coded(n, m)
            # one key a row: an lse near -2^33 could not tell how many keys it stands for
            mask = {"mask": np.arange(m) == 2 * np.arange(n)[:, None] % m}
            low_key = np.broadcast_to(np.asarray([2.0**power, 0, 0, 0]), key.shape)
            low_query = np.broadcast_to(np.asarray([-(2.0**power), 0, 0, 0]), query.shape)
            return Request((query, key, value), "float32", arrays=mask), Request(
                (low_query, low_key, value), "float32", arrays=mask
            )

        yield case(
            "MHA-MASK-3", f"all scores equal and near -2^{2 * power - 1}", very_low, features=("mask",), rule="as first",
            level="smoke" if power == 17 else "core",
        )  # fmt: skip

    for power in (5, 17):

        def hidden_wins(power: int = power) -> tuple[Request, ...]:
            query, key, value = coded(n, m)
            mask = {"mask": np.broadcast_to(np.arange(m) % 3 == 1, (n, m)).copy()}
            high_query, high_key = np.zeros_like(query), np.zeros_like(key)
            high_query[..., 0], high_key[..., 0] = 2.0**power, -(2.0**power)
            high_key[..., np.arange(m) % 3 != 1, 0] = 2.0**power
            return Request((query, key, value), "float32", arrays=mask), Request(
                (high_query, high_key, value), "float32", arrays=mask
            )

        yield case("MHA-MASK-3", f"hidden scores larger by 2^{2 * power}", hidden_wins, features=("mask",), rule="as first")


def biases() -> Iterator[Case]:
    n, m = 5, 7

    def hidden() -> Request:
        bias = np.where(choices(220, (n, m), 0.6) | np.eye(n, m, dtype=bool), fractions(221, (n, m), "float32"), -np.inf)
        return Request(coded(n, m, spread=1.0), "float32", arrays={"bias": bias})

    yield case("MHA-MASK-5", "bias of -inf hides", hidden, features=("bias",), level="smoke")
    lowest = float(np.finfo(np.float32).min)
    for name, value, kind in (
        ("lowest float32", lowest, "float32"),
        ("-1e300 in float64", -1e300, "float64"),
        ("-1e9", -1e9, "float32"),
    ):

        def finite(value: float = value, kind: str = kind) -> tuple[Request, ...]:
            plain = np.zeros((n, m))
            plain[3, ::2] = -np.inf
            low = np.where(plain == -np.inf, value, 0.0)
            low[1] = value
            operands = coded(n, m)
            return (
                Request(operands, "float32", arrays={"bias": plain}),
                Request(operands, "float32", arrays={"bias": low.astype(kind).astype(float)}, dtypes={"bias": kind}),
            )

        yield case(
            "MHA-MASK-6", f"a row of {name}", finite, features=("bias",), rule="as first",
            level="smoke" if kind == "float64" else "core",
        )  # fmt: skip


def bands() -> Iterator[Case]:
    for name, (n, m, offset) in ALIGNMENTS.items():
        given = {} if name == "square" else {"query_offset": offset}
        features = ("causal",) if name == "square" else ("causal", "offset")

        def causal(n: int = n, m: int = m, given: Mapping[str, Any] = given) -> Request:
            return Request(coded(n, m, spread=1.0), "float32", options={"is_causal": True, **given})

        yield case(
            "MHA-MASK-7" if name == "square" else "MHA-MASK-8", f"causal, {name}", causal, features=features,
            level="smoke" if name in ("square", "bottom-right") else "core",
        )  # fmt: skip
        if name == "past the end":
            continue  # there some windows are empty
        for window in ((2, 0), (0, 0), (1, 1), (None, 1), (2, None)):

            def windowed(n: int = n, m: int = m, given: Any = given, window: Any = window) -> Request:
                return Request(coded(n, m, spread=1.0), "float32", options={"window": window, **given})

            yield case(
                "MHA-MASK-10", f"window {window}, {name}", windowed,
                features=("window",) if name == "square" else ("window", "offset"),
                level="smoke" if (name, window) == ("square", (1, 1)) else "core",
            )  # fmt: skip

        def both(n: int = n, m: int = m, given: Any = given) -> Request:
            return Request(coded(n, m, spread=1.0), "float32", options={"is_causal": True, "window": (2, 2), **given})

        yield case(
            "MHA-MASK-11",
            f"causal and window, {name}",
            both,
            features=("window", *features),
            level="smoke" if offset == 3 else "core",
        )

    for n, m in ((64, 64), (65, 65), (130, 130), (129, 257)):

        def tiled(n: int = n, m: int = m) -> Request:
            options = {"is_causal": True, **({} if n == m else {"query_offset": m - n})}
            return Request(coded(n, m, spread=1.0), "float32", options=options)

        yield case(
            "MHA-MASK-7" if n == m else "MHA-MASK-8", f"causal over tiles, n = {n}, m = {m}", tiled,
            features=("causal",) if n == m else ("causal", "offset"),
        )  # fmt: skip

    def per_item() -> Request:
        return Request(
            coded(4, 7, spread=1.0, items=2),
            "float32",
            arrays={"query_offset": np.asarray([3, 0])},
            options={"is_causal": True},
        )

    yield case("MHA-MASK-8", "an offset per batch item", per_item, features=("causal", "offset"))

    def negative() -> Request:
        return Request(coded(6, 4, spread=1.0), "float32", options={"is_causal": True, "query_offset": -2})

    yield case("MHA-MASK-9", "rows before position 0", negative, features=("causal", "offset"), level="smoke")


def lengths_and_segments() -> Iterator[Case]:
    n, m = 5, 7
    for lengths in ([7, 3], [1, 6], [9, 5]):

        def per_item(lengths: list[int] = lengths) -> Request:
            return Request(coded(n, m, spread=1.0, items=2), "float32", arrays={"key_lengths": np.asarray(lengths)})

        yield case(
            "MHA-MASK-12",
            f"lengths {lengths[0]} and {lengths[1]}",
            per_item,
            features=("lengths",),
            level="smoke" if lengths[1] == 3 else "core",
        )
    for length in (1, 6, 7, 100):

        def shared(length: int = length) -> Request:
            return Request(coded(n, m, spread=1.0), "float32", options={"key_lengths": length})

        yield case("MHA-MASK-12", f"one length {length}", shared, features=("lengths",))

    def segments() -> Request:
        key_segments = np.sort(integers(230, (2, m), 0, 3), axis=-1)
        return Request(
            coded(n, m, spread=1.0, items=2), "float32",
            arrays={"query_segments": key_segments[:, [0, 1, 3, 5, 6]], "key_segments": key_segments},
        )  # fmt: skip

    yield case("MHA-MASK-13", "packed documents", segments, features=("segments",), level="smoke")

    def scattered() -> Request:
        key_segments = np.asarray([[0, 1, 0, 1, 2, 2, 0], [5, -3, 5, 5, -3, 9, 9]])
        return Request(
            coded(n, m, spread=1.0, items=2), "float32",
            arrays={"query_segments": key_segments[:, [1, 0, 4, 2, 5]], "key_segments": key_segments},
        )  # fmt: skip

    yield case("MHA-MASK-13", "any ids in any order", scattered, features=("segments",))


HIDERS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any], Mapping[str, Any]]] = {
    "mask": (("mask",), {"mask": (choices(240, (2, 1, 5, 7), 0.6) & (np.arange(7) != 6)) | np.eye(5, 7, dtype=bool)}, {}),
    "bias": (
        ("bias",),
        {"bias": np.where((choices(241, (5, 7), 0.6) & (np.arange(7) != 5)) | np.eye(5, 7, dtype=bool), 0.25, -np.inf)},
        {},
    ),
    "causal": (("causal", "offset"), {}, {"is_causal": True, "query_offset": 0}),
    "window": (("window", "offset"), {}, {"window": (2, 1), "query_offset": 0}),
    "lengths": (("lengths",), {"key_lengths": np.asarray([6, 4])}, {}),
    "segments": (
        ("segments",),
        {"query_segments": np.asarray([[0, 0, 1, 1, 1]] * 2), "key_segments": np.asarray([[0, 0, 1, 1, 1, 2, 2]] * 2)},
        {},
    ),
}
"""Every way to hide a key: features, array options, Python options, for n = 5 and m = 7; every row sees at least one key."""


def compositions() -> Iterator[Case]:
    """MASK-1, 14: every pair of ways to hide, and all together."""
    names = list(HIDERS)
    for at, first in enumerate(names):
        for second in names[at + 1 :]:
            yield composed(
                "MHA-MASK-14" if {first, second} in ({"mask", "bias"}, {"mask", "causal"}) else "MHA-MASK-1", (first, second)
            )
    yield composed("MHA-MASK-14", tuple(names), level="core")


def composed(clause: str, names: tuple[str, ...], level: Any = None) -> Case:
    features = tuple(dict.fromkeys(feature for name in names for feature in HIDERS[name][0]))

    def make() -> Request:
        arrays: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name in names:
            arrays |= HIDERS[name][1]
            options |= HIDERS[name][2]
        return Request(coded(5, 7, spread=1.0, items=2, h=2), "float32", arrays=arrays, options=options)

    return case(
        clause,
        " and ".join(names),
        make,
        features=features,
        level=level or ("smoke" if names in (("mask", "bias"), ("mask", "lengths")) else "core"),
    )


def empty_rows() -> Iterator[Case]:
    """MASK-15, 16, 17: no visible key, however it comes about."""
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
    for name, (features, arrays, options) in ways.items():
        first = name == "a masked row"

        def empty(arrays: Any = arrays, options: Any = options) -> Request:
            return Request(coded(n, m, spread=1.0, items=2), "float32", arrays=arrays, options=options)

        yield case("MHA-MASK-15" if first else "MHA-MASK-16", name, empty, features=features, level="smoke")

        def with_sink(arrays: Any = arrays, options: Any = options) -> Request:
            sinks = {"sink_logits": np.asarray([0.5])}
            return Request(coded(n, m, spread=1.0, items=2), "float32", arrays={**arrays, **sinks}, options=options)

        yield case(
            "MHA-MASK-17", f"{name}, with sinks", with_sink, features=(*features, "sink"), level="smoke" if first else "core"
        )

    def lse_of_sinks() -> Request:
        sinks = {"sink_logits": np.asarray([0.5])}
        return Request(coded(n, m, spread=1.0, items=2), "float32", arrays={"mask": row, **sinks}, options={"return_lse": True})

    yield case("MHA-MASK-17", "lse of an empty row with a sink", lse_of_sinks, features=("mask", "sink", "lse"))

    def no_keys() -> Request:
        return Request(coded(n, 0), "float32")

    yield case("MHA-MASK-16", "no keys at all", no_keys, level="smoke")


def hidden_data() -> Iterator[Case]:
    """MASK-18 (finite, by the bound) and MASK-19 (every bit, NaN and infinities included)."""
    query, key, value = operands(250, "float32", batch=(2,), h=2, n=5, m=7, d=4)
    for name, (features, arrays, options) in HIDERS.items():
        for poison in (2.0**60, -(2.0**100)):

            def finite(poison: float = poison, arrays: Any = arrays, options: Any = options) -> Request:
                return Request(poisoned(query, key, value, arrays, options, poison), "float32", arrays=arrays, options=options)

            yield case(
                "MHA-MASK-18", f"{poison:.0e} hidden by {name}", finite, features=features, group="poison",
                level="smoke" if poison > 0 else "core",
            )  # fmt: skip
        for poison, j in ((np.nan, 6), (np.nan, 3), (np.inf, 0), (-np.inf, 5), (2.0**60, 3), (2.0**100, 6)):

            def strict(poison: float = poison, j: int = j, arrays: Any = arrays, options: Any = options) -> tuple[Request, ...]:
                dirty_key, dirty_value = key.copy(), value.copy()
                dirty_key[..., j, :] = dirty_value[..., j, :] = poison
                clean = Request((query, key, value), "float32", arrays=arrays, options=options)
                return clean, Request((query, dirty_key, dirty_value), "float32", arrays=arrays, options=options)

            yield case(
                "MHA-MASK-19", f"key {j} is {poison:.0e}, {name}", strict, features=features, group="strict", rule="hidden bits",
                level="smoke" if np.isnan(poison) and j == 6 else "core",
            )  # fmt: skip


def poisoned(query: Any, key: Any, value: Any, arrays: Any, options: Any, poison: float) -> tuple[Any, Any, Any]:
    """The operands with ``poison`` in every key and value that no query of its batch item sees."""
    request = Request((query, key, value), "float32", arrays=arrays, options=options)
    unseen = ~visible_pairs(request).any(axis=-2)  # (b, h, m)
    return query, np.where(unseen[..., None], poison, key), np.where(unseen[..., None], poison, value)


def nans() -> Iterator[Case]:
    """MASK-20, 21, 22: NaN goes where it is seen, and nowhere else."""
    n, m = 5, 7
    for name, (features, arrays, options) in HIDERS.items():
        for where in ("query", "key", "value"):

            def spoiled(where: str = where, arrays: Any = arrays, options: Any = options) -> Request:
                parts = dict(
                    zip(("query", "key", "value"), operands(260, "float32", batch=(2,), h=2, n=n, m=m, d=4), strict=True)
                )
                parts[where][0, 1, 2, 1] = np.nan
                return Request(tuple(parts.values()), "float32", arrays=arrays, options=options)

            yield case(
                "MHA-MASK-21" if where == "value" else "MHA-MASK-20", f"NaN in a {where}, {name}", spoiled, features=features,
                group="strict" if where != "query" else "semantics", level="smoke" if name == "mask" else "core",
            )  # fmt: skip

    def sink() -> Request:
        mask = np.ones((n, m), dtype=bool)
        mask[2] = False
        return Request(coded(n, m, h=2), "float32", arrays={"mask": mask, "sink_logits": np.asarray([np.nan, 0.0])})

    yield case("MHA-MASK-22", "a NaN sink", sink, features=("mask", "sink"), group="strict", level="smoke")
