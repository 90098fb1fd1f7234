"""What could be wrong with dropout: factors that are left out, and masks that belong to other pairs, each by the clause it breaks."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mha_conformance.cases.calls import factors_of
from mha_core import Call

Wrong: TypeAlias = tuple[str, str, Callable[[], Any]]
"""The clause, the sentence, and what the weights are then multiplied with."""
STARTS = ("batch_start", "head_start", "query_start", "key_start")


def wrong_factors(call: Call) -> Iterator[Wrong]:
    """Of a call with dropout; nothing without it."""
    drop = call.dropout
    if drop is None:
        return
    right = np.broadcast_to(factors_of(call), (*call.query.shape[:-1], call.key.shape[-2]))
    yield "MHA-DROP-1", "no weight is dropped", lambda: None
    yield "MHA-DROP-1", "the weights that are kept are not scaled up", lambda: (right != 0).astype(float)
    if drop.rate < 1:
        yield "MHA-DROP-1", "what should be kept is dropped, and the rest is kept", lambda: (right == 0) / (1 - drop.rate)
    if call.query.shape[-3] > 1:
        yield "MHA-DROP-2", "all heads have the mask of the first", lambda: np.broadcast_to(right[..., :1, :, :], right.shape)
    if drop.seed is None:
        return
    if drop.seed >= 2**32:
        yield "MHA-DROP-3", "the mask is that of the low word of the seed", _by(call, seed=drop.seed % 2**32)
    if any(getattr(drop, name) for name in STARTS):
        yield "MHA-DROP-4", "the mask begins at 0, whatever the starts are", _by(call, **dict.fromkeys(STARTS, 0))
    if isinstance(call.query_offset, int) and call.query_offset > 0:
        shifted = drop.query_start + call.query_offset
        yield "MHA-DROP-5", "the mask is drawn with the query offset added", _by(call, query_start=shifted)


def _by(call: Call, **changed: int) -> Callable[[], Any]:
    """The factors of a Dropout that is another in these numbers."""
    assert call.dropout is not None
    return partial(factors_of, replace(call, dropout=call.dropout._replace(**changed)))
