"""Chapter 2 for dropout: a rate, and either a seed with starts or the mask of what is kept."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, TypeGuard

from mha_spec.call import Array, Dropout, dtype_name
from mha_spec.contract_options import fits, is_finite_real
from mha_spec.violation import Violation, describe, is_array, shown

SEEDS = 2**64
STARTS = {"batch_start": 2**32, "head_start": 2**32, "query_start": 2**32, "key_start": 2**34}
"""How far each index may reach: one word of the counter, and four keys to each counter (MHA-DROP-3)."""


def keep_of(dropout: Any) -> Array | None:
    """The array among the arguments, whose library and device MHA-VAL-1 looks at; what is no array MHA-VAL-24 refuses."""
    keep = dropout.keep if isinstance(dropout, Dropout) else None
    return keep if is_array(keep) else None


def checked_dropout(dropout: Any, scores: Sequence[int]) -> Dropout | None:
    """MHA-VAL-19, MHA-VAL-23, MHA-VAL-24: ``keep`` comes back with the scores' rank; None where the rate is 0 and nothing is named."""
    if not isinstance(dropout, Dropout):
        part = shown(dropout) if is_finite_real(dropout) else "0.1"
        raise Violation(
            "MHA-VAL-19", f"dropout={shown(dropout)}", "a Dropout, or None",
            f"a rate does not say which weights are dropped: write Dropout({part}, seed=...) or Dropout({part}, keep=mask)",
        )  # fmt: skip
    rate, seed, keep, *_ = dropout
    if not is_finite_real(rate) or not 0 <= float(rate) <= 1:
        raise Violation(
            "MHA-VAL-23", f"rate={shown(rate)}", "a Python number from 0 to 1", "give the part of the weights to drop"
        )
    if (seed is None) == (keep is None):
        raise Violation(
            "MHA-VAL-23", "neither a seed nor keep" if seed is None else "both a seed and keep", "one of the two",
            "write Dropout(rate, seed) to draw what is dropped, or Dropout(rate, keep=mask) to name what stays",
        )  # fmt: skip
    starts = _checked_starts(dropout, scores)
    if keep is not None:
        return Dropout(float(rate), keep=_checked_keep(keep, scores))
    if not _is_integer(seed) or not 0 <= int(seed) < SEEDS:
        raise Violation("MHA-VAL-23", f"seed={shown(seed)}", "an int from 0 to 2^64 - 1", "take it modulo 2**64")
    return Dropout(float(rate), int(seed), **starts) if rate else None


def _checked_starts(dropout: Dropout, scores: Sequence[int]) -> dict[str, int]:
    """MHA-VAL-23: ints from 0, from which no index leaves its word of the counter; none beside ``keep``, which would ignore them."""
    *batch, h, n, m = scores
    starts = {}
    for (name, end), size in zip(STARTS.items(), (math.prod(batch), h, n, m), strict=True):
        start = getattr(dropout, name)
        if not _is_integer(start) or not 0 <= int(start) <= end - max(size, 1):
            raise Violation(
                "MHA-VAL-23", f"{name}={shown(start)} for {size} of them", f"an int from 0 to {end} - {max(size, 1)}",
                "count what lies before this part of the call; another seed begins anew",
            )  # fmt: skip
        if start and dropout.keep is not None:
            raise Violation(
                "MHA-VAL-23", f"{name}={shown(start)} beside keep", "no start", "cut keep to the part of the call instead"
            )
        starts[name] = int(start)
    return starts


def _checked_keep(keep: Any, scores: Sequence[int]) -> Array:
    """MHA-VAL-24: boolean, and of a shape that a mask might have."""
    if not is_array(keep) or dtype_name(keep) != "bool":
        given = describe(keep) if is_array(keep) else f"keep={shown(keep)}"
        raise Violation("MHA-VAL-24", given, "a boolean array keep, True = keep", "write keep != 0 if 1 means keep")
    return fits(keep, scores, "keep", "MHA-VAL-24")


def _is_integer(x: Any) -> TypeGuard[int]:
    """An integer of Python or NumPy, and no bool."""
    return isinstance(x, Integral) and not isinstance(x, bool)
