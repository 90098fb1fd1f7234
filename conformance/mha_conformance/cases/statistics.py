"""The designated sets S0 to S10: inputs over which errors are counted together (MHA-NUM-21).

Each set has at least 1000 elements of output, of both signs. Hardly any scores of a row are equal, unless they share the
maximum, so that their roundings are independent. What makes a set hard is its name.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from mha_conformance.cases.build import case, operands
from mha_conformance.cases.case import Case, Level, Request, Rule
from mha_conformance.cases.inputs import choices

DTYPES = ("float32", "float64", "float16", "bfloat16")
SMALL: Mapping[str, Any] = {"batch": (1,), "h": 2, "n": 16, "m": 40, "d": 32}
LARGE: Mapping[str, Any] = {"batch": (1,), "h": 2, "n": 64, "m": 256, "d": 64}

Make: TypeAlias = Callable[[str, Mapping[str, Any]], tuple[Request, ...]]


def cases() -> Iterator[Case]:
    """Every set in every dtype; the clauses that a set serves share its requests."""
    for (name, make), dtype, (suffix, sizes) in (
        (entry, dtype, size) for entry in SETS.items() for dtype in DTYPES for size in (("", SMALL), (", large", LARGE))
    ):
        first: Level = "smoke" if name == FIRST and dtype == "float32" else "core"
        for clause, rule in RULES.items():
            if rule != "filter" or name in FILTERED:
                yield case(
                    clause, f"{name}{suffix}", lambda make=make, dtype=dtype, sizes=sizes: make(dtype, sizes),
                    features=FEATURES.get(name, ()), group="numerics", level="full" if suffix else first, dtype=dtype, rule=rule,
                )  # fmt: skip


RULES: Mapping[str, Rule] = {"MHA-NUM-19": "statistics", "MHA-NUM-20": "probable", "MHA-NUM-22": "filter"}


def ordinary(dtype: str, sizes: Mapping[str, Any]) -> tuple[Request, ...]:
    return (Request(operands(2000, dtype, **sizes, spread=1.0), dtype),)


def nearly_equal(dtype: str, sizes: Mapping[str, Any]) -> tuple[Request, ...]:
    """Scores near 0: every key weighs almost the same, and sums run long."""
    query, key, value = operands(2010, dtype, **sizes, spread=1.0)
    return (Request((query / 8, key / 8, value), dtype),)


def causal(dtype: str, sizes: Mapping[str, Any]) -> tuple[Request, ...]:
    """Rows of one key and of many."""
    sides = {**sizes, "n": sizes["m"]}
    return (Request(operands(2020, dtype, **sides, spread=1.0), dtype, options={"is_causal": True}),)


def one_sign(dtype: str, sizes: Mapping[str, Any]) -> tuple[Request, ...]:
    """Products that are all positive: a truncating sum errs the most."""
    query, key, value = operands(2030, dtype, **sizes, spread=0.5)
    return (Request((np.abs(query), np.abs(key), value), dtype),)


def cancelling(dtype: str, sizes: Mapping[str, Any]) -> tuple[Request, ...]:
    """Products that cancel but for a few channels: |s| far below |q||k|."""
    query, key, value = operands(2040, dtype, **sizes, spread=1.0)
    half = sizes["d"] // 2
    query[..., half:] = -query[..., :half]
    key[..., half:-4] = key[..., : half - 4]
    return (Request((query, key, value), dtype),)


def many_binades(dtype: str, sizes: Mapping[str, Any]) -> tuple[Request, ...]:
    """Channels and values of very different size."""
    query, key, value = operands(2050, dtype, **sizes, spread=1.0)
    by_channel = np.ldexp(1.0, np.arange(sizes["d"]) % 5 - 2)
    by_key = np.ldexp(1.0, -(np.arange(sizes["m"]) % 7))[:, None]
    return (Request((query * by_channel, key / by_channel, value * by_key), dtype),)


def tied(dtype: str, sizes: Mapping[str, Any]) -> tuple[Request, ...]:
    """Four keys share the maximum, and a channel's values share their sign: what rounds alike does not cancel (arXiv 2510.04212)."""
    query, key, value = operands(2060, dtype, **sizes, spread=0.25)
    top = np.abs(key).max(axis=-2, keepdims=True)
    at = np.asarray([0, 3, sizes["m"] // 2, sizes["m"] - 1])
    key[..., at, :] = top
    signs = np.where(np.arange(sizes["d"]) % 2, -1.0, 1.0)
    return (Request((np.abs(query), key, 4 * np.abs(value) * signs), dtype),)


def saturated(dtype: str, sizes: Mapping[str, Any]) -> tuple[Request, ...]:
    """Scores of size 1000: one key takes all (torch-mojo-backend#398)."""
    query, key, value = operands(2070, dtype, **sizes, spread=1.0)
    return (Request((64 * query, 32 * key, value), dtype),)


def ragged(dtype: str, sizes: Mapping[str, Any]) -> tuple[Request, ...]:
    """One key, and lengths around a tile of keys: what is left over is neither lost nor read twice."""
    lengths = (1, 7, 9, 31, 33) if sizes is SMALL else (1, 63, 65, 127, 129)
    return tuple(Request(operands(2080 + m, dtype, **{**sizes, "m": m}, spread=1.0), dtype) for m in lengths)


def small_values(dtype: str, sizes: Mapping[str, Any]) -> tuple[Request, ...]:
    """Values of size 0.01 and 0.0001, at which constant tolerances see nothing (KernelBench#165, mlir-air#1427)."""
    query, key, value = operands(2300, dtype, **sizes, spread=1.0)
    return tuple(Request((query, key, np.ldexp(2 * value, -by)), dtype) for by in (7, 13))


def poisoned(dtype: str, sizes: Mapping[str, Any]) -> tuple[Request, ...]:
    """A third of the pairs is hidden, and some keys are hidden from all; they are 1000 times as large."""
    query, key, value = operands(2310, dtype, **sizes, spread=1.0)
    mask = choices(2315, (sizes["n"], sizes["m"]), 0.67)
    mask[:, ::5], mask[:, 1] = False, True
    key[..., ::5, :] *= 1024
    value[..., ::5, :] *= 1024
    return (Request((query, key, value), dtype, arrays={"mask": mask}),)


SETS: Mapping[str, Make] = {
    "S0 ordinary": ordinary,
    "S1 nearly equal scores": nearly_equal,
    "S2 causal": causal,
    "S3 products of one sign": one_sign,
    "S4 cancelling products": cancelling,
    "S5 many binades": many_binades,
    "S6 tied maxima": tied,
    "S7 saturated scores": saturated,
    "S8 ragged tails": ragged,
    "S9 small values": small_values,
    "S10 hidden poison": poisoned,
}
FIRST = "S0 ordinary"
FEATURES: Mapping[str, tuple[str, ...]] = {"S2 causal": ("causal",), "S10 hidden poison": ("mask",)}
FILTERED = ("S0 ordinary", "S2 causal", "S3 products of one sign", "S9 small values", "S10 hidden poison")
"""The sets whose errors are searched for a broken clause."""
