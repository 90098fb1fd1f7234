"""Numbers for a sentence that no model was trained on: embeddings, positions and projections from a seed and a name.

They come from the counter of ``mha_conformance.cases.inputs``: the same token, seed and width give the same row everywhere.
"""

import math
import zlib
from typing import Any

import numpy as np

from mha_conformance.cases.inputs import fractions
from mha_core import Projections
from mha_spec.numerics_steps import Reals


def embeddings(tokens: tuple[str, ...], d_model: int, seed: int) -> Reals:
    """(n, d_model): a row per token, of variance 1. The same token has the same row wherever it stands."""
    return np.stack([drawn(f"token {token}", (d_model,), seed) for token in tokens])


def positions(n: int, d_model: int) -> Reals:
    """(n, d_model): channel 2c is sin(i / 10000^(2c / d_model)), channel 2c + 1 its cosine. Source: section 3.5."""
    channel = np.arange(d_model)
    angle = np.arange(n)[:, None] / 10000.0 ** (2 * (channel // 2) / d_model)  # (n, d_model)
    return np.where(channel % 2 == 0, np.sin(angle), np.cos(angle))


def projections(d_model: int, h: int, d_k: int, seed: int) -> Projections:
    """Matrices of every head without biases, of variance 1 / d_in, so that queries, keys and values keep the size of X."""
    inward, outward = (h, d_model, d_k), (h, d_k, d_model)
    names: dict[str, tuple[int, ...]] = {"w_q": inward, "w_k": inward, "w_v": inward, "w_o": outward}
    drawings: dict[str, Any] = {name: drawn(name, shape, seed) / np.sqrt(d_model) for name, shape in names.items()}
    return Projections(**drawings)


def drawn(name: str, shape: tuple[int, ...], seed: int) -> Reals:
    """Evenly spread numbers of mean 0 and variance 1, that is between -sqrt(3) and sqrt(3)."""
    stream = zlib.crc32(f"{seed} {name}".encode())
    return math.sqrt(3.0) * fractions(stream, (int(np.prod(shape)),), "float64", 1.0).reshape(shape)
