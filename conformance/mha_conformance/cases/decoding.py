"""Cases of CACHE, VARLEN and STAT: sequences that grow, sequences of unlike lengths, statistics of the weights."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Level, Request, Rule
from mha_conformance.cases.inputs import choices, eighths

CAUSAL: Mapping[str, Any] = {"is_causal": True}
ORDER = ("causal", "offset")
SIZES: Mapping[str, Any] = {"batch": (2,), "h": 3, "n": 9, "m": 9, "d": 4}
GROUPED: Mapping[str, Any] = {**SIZES, "h": 4, "h_kv": 2}
DTYPES = ("float32", "float64", "float16", "bfloat16")

decode = partial(case, group="decode")


def cases() -> Iterator[Case]:
    yield from chunks()
    yield from single_rows()
    yield from held()
    yield from packs()
    yield from statistics()


def in_chunks(
    arrays: Sequence[Any], sizes: Sequence[int], dtype: str = "float32", extra: Mapping[str, Any] | None = None, **options: Any
) -> tuple[Request, ...]:
    """One request for each chunk: its queries, and the keys up to its end (MHA-CACHE-1)."""
    query, key, value = arrays
    found, at = [], 0
    for size in sizes:
        end = at + size
        part = (query[..., at:end, :], key[..., :end, :], value[..., :end, :])
        found.append(Request(part, dtype, arrays=extra or {}, options={**options, "is_causal": True, "query_offset": at}))
        at = end
    return tuple(found)


def whole(arrays: Any, dtype: str = "float32", extra: Mapping[str, Any] | None = None, **options: Any) -> Request:
    """The same in one call."""
    return Request(tuple(arrays), dtype, arrays=extra or {}, options={**options, "is_causal": True, "query_offset": 0})


def chunks() -> Iterator[Case]:
    for dtype in DTYPES:

        def plain(dtype: str = dtype) -> Any:
            return in_chunks(operands(2000, dtype, **SIZES), (4, 3, 2), dtype)

        yield decode("MHA-CACHE-1", "chunks of 4, 3 and 2", plain, features=ORDER, dtype=dtype,
                     level="smoke" if dtype == "float32" else "core")  # fmt: skip
    for sizes in ((2, 7), (7, 2), (3, 3, 3), (2, 5, 2)):

        def other(sizes: tuple[int, ...] = sizes) -> Any:
            return in_chunks(operands(2001, "float32", **SIZES), sizes)

        yield decode("MHA-CACHE-1", f"chunks of {', '.join(map(str, sizes))}", other, features=ORDER)

    def grouped() -> Any:
        return in_chunks(operands(2002, "float32", **GROUPED), (4, 5))

    def windowed() -> Any:
        return in_chunks(operands(2003, "float32", **SIZES), (4, 3, 2), window=(2, 0))

    def sunk() -> Any:
        return in_chunks(operands(2004, "float32", **SIZES), (4, 5), extra={"sink_logits": eighths(2005, (3,))})

    yield decode("MHA-CACHE-1", "chunks of grouped heads", grouped, features=(*ORDER, "grouped"))
    yield decode("MHA-CACHE-1", "chunks under a window", windowed, features=(*ORDER, "window"))
    yield decode("MHA-CACHE-1", "chunks with a sink", sunk, features=(*ORDER, "sink"))


def single_rows() -> Iterator[Case]:
    ones = (1,) * 9
    for dtype in DTYPES:

        def plain(dtype: str = dtype) -> Any:
            return in_chunks(operands(2010, dtype, **SIZES), (5, 1, 1, 1, 1), dtype)

        yield decode("MHA-CACHE-2", "a prompt, then one token at a time", plain, features=ORDER, dtype=dtype,
                     level="smoke" if dtype == "float32" else "core")  # fmt: skip

    def grouped() -> Any:
        return in_chunks(operands(2011, "float32", **{**GROUPED, "batch": (3,)}), ones, return_lse=True)

    yield decode("MHA-CACHE-2", "lse of grouped heads, one token at a time", grouped, features=(*ORDER, "grouped", "lse"))

    def unlike() -> Request:
        query, key, value = operands(2012, "float32", **{**SIZES, "batch": (4,), "n": 1})
        lengths = np.asarray([9, 1, 5, 2])
        return Request(
            (query, key, value), "float32", options=CAUSAL, arrays={"query_offset": lengths - 1, "key_lengths": lengths}
        )

    yield decode("MHA-CACHE-2", "sequences of unlike lengths, one token", unlike, features=(*ORDER, "lengths"), level="smoke")
    for name, sizes, extra, options in (
        ("one token at a time", ones, {}, {}),
        ("chunks", (4, 3, 2), {}, {}),
        ("a window and a sink", ones, {"sink_logits": eighths(2013, (3,))}, {"window": (2, 0)}),
    ):

        def bits(sizes: Any = sizes, extra: Any = extra, options: Any = options) -> Any:
            arrays = operands(2014, "float32", **SIZES)
            return whole(arrays, extra=extra, **options), *in_chunks(arrays, sizes, extra=extra, **options)

        used = (*ORDER, *(["sink", "window"] if extra else []))
        yield decode("MHA-CACHE-2", f"the bits of the whole call, {name}", bits, features=used, rule="same rows")


def through(steps: Sequence[Any], arrays: Any = None, cache: Mapping[str, Any] | None = None, **options: Any) -> Request:
    """Causal attention of nine tokens, seen through a cache that is filled by ``steps``."""
    return Request(
        operands(2020, "float32", **SIZES) if arrays is None else arrays, "float32", target="cache",
        options={**CAUSAL, **options}, plan={"steps": tuple(steps), "cache": dict(cache or {"capacity": 9})},
    )  # fmt: skip


def held() -> Iterator[Case]:
    ragged = ((4, 1), (1, 3), (1, 1), (3, 4))
    made: Mapping[str, tuple[str, Request, tuple[str, ...], Rule]] = {
        "a prompt and single tokens": ("MHA-CACHE-3", through((5, 1, 1, 1, 1)), ORDER, "bound"),
        "chunks into a cache": ("MHA-CACHE-3", through((3, 3, 3)), ORDER, "bound"),
        "sequences of unlike lengths": ("MHA-CACHE-4", through(ragged), (*ORDER, "lengths"), "bound"),
        "a cache that grows": ("MHA-CACHE-5", through((2, 1, 4, 1, 1), cache={"capacity": None}), ORDER, "bound"),
        "a cache that is full": ("MHA-CACHE-5", through((5, 1, 1, 1, 1), cache={"capacity": 8}), ORDER, "refused"),
        "tokens taken back": ("MHA-CACHE-7", through((4, ("speculate", 3), 2, ("speculate", 2), 3)), ORDER, "bound"),
        "tokens taken back from unlike lengths": (
            "MHA-CACHE-7", through(((4, 1), ("speculate", 3), (1, 3), ("speculate", 2), (4, 5))), (*ORDER, "lengths"), "bound",
        ),
        "beams that change places": ("MHA-CACHE-8", through((4, ("reorder", (1, 0)), 3, ("reorder", (1, 0)), 2)), ORDER, "bound"),
        "beams of unlike lengths": (
            "MHA-CACHE-8", through(((5, 2), ("reorder", (1, 0)), (2, 5), ("reorder", (1, 0)), (2, 2))), (*ORDER, "lengths"), "bound",
        ),
        "a window that moves on": (
            "MHA-CACHE-9", through((4, 1, 1, 1, 1, 1), cache={"capacity": 5, "window": (2, 0)}, window=(2, 0)),
            (*ORDER, "window"), "bound",
        ),
        "a window that moves on in unlike lengths": (
            "MHA-CACHE-9", through(ragged, cache={"capacity": 6, "window": (2, 0)}, window=(2, 0)),
            (*ORDER, "window", "lengths"), "bound",
        ),
    }  # fmt: skip
    first = set()
    for name, (clause, request, features, rule) in made.items():
        level: Level = "core" if clause in first else "smoke"
        first.add(clause)
        yield decode(clause, name, lambda request=request: request, features=features, rule=rule, level=level)

    def misfit() -> Request:
        query, key, value = operands(2021, "float32", **SIZES)
        return through((4, 5), arrays=(query, key, value[:, :2, ...]))

    yield decode("MHA-CACHE-6", "keys and values of unlike heads", misfit, features=ORDER, rule="refused", level="smoke")


def pack(
    seed: int, lengths: Sequence[tuple[int, int]], *, h: int = 2, h_kv: int = 2, extra: Mapping[str, Any] | None = None,
    offsets: Any = None, dtype: str = "float32", **options: Any,
) -> Request:  # fmt: skip
    """Tokens first: sequences of n queries and m keys, one behind the other."""
    n, m = (sum(pair[at] for pair in lengths) for at in (0, 1))
    arrays = operands(seed, dtype, batch=(), h=h, h_kv=h_kv, n=n, m=m, d=4)
    starts = [[0, *np.cumsum([pair[at] for pair in lengths]).tolist()] for at in (0, 1)]
    plan = {"query_starts": starts[0], "key_starts": starts[1], **({} if offsets is None else {"query_offset": offsets})}
    return Request(
        tuple(np.swapaxes(x, 0, 1) for x in arrays), dtype, target="varlen", arrays=extra or {}, options=options, plan=plan
    )


def packs() -> Iterator[Case]:
    unequal = ((3, 5), (2, 3), (4, 4), (5, 7))
    for dtype in DTYPES:

        def plain(dtype: str = dtype) -> Request:
            return pack(2030, unequal, dtype=dtype)

        yield decode("MHA-VARLEN-1", "four sequences", plain, dtype=dtype, level="smoke" if dtype == "float32" else "core")
    yield decode("MHA-VARLEN-1", "equal neighbours", lambda: pack(2031, ((3, 5),) * 3 + ((2, 2),) * 2))
    yield decode(
        "MHA-VARLEN-1", "grouped heads with lse", lambda: pack(2032, unequal, h=4, return_lse=True), features=("grouped", "lse")
    )

    def numbered() -> tuple[Request, ...]:
        query, key, value = operands(2034, "float32", **{**SIZES, "batch": (1,)})
        ids = np.asarray([[5, 5, 5, 2, 9, 9, 9, 9, 9]])
        return (Request((query, key, value), "float32", options=CAUSAL, arrays={"query_segments": ids, "key_segments": ids}),)

    yield decode("MHA-VARLEN-2", "numbered sequences, causal", numbered, features=("causal", "segments"), level="smoke")

    def spilled() -> Request:
        request = pack(2035, unequal)
        return Request(request.operands, "float32", target="varlen", plan={**request.plan, "query_starts": [0, 3, 5, 9, 13]})

    yield decode("MHA-VARLEN-3", "a token of no sequence", spilled, rule="refused", level="smoke")
    bottom = [m - n for n, m in unequal]
    yield decode("MHA-VARLEN-4", "causal, an offset for each", lambda: pack(2036, unequal, offsets=bottom, **CAUSAL),
                 features=ORDER, level="smoke")  # fmt: skip
    yield decode("MHA-VARLEN-4", "causal, one offset for all", lambda: pack(2037, ((3, 5), (2, 3), (2, 7)), offsets=1, **CAUSAL),
                 features=ORDER)  # fmt: skip
    yield decode("MHA-VARLEN-4", "causal, unlike lengths and no offset", lambda: pack(2038, unequal, **CAUSAL), features=("causal",),
                 rule="refused")  # fmt: skip
    gaps = ((2, 3), (0, 4), (3, 0), (0, 0), (1, 2))
    yield decode("MHA-VARLEN-5", "sequences without queries or keys", lambda: pack(2039, gaps), level="smoke")


def statistic(name: str, seed: int, dtype: str = "float32", *, sizes: Mapping[str, Any] | None = None, extra: Any = None,
              top_k: int = 4, head_mean: tuple[int, int] = (2, 7), **options: Any) -> Request:  # fmt: skip
    """One statistic of nine queries and nine keys."""
    query, key, _ = operands(seed, dtype, **(sizes or SIZES))
    asks: dict[str, dict[str, Any]] = {
        "column_mass": {"column_mass": True}, "row_entropy": {"row_entropy": True}, "top_weights": {"top_k": top_k},
        "top_keys": {"top_k": top_k}, "head_mean": {"head_mean": head_mean},
    }  # fmt: skip
    return Request(
        (query, key, key),
        dtype,
        target="statistics",
        arrays=extra or {},
        options=options,
        plan={"statistic": name, "asked": asks[name]},
    )


def statistics() -> Iterator[Case]:
    names = {"column_mass": 1, "row_entropy": 2, "top_weights": 3, "top_keys": 3, "head_mean": 4}
    for at, (name, number) in enumerate(names.items()):
        clause, seed = f"MHA-STAT-{number}", 2040 + 10 * at
        words = name.replace("_", " ")
        make = partial(statistic, name)
        yield decode(clause, words, partial(make, seed), features=("weights",), level="core" if name == "top_keys" else "smoke")
        yield decode(clause, f"{words}, grouped", partial(make, seed + 1, sizes=GROUPED), features=("weights", "grouped"))

        def masked(make: Any = make, seed: int = seed, where: int = seed + 2) -> Request:
            mask = choices(where, (9, 9), 0.5)
            mask[4], mask[0, 0] = False, True
            return make(seed, extra={"mask": mask})  # type: ignore[no-any-return]

        yield decode(
            "MHA-STAT-6", f"{words} of a mask", masked, features=("weights", "mask"), level="smoke" if not at else "core"
        )

        def spoiled(make: Any = make, seed: int = seed) -> Request:
            request = make(seed, **CAUSAL)
            query = request.operands[0].copy()
            query[0, 1, 6, 2] = np.nan
            return Request((query, *request.operands[1:]), "float32", target="statistics", options=CAUSAL, plan=request.plan)

        yield decode("MHA-STAT-6", f"{words} of a NaN", spoiled, features=("weights", "causal"))
        for dtype in ("float64", "float16", "bfloat16"):
            yield decode("MHA-STAT-7", words, partial(make, seed + 3, dtype), features=("weights",), dtype=dtype,
                         level="smoke" if (at, dtype) == (0, "float64") else "core")  # fmt: skip

    def sunk() -> Request:
        return statistic("row_entropy", 2095, extra={"sink_logits": eighths(2096, (3,))})

    yield decode("MHA-STAT-2", "row entropy with a sink", sunk, features=("weights", "sink"))

    def beyond() -> Request:
        return statistic("head_mean", 2097, head_mean=(0, 10))

    yield decode("MHA-STAT-8", "keys that are not there", beyond, features=("weights",), rule="refused", level="smoke")
