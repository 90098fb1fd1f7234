"""Strangers that can be trained: one brings a function for its gradients, the others are differentiated. Honest ones and others."""

import numpy as np
import torch
from strangers import attention

__all__ = ["attention"]


def attention_vjp(query, key, value, grad_output, *, mask=None, is_causal=False):
    """Chapter 5, in NumPy; a plain tuple comes back."""
    return _gradients(query, key, value, grad_output, mask, is_causal, mean=lambda D: D)


def without_mean(query, key, value, grad_output, *, mask=None, is_causal=False):
    """D is left out."""
    return _gradients(query, key, value, grad_output, mask, is_causal, mean=lambda D: 0 * D)


def _gradients(query, key, value, grad, mask, is_causal, mean):
    if grad.shape != (*query.shape[:-1], value.shape[-1]):
        raise ValueError("grad_output has the shape of the output")
    n, m, d = query.shape[-2], key.shape[-2], query.shape[-1]
    scale = np.float32(1 / np.sqrt(d)) if d else np.float32(1)
    see = np.ones((n, m), dtype=bool) if mask is None else mask
    see = see & (np.arange(m) <= np.arange(n)[:, None]) if is_causal else see
    scores = np.where(see, scale * np.matmul(query, np.swapaxes(key, -1, -2)), np.float32(-np.inf))
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(scores - np.where(top == -np.inf, np.float32(0), top))
    total = p.sum(axis=-1, keepdims=True)
    p = p / np.where(total == 0, np.float32(1), total)
    dp = np.matmul(grad, np.swapaxes(value, -1, -2))
    ds = np.where(see, p * (dp - mean((p * dp).sum(axis=-1, keepdims=True))), np.float32(0))
    turned = np.swapaxes(ds, -1, -2)
    return scale * np.matmul(ds, key), scale * np.matmul(turned, query), np.matmul(np.swapaxes(p, -1, -2), grad)


def of_torch(query, key, value, *, bias=None, return_lse=False):
    """Straight from the paper."""
    return _of_torch(query, key, value, bias, return_lse, lambda weights: weights)


def detached(query, key, value, *, bias=None, return_lse=False):
    """A right answer whose weights are constants to autograd: query and key learn nothing."""
    return _of_torch(query, key, value, bias, return_lse, lambda weights: weights.detach())


def positions_first(query, key, value):
    """(batch, n, heads, d) in and out."""
    return _of_torch(*(x.transpose(-2, -3) for x in (query, key, value)), None, False, lambda w: w).transpose(-2, -3)


def _of_torch(query, key, value, bias, return_lse, weights):
    scores = query @ key.mT / max(query.shape[-1], 1) ** 0.5
    scores = scores if bias is None else scores + bias
    output = (weights(torch.softmax(scores, -1)) @ value.to(scores.dtype)).to(query.dtype)
    return (output, None, torch.logsumexp(scores, -1).float()) if return_lse else output
