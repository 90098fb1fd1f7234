"""Cases that cross axes: what a kernel gets right alone and wrong together with something else.

Sizes around tiles at level core, wide heads, every option in every dtype, every way of scoring under every way of hiding, with
and without weights and lse, grouped, per batch item; and every option through the layer, in a call's history, and in memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from mha_conformance.cases.attention import codes
from mha_conformance.cases.build import ONE, case, operands
from mha_conformance.cases.case import Case, Request
from mha_conformance.cases.inputs import choices, eighths, fractions
from mha_conformance.cases.layer import projections

NARROW = ("float64", "float16", "bfloat16")
TILES = (31, 33, 65, 130, 257)
OPTIONS = ("mask", "bias", "causal", "window", "lengths", "segments", "scale", "softcap", "sink")
HIDING, SCORING = OPTIONS[:6], ("bias", "scale", "softcap", "sink")
CLAUSE = {
    "mask": "MHA-MASK-2", "bias": "MHA-ATTN-11", "causal": "MHA-MASK-8", "window": "MHA-MASK-10", "lengths": "MHA-MASK-12",
    "segments": "MHA-MASK-13", "scale": "MHA-ATTN-3", "softcap": "MHA-ATTN-10", "sink": "MHA-ATTN-12",
}  # fmt: skip
"""The clause that an option is tested for where it stands alone."""


def cases() -> Iterator[Case]:
    yield from sizes()
    yield from every_dtype()
    yield from scored_and_hidden()
    yield from asked_for()
    yield from broadcasts()
    yield from batch_axes()
    yield from hidden_tiles()
    yield from far_numbers()
    yield from merges()
    yield from layers()
    yield from memory()


def features(*names: str) -> tuple[str, ...]:
    """The features of options by name; a band with n != m needs an offset."""
    return tuple(dict.fromkeys((*names, *(("offset",) if {"causal", "window"} & set(names) else ()))))


def given(names: tuple[str, ...], batch: tuple[int, ...], h: int, n: int, m: int, dtype: str, seed: int = 0) -> dict[str, Any]:
    """``arrays`` and ``options`` of a request that uses the options called ``names``; every row sees its first keys."""
    items = np.arange(int(np.prod(batch))).reshape(batch)
    first = np.arange(m) < 1
    parts: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "mask": ({"mask": choices(1000 + seed, (n, m), 0.6) | first}, {}),
        "bias": ({"bias": 2 * fractions(1001 + seed, (n, m), dtype)}, {}),
        "causal": ({"query_offset": items % 2 + m // 3}, {"is_causal": True}),
        "window": ({"query_offset": items % 2 + m // 3}, {"window": (n + m, 1)}),
        "lengths": ({"key_lengths": m - 2 - items % 2}, {}),
        "segments": (
            {
                "query_segments": np.broadcast_to(np.arange(n) % 2, (*batch, n)) + items[..., None],
                "key_segments": np.broadcast_to(np.arange(m) % 2, (*batch, m)) + items[..., None],
            },
            {},
        ),
        "scale": ({}, {"scale": -0.75}),
        "softcap": ({}, {"softcap": 1.5}),
        "sink": ({"sink_logits": 1.0 + eighths(1002 + seed, (h,), 8)}, {}),
    }  # fmt: skip
    arrays: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name in names:
        arrays |= parts[name][0]
        options |= parts[name][1]
    if "segments" in names:  # parity and the first key meet in the first two keys
        arrays |= {"mask": arrays["mask"] | (np.arange(m) < 2)} if "mask" in names else {}
    return {"arrays": arrays, "options": options}


def request(
    names: tuple[str, ...], dtype: str = "float32", *, batch: tuple[int, ...] = (1,), h: int = 1, n: int = 4, m: int = 6, d: int = 4,
    h_kv: int | None = None, seed: int = 0, layout: str = "contiguous",
) -> Request:  # fmt: skip
    """One request with the options called ``names``, its scores of ordinary size."""
    parts = operands(1010 + seed, dtype, batch=batch, h=h, n=n, m=m, d=d, h_kv=h_kv)
    return Request(parts, dtype, **given(names, batch, h, n, m, dtype, seed), layout=layout)


def sizes() -> Iterator[Case]:
    """Tails of tiles of keys and of queries, wide heads, many heads: where kernels have paths of their own."""
    for size in TILES:
        for clause, n, m in (("MHA-ATTN-6", size, size), ("MHA-ATTN-8", 3, size), ("MHA-ATTN-8", size, 3)):
            if n * m > 20000:
                continue

            def tail(n: int = n, m: int = m) -> Request:
                return Request(operands(1100, "float32", batch=(1,), h=1, n=n, m=m, d=4), "float32")

            yield case(clause, f"tiles and a tail, n = {n}, m = {m}", tail)
    for n, m in ((2, 3), (3, 2), *((1, m) for m in (32, 64, 128, 256, 512, 513, 1025))):

        def unlike(n: int = n, m: int = m) -> Request:
            return Request(operands(1101, "float32", batch=(1,), h=1, n=n, m=m, d=2), "float32")

        yield case("MHA-ATTN-8", f"n = {n}, m = {m}", unlike)
    for items in (9, 17, 33):

        def many(items: int = items) -> Request:
            return Request(operands(1102, "float32", batch=(items,), h=1, n=2, m=2, d=2), "float32")

        yield case("MHA-EXEC-12", f"{items} batch items", many)
    for (n, m), (flag, clause) in product(
        ((9, 9), (33, 33), (1, 65), (65, 3)), (("weights", "MHA-AUX-1"), ("lse", "MHA-AUX-4"))
    ):

        def asked(n: int = n, m: int = m, flag: str = flag) -> Request:
            return Request(
                operands(1103, "float32", batch=(1,), h=1, n=n, m=m, d=4), "float32", options={f"return_{flag}": True}
            )

        yield case(clause, f"{flag}, n = {n}, m = {m}", asked, features=(flag,))
    for d in (2, 7, 9, 31, 80, 96, 128, 129, 192, 256):

        def balanced(d: int = d) -> Request:
            """Channels that cancel: every score is 0, unless one of them is left out."""
            key = np.arange(1.0, 5.0)[:, None] * np.where(np.arange(d) == 0, d - 1.0, -1.0)
            return Request((np.full((1, 1, 4, d), 4.0), key[None, None], codes((1, 1, 4, d), channels=False)), "float32")

        yield case("MHA-ATTN-1", f"all of {d} channels count", balanced)

        def ordinary(d: int = d) -> Request:
            return Request(operands(1110, "float32", batch=(1,), h=1, n=4, m=4, d=d), "float32")

        yield case("MHA-ATTN-6", f"d = {d}", ordinary)
    for d, d_v in ((4, 64), (4, 129), (64, 8), (128, 192)):
        yield case(
            "MHA-ATTN-7", f"d_k = {d}, d_v = {d_v}, all channels",
            lambda d=d, d_v=d_v: Request(operands(1120, "float32", batch=(1,), h=1, n=4, m=4, d=d, d_v=d_v), "float32"), features=("d_v",),
        )  # fmt: skip
    for h in (9, 16, 33):

        def wide(h: int = h) -> Request:
            return Request(operands(1130, "float32", batch=(1,), h=h, n=2, m=2, d=2), "float32")

        yield case("MHA-HEAD-1", f"{h} heads, few keys", wide)

    def rising(sign: int) -> Request:
        """The maximum of a row stands in its last tile, or in its first."""
        query, key, value = operands(1140, "float32", batch=(1,), h=1, n=2, m=130, d=2)
        key = np.abs(key) * np.ldexp(1.0, np.arange(130) // 32)[::sign, None]
        return Request((np.abs(query), key, value), "float32")

    yield case("MHA-ATTN-13", "a maximum in the last tile", lambda: rising(1))
    yield case("MHA-ATTN-13", "a maximum in the first tile", lambda: rising(-1))


def every_dtype() -> Iterator[Case]:
    """Each option in the dtypes that its own cases leave out."""
    for dtype, name in product(NARROW, OPTIONS):
        yield case(
            CLAUSE[name], f"{name} in this dtype", lambda dtype=dtype, name=name: request((name,), dtype, n=5, m=9, d=8),
            features=features(name), dtype=dtype,
        )  # fmt: skip
    for dtype in NARROW:
        yield case(
            "MHA-HEAD-2", "2 of 6 heads in this dtype",
            lambda dtype=dtype: Request(operands(1150, dtype, h=6, h_kv=2), dtype), features=("grouped",), dtype=dtype,
        )  # fmt: skip
        for feature, clause in (("weights", "MHA-AUX-1"), ("lse", "MHA-AUX-4" if dtype == "float64" else "MHA-AUX-5")):

            def asked(dtype: str = dtype, feature: str = feature) -> Request:
                return Request(operands(1151, dtype, **ONE), dtype, options={f"return_{feature}": True})

            yield case(clause, f"{feature} in this dtype", asked, features=(feature,), dtype=dtype)


def scored_and_hidden() -> Iterator[Case]:
    """Every way of scoring under every way of hiding, and every two of either: at n < m, one query, and n = m."""
    pairs = [(a, b) for a in SCORING for b in OPTIONS if a != b and not (b in SCORING and b < a)]
    for (n, m), pair in product(((4, 6), (1, 7), (5, 5)), pairs):
        yield case(
            "MHA-ATTN-9", f"{pair[0]} and {pair[1]}, n = {n}, m = {m}", lambda n=n, m=m, pair=pair: request(pair, n=n, m=m, d=2, seed=n),
            features=features(*pair),
        )  # fmt: skip
    for (n, m), a, b in product(((1, 9), (6, 6), (9, 5)), range(6), range(6)):
        pair = (HIDING[a], HIDING[b])
        if a >= b:
            continue
        clause = "MHA-MASK-14" if set(pair) in ({"mask", "bias"}, {"mask", "causal"}, {"bias", "causal"}) else "MHA-MASK-1"
        yield case(
            clause, f"{pair[0]} and {pair[1]} per item, n = {n}, m = {m}",
            lambda n=n, m=m, pair=pair: request(pair, batch=(3,), h=2, n=n, m=m, seed=20 + n), features=features(*pair),
        )  # fmt: skip


def asked_for() -> Iterator[Case]:
    """Every option with weights and lse, the output with and without them; heads alike, grouped, and one key head."""
    for name, (h, h_kv) in product(OPTIONS, ((2, 2), (6, 2), (3, 1))):

        def asked(name: str = name, h: int = h, h_kv: int = h_kv) -> tuple[Request, ...]:
            plain = request((name,), batch=(2,), h=h, h_kv=h_kv, n=5, m=9, seed=40)
            return plain, *(replace(plain, options={**plain.options, **flags}) for flags in FLAGS)

        grouped = ("grouped",) if h != h_kv else ()
        used = (*features(name), *grouped, "weights", "lse")
        yield case("MHA-AUX-3", f"{name} with weights and lse, {h_kv} of {h} heads", asked, features=used)

    for a, b in product(SCORING, HIDING):
        if a == b:
            continue

        def both(a: str = a, b: str = b) -> tuple[Request, ...]:
            plain = request((a, b), n=5, m=9, seed=50)
            return tuple(replace(plain, options={**plain.options, **flags}) for flags in FLAGS)

        yield case("MHA-AUX-3", f"{a} and {b} with weights and lse", both, features=(*features(a, b), "weights", "lse"))


FLAGS: tuple[Mapping[str, bool], ...] = (
    {"return_weights": True},
    {"return_lse": True},
    {"return_weights": True, "return_lse": True},
)


def broadcasts() -> Iterator[Case]:
    """Every choice of full and broadcast axes of a mask and a bias, heads alike and grouped."""
    for full, h_kv in product(product((True, False), repeat=4), (4, 2)):
        shape = tuple(size if there else 1 for size, there in zip((3, 4, 5, 7), full, strict=True))
        words = ", ".join(axis if there else "1" for axis, there in zip(("b", "h", "n", "m"), full, strict=True))
        grouped = ("grouped",) if h_kv < 4 else ()
        per_head = full[1] or grouped

        def masked(shape: tuple[int, ...] = shape, h_kv: int = h_kv) -> Request:
            mask = choices(1200, shape, 0.6) | (np.arange(shape[-1]) < 1)
            return Request(operands(1201, "float32", batch=(3,), h=4, h_kv=h_kv), "float32", arrays={"mask": mask})

        def biased(shape: tuple[int, ...] = shape, h_kv: int = h_kv) -> Request:
            bias = 2 * fractions(1202, (1, *shape), "float32")[0]
            return Request(operands(1203, "float32", batch=(3,), h=4, h_kv=h_kv), "float32", arrays={"bias": bias})

        name = f"({words}), {h_kv} of 4 heads"
        yield case("MHA-HEAD-4" if per_head else "MHA-MASK-4", f"mask {name}", masked, features=("mask", *grouped))
        yield case("MHA-HEAD-4" if per_head else "MHA-ATTN-11", f"bias {name}", biased, features=("bias", *grouped))

    def shared() -> Request:
        parts = operands(1204, "float32", batch=(2,), h=2, n=2, m=3, d=2)
        return Request(parts, "float32", arrays={"mask": np.asarray([[True, False, True], [False, True, False]])})

    yield case("MHA-MASK-4", "mask of rank 2 for every item and head", shared, features=("mask",))


def batch_axes() -> Iterator[Case]:
    """Each option under no, two and three batch axes."""
    for name, batch in product(OPTIONS, ((), (2, 3), (2, 1, 2))):
        axes = f"{len(batch)} batch axes" if batch else "no batch axis"

        def stacked(name: str = name, batch: tuple[int, ...] = batch) -> Request:
            return request((name,), batch=batch, h=3, seed=60)

        yield case("MHA-MASK-1" if name in HIDING else "MHA-ATTN-9", f"{name}, {axes}", stacked, features=features(name))


def hidden_tiles() -> Iterator[Case]:
    """Whole tiles that a row does not see, at the start and between; lengths and windows that end around tiles."""
    m = 130
    for name, seen in {
        "the first 33 keys hidden": np.arange(m) >= 33, "the first 64 keys hidden": np.arange(m) >= 64,
        "all but the last key hidden": np.arange(m) == m - 1, "every second tile of 32 hidden": np.arange(m) // 32 % 2 == 1,
        "every second tile of 16 hidden": np.arange(m) // 16 % 2 == 0,
    }.items():  # fmt: skip

        def masked(seen: Any = seen) -> Request:
            mask = np.stack([seen, np.ones(m, dtype=bool), seen[::-1]])
            return Request(operands(1300, "float32", batch=(1,), h=1, n=3, m=m, d=2), "float32", arrays={"mask": mask})

        yield case("MHA-MASK-2", name, masked, features=("mask",))
    lengths = (15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 130)

    def short() -> Request:
        values = codes((len(lengths), 1, m, 4), channels=False)
        query, key, _ = operands(1301, "float32", batch=(len(lengths),), h=1, n=2, m=m, d=4, spread=0.25)
        return Request((query, key, values), "float32", arrays={"key_lengths": np.asarray(lengths)})

    yield case("MHA-MASK-12", "lengths around tiles", short, features=("lengths",))
    for window in ((31, 0), (32, 0), (0, 33), (63, 64)):
        for n, m, offset in ((130, 130, 0), (3, 130, 97)):

            def windowed(n: int = n, m: int = m, offset: int = offset, window: tuple[int, int] = window) -> Request:
                options = {"window": window, **({} if n == m else {"query_offset": offset})}
                return Request(operands(1302, "float32", batch=(1,), h=1, n=n, m=m, d=4), "float32", options=options)

            yield case(
                "MHA-MASK-10", f"window {window} over tiles, n = {n}, m = {m}", windowed,
                features=("window",) if n == m else ("window", "offset"),
            )  # fmt: skip


def far_numbers() -> Iterator[Case]:
    """Windows wider than the keys, offsets and ids beyond the small integers: every integer has its meaning."""
    for window in ((6, 1), (100, 0), (0, 100), (2**40, 1), (1, 2**62 - 1), (None, 0), (0, None), (None, None)):
        yield case(
            "MHA-MASK-10", f"window {window} of 6 keys",
            lambda window=window: Request(operands(1400, "float32", **ONE), "float32", options={"window": window}), features=("window",),
        )  # fmt: skip
    for offset in (200, 2**31 + 7, 2**40):

        def causal(offset: int = offset) -> Request:
            parts = operands(1401, "float32", batch=(1,), h=1, n=3, m=6, d=4)
            return Request(parts, "float32", options={"is_causal": True, "query_offset": offset})

        yield case("MHA-MASK-8", f"causal at position {offset}", causal, features=("causal", "offset"))
    for name, band in {"causal": {"is_causal": True}, "window": {"window": (3, 2)}}.items():

        def before(band: Any = band) -> Request:
            parts = operands(1403, "float32", batch=(3,), h=1, n=5, m=7, d=4)
            return Request(parts, "float32", arrays={"query_offset": np.asarray([-2, 3, -7])}, options=band)

        clause = "MHA-MASK-9" if name == "causal" else "MHA-MASK-16"
        yield case(clause, f"{name}, positions per item, some before 0", before, features=(name, "offset"))
    for ids in ((0, 256, 65536), (2**24, 2**24 + 1, 2**24 + 2), (-1, 255, -257)):

        def far(ids: tuple[int, ...] = ids) -> Request:
            segments = np.asarray(ids)[[0, 1, 2, 0, 1, 2]][None]
            arrays = {"query_segments": segments, "key_segments": segments[:, ::-1].copy()}
            return Request(operands(1402, "float32", **ONE), "float32", arrays=arrays)

        yield case("MHA-MASK-13", f"ids {ids[0]}, {ids[1]} and {ids[2]}", far, features=("segments",))


def merges() -> Iterator[Case]:
    """Parts that lie near, apart and far apart, high and low; one part and many; every dtype and rank."""

    def part(at: int, shift: float = 0.0, dtype: str = "float32", shape: tuple[int, ...] = (2, 3, 5)) -> tuple[Any, Any]:
        wide = "float64" if dtype == "float64" else "float32"
        lse = (fractions(1500 + at, (1, *shape), wide)[0] + shift).astype(wide).astype(float)
        return fractions(1510 + at, (*shape, 4), dtype), lse

    def merge(*parts: tuple[Any, Any], dtype: str = "float32") -> Request:
        return Request(tuple(x for pair in parts for x in pair), dtype, target="merge")

    merged = {f"a part lower by {gap}": merge(part(0), part(1, -float(gap))) for gap in (9, 14, 40)}
    merged |= {
        f"all parts near {at}": merge(part(0, float(at)), part(1, at + 1.0), part(2, at - 1.0))
        for at in (-3000, 3000, 100, -100)
    }
    merged |= {"one part": merge(part(0)), "seven parts": merge(*(part(at) for at in range(7)))}
    merged |= {"one head, no batch": merge(*(part(at, shape=(1, 3)) for at in range(2)))}
    for name, asked in merged.items():
        yield case("MHA-AUX-7", name, lambda asked=asked: asked, features=("lse",))
    for dtype in NARROW:
        yield case(
            "MHA-AUX-7", "three parts in this dtype", lambda dtype=dtype: merge(*(part(at, at, dtype) for at in range(3)), dtype=dtype),
            features=("lse",), dtype=dtype,
        )  # fmt: skip


def layers() -> Iterator[Case]:
    """Every option through the layer, grouped too; a key bias, which only the lse shows."""
    x = fractions(1600, (2, 6, 12), "float32", 1.0)
    for name, h_kv in product(OPTIONS, (4, 2)):

        def layered(name: str = name, h_kv: int = h_kv) -> Request:
            return Request((x,) * 3, "float32", target="layer", projections=projections(1601, h=4, h_kv=h_kv),
                           **given((name,), (2,), 4, 6, 6, "float32", 80))  # fmt: skip

        grouped = ("grouped",) if h_kv < 4 else ()
        yield case("MHA-PROJ-12", f"{name}, {h_kv} of 4 heads", layered, features=("layer", *features(name), *grouped))

    for name in OPTIONS:

        def crossed(name: str = name) -> Request:
            key = fractions(1605, (2, 9, 10), "float32", 1.0)
            return Request((x, key, key), "float32", target="layer", projections=projections(1606, h=4, d_in_k=10, d_in_v=10),
                           **given((name,), (2,), 4, 6, 9, "float32", 85))  # fmt: skip

        yield case("MHA-PROJ-12", f"{name}, cross-attention", crossed, features=("layer", *features(name)))

    def key_bias() -> Request:
        weights = projections(1602, biases="k")
        return Request((x,) * 3, "float32", target="layer", projections=weights, options={"return_lse": True})

    yield case("MHA-PROJ-4", "a key bias moves the lse", key_bias, features=("layer", "lse"))
    for dtype in NARROW:

        def typed(dtype: str = dtype) -> Request:
            narrow = fractions(1603, (2, 5, 12), dtype, 1.0)
            return Request((narrow,) * 3, dtype, target="layer", projections=projections(1604, dtype, h=4, h_kv=2))

        yield case("MHA-PROJ-7", "2 of 4 heads in this dtype", typed, features=("layer", "grouped"), dtype=dtype)


def memory() -> Iterator[Case]:
    """Array options in other layouts, unmodified, and in a history where only they change."""
    for name in ("mask", "bias"):
        for layout in ("transposed", "padded", "every second", "reversed", "broadcast", "read-only"):
            yield case(
                "MHA-EXEC-4", f"{name} {layout}", lambda name=name, layout=layout: memory_request(name, layout), features=(name,),
            )  # fmt: skip
    for name in ("mask", "bias", "lengths", "segments", "sink", "causal"):

        def small(name: str = name, seed: int = 0) -> Request:
            return request((name,), n=2, m=4, d=2, seed=seed)

        yield case("MHA-EXEC-2", f"{name} is not modified", small, features=features(name), rule="facts", group="contract")

        def history(name: str = name) -> tuple[Request, ...]:
            first = request((name,), n=5, m=9, seed=100)
            other = replace(first, arrays={key: changed(key, x) for key, x in first.arrays.items()})
            return first, other, first

        yield case(CLAUSE[name], f"another {name} in between", history, features=features(name))


def memory_request(name: str, layout: str) -> Request:
    """A request whose operands are contiguous, and its mask or bias in ``layout``."""
    asked = request((name,), batch=(2,), h=3, n=5, m=9, seed=90)
    if layout == "broadcast":
        return replace(asked, arrays={name: np.repeat(asked.arrays[name][:1], 5, axis=0)}, layout=f"options {layout}")
    return replace(asked, layout=f"options {layout}")


def changed(name: str, x: Any) -> Any:
    """Other values of an option, of the same shape and dtype, that still leave every row a key."""
    if name == "mask":
        return x[:, ::-1] | (np.arange(x.shape[-1]) < 1)
    return {"key_lengths": x - 3, "query_offset": x + 2, "key_segments": x[..., ::-1]}.get(
        name, x / 2 if x.dtype.kind == "f" else x
    )
