"""Attention as one writes it from the paper."""

import numpy as np


def attention(query, key, value, *, mask=None):
    scores = query @ key.mT / np.sqrt(query.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ value
