"""What is trained: one layer whose single query reads a set of tokens, and a head of numbers on top; gradients by NumPy or by torch.

Parameters are NumPy arrays in float64 whoever differentiates, and one optimiser moves them, so the two trainings are the same up to
rounding. ``h`` heads of ``width / h`` channels have as many numbers and cost as many products as one head of ``width`` (MHA-COST-4).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mha_backends import numpy as on_numpy
from mha_core import Projections


class Batch(NamedTuple):
    """tokens (b, m, width), what they should give: numbers (b, out), or classes (b,)."""

    tokens: Any
    targets: Any


Parameters = dict[str, Any]
Loss = Callable[[Any, Any], tuple[float, Any]]
"""(predicted (b, out), targets) -> the mean loss, and its gradient with respect to what is predicted."""


def created(rng: Any, tokens: int, width: int, out: int, heads: int, positions: bool) -> Parameters:
    """The parameters before training. Positions are added to the tokens where these do not say themselves where they stand."""

    def drawn(*shape: int) -> Any:
        return rng.standard_normal(shape) / np.sqrt(shape[-2])

    d = width // heads
    found = {name: drawn(heads, width, d) for name in ("w_q", "w_k", "w_v")}
    found |= {"w_o": drawn(heads, d, out) / np.sqrt(heads), "b_o": np.zeros(out), "query": rng.standard_normal((1, width))}
    return found | ({"positions": 0.5 * rng.standard_normal((tokens, width))} if positions else {})


def seen(p: Parameters, tokens: Any) -> tuple[Any, Any]:
    """The inputs of the layer: one query for all, (b, 1, width), and the tokens, (b, m, width)."""
    query = p["query"] + 0 * tokens[:, :1]
    return query, tokens + p["positions"] if "positions" in p else tokens


def projections(p: Parameters) -> Projections:
    return Projections(p["w_q"], p["w_k"], p["w_v"], p["w_o"], b_o=p["b_o"])


def predicted(p: Parameters, tokens: Any) -> Any:
    """(b, out): the output of the layer at its query."""
    query, keys = seen(p, tokens)
    return on_numpy.multi_head_attention(query, keys, keys, projections(p))[:, 0]


def numpy_gradients(p: Parameters, batch: Batch, loss: Loss) -> tuple[float, Parameters]:
    """By the chapter's own backward, ``multi_head_attention_vjp``."""
    query, keys = seen(p, batch.tokens)
    output = on_numpy.multi_head_attention(query, keys, keys, projections(p))
    value, arriving = loss(output[:, 0], batch.targets)
    found = on_numpy.multi_head_attention_vjp(query, keys, keys, projections(p), arriving[:, None])
    grads = {name: x for name, x in found.projections._asdict().items() if x is not None} | {"query": found.query.sum(0)}
    return value, grads | ({"positions": (found.key + found.value).sum(0)} if "positions" in p else {})


def torch_gradients(p: Parameters, batch: Batch, loss: Loss) -> tuple[float, Parameters]:
    """By torch's autograd, through the torch backend's layer."""
    import torch

    from mha_backends.torch import multi_head_attention

    leaves = {name: torch.tensor(x, requires_grad=True) for name, x in p.items()}
    query, keys = seen(leaves, torch.tensor(batch.tokens))
    output = multi_head_attention(query, keys, keys, projections(leaves))[:, 0]
    value, arriving = loss(output.detach().numpy(), batch.targets)
    grads = torch.autograd.grad(output, list(leaves.values()), torch.tensor(arriving))
    return value, {name: x.numpy() for name, x in zip(leaves, grads, strict=True)}


GRADIENTS = {"numpy": numpy_gradients, "torch": torch_gradients}


def squares(predicted: Any, targets: Any) -> tuple[float, Any]:
    """The mean square error of a number."""
    off = predicted - targets
    return float(np.mean(off**2)), 2 * off / off.size


def cross_entropy(predicted: Any, targets: Any) -> tuple[float, Any]:
    """The mean of -log of what a softmax gives the right class."""
    shifted = predicted - predicted.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    rows = np.arange(len(targets))
    arriving = np.exp(logs)
    arriving[rows, targets] -= 1
    return float(-np.mean(logs[rows, targets])), arriving / len(targets)


def trained(
    p: Parameters, batches: Callable[[int], Batch], loss: Loss, steps: int, rate: float, library: str = "numpy"
) -> Parameters:
    """Adam (Kingma and Ba, 2015), with a rate that falls to 0 as half a cosine."""
    gradients = partial(GRADIENTS[library], loss=loss)
    p = {name: x.copy() for name, x in p.items()}
    mean, square = ({name: np.zeros_like(x) for name, x in p.items()} for _ in range(2))
    for step in range(steps):
        _, grads = gradients(p, batches(step))
        now = rate * (1 + np.cos(np.pi * step / steps)) / 2
        for name, g in grads.items():
            mean[name] = 0.9 * mean[name] + 0.1 * g
            square[name] = 0.99 * square[name] + 0.01 * g * g
            unbiased = mean[name] / (1 - 0.9 ** (step + 1)), square[name] / (1 - 0.99 ** (step + 1))
            p[name] = p[name] - now * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
    return p
