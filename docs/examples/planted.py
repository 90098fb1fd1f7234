"""The mended one with a bug planted: a large negative number stands for "hidden"."""

import mended
import numpy as np


def attention(query, key, value, *, mask=None):
    if mask is None or mask.dtype != bool:
        return mended.attention(query, key, value, mask=mask)
    scores = query @ key.mT * query.dtype.type(max(query.shape[-1], 1) ** -0.5)
    scores = scores + np.where(mask, np.float32(0), np.float32(-1e9))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    return weights / weights.sum(axis=-1, keepdims=True) @ value
