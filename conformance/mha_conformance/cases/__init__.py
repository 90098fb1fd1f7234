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
    constants,
    decoding,
    drawn,
    dropout,
    dtypes,
    emptiness,
    empty_results,
    exactness,
    execution,
    far_apart,
    far_numbers,
    gradients,
    gradients_hidden,
    gradients_layer,
    gradients_pairs,
    gradients_tiles,
    heads,
    hidden,
    hidden_results,
    history,
    known,
    known_ranges,
    large,
    layer,
    layered,
    lengths,
    linear,
    masks,
    memory,
    memory_options,
    nan,
    option_pairs,
    over_tiles,
    parts,
    per_item,
    refusals,
    sizes,
    statistics,
    subnormal,
    tiles,
    wide_integers,
)
from mha_conformance.cases.case import Case, Level, Request

__all__ = ["Case", "Level", "Request", "catalogue"]

BY_CLAUSE = (
    refusals, execution, history, attention, masks, bands, lengths, compositions, emptiness, empty_results, hidden, hidden_results, nan,
    heads, auxiliary, layer, decoding,
)  # fmt: skip
CROSSED = (
    sizes,
    dtypes,
    option_pairs,
    asked,
    broadcasting,
    tiles,
    wide_integers,
    over_tiles,
    per_item,
    far_numbers,
    parts,
    layered,
    memory,
    memory_options,
    known,
    known_ranges,
    drawn,
)
NUMBERS = (exactness, constants, subnormal, statistics, large, far_apart, linear)
TRAINING = (gradients, gradients_hidden, gradients_pairs, gradients_tiles, gradients_layer)
DROPPED = (dropout,)


@lru_cache(maxsize=1)
def catalogue() -> tuple[Case, ...]:
    """All cases; ids are unique."""
    found = tuple(case for part in (*BY_CLAUSE, *CROSSED, *NUMBERS, *TRAINING, *DROPPED) for case in part.cases())
    if twice := sorted(name for name, times in Counter(case.id for case in found).items() if times > 1):
        raise ValueError(f"case ids that occur twice: {twice}")
    return found
