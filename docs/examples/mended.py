"""The same, mended clause by clause."""

import numpy as np


def attention(query, key, value, *, mask=None):
    if query.shape[:-3] != key.shape[:-3]:
        raise ValueError(f"batch axes {query.shape[:-3]} and {key.shape[:-3]}; they must be equal")  # MHA-VAL-4
    scale = query.dtype.type(max(query.shape[-1], 1) ** -0.5)  # in the query's own dtype: MHA-EXEC-1
    scores = query @ key.mT * scale
    if mask is not None:
        if mask.dtype != bool:
            raise ValueError(f"a mask of {mask.dtype}; it must be boolean")  # MHA-VAL-8
        scores = np.where(mask, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ value  # a row that sees nothing is 0: MHA-MASK-15
