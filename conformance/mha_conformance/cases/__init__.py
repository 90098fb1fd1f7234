"""The catalogue: every case of the suite, in the order of its chapters.

First each clause by itself, in the order of the text; then what crosses axes, which a kernel can get right alone and wrong together
with something else, the last of it drawn by lot; then the numbers, and the sizes of level full.
"""

from collections import Counter
from functools import lru_cache

from mha_conformance.cases import (
    asked,
    attention,
    auxiliary,
    bands,
    broadcasting,
    compositions,
    decoding,
    drawn,
    dropout,
    dtypes,
    emptiness,
    exactness,
    execution,
    far_apart,
    far_numbers,
    gradients,
    gradients_hidden,
    gradients_layer,
    heads,
    hidden,
    history,
    known,
    known_ranges,
    large,
    layer,
    layered,
    lengths,
    masks,
    memory,
    nan,
    option_pairs,
    parts,
    refusals,
    sizes,
    statistics,
    subnormal,
    tiles,
)
from mha_conformance.cases.case import Case, Level, Request

__all__ = ["Case", "Level", "Request", "catalogue"]

BY_CLAUSE = (
    refusals, execution, history, attention, masks, bands, lengths, compositions, emptiness, hidden, nan, heads, auxiliary, layer,
    decoding,
)  # fmt: skip
CROSSED = (
    sizes,
    dtypes,
    option_pairs,
    asked,
    broadcasting,
    tiles,
    far_numbers,
    parts,
    layered,
    memory,
    known,
    known_ranges,
    drawn,
)
NUMBERS = (exactness, subnormal, statistics, large, far_apart)
TRAINING = (gradients, gradients_hidden, gradients_layer, dropout)


@lru_cache(maxsize=1)
def catalogue() -> tuple[Case, ...]:
    """All cases; ids are unique."""
    found = tuple(case for part in (*BY_CLAUSE, *CROSSED, *NUMBERS, *TRAINING) for case in part.cases())
    if twice := sorted(name for name, times in Counter(case.id for case in found).items() if times > 1):
        raise ValueError(f"case ids that occur twice: {twice}")
    return found
