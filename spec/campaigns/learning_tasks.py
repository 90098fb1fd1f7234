"""What is learned: to read several related tokens at once, and handwritten digits."""

from typing import Any

import numpy as np
from learning_models import Batch

WIDTH = 32
"""Of the layer, over all heads."""
CONTENT, TOKENS = 8, 6
"""Numbers in a token, and tokens beside the query."""


def relations(rng: Any, count: int, asked: int) -> Batch:
    """Tokens (role, content), and what the first ``asked`` roles hold, side by side.

    A token is a one-hot role in 6 channels, a content of 8 standard normal numbers, and zeros up to the width. Each role is a relation
    to the query: who did it, to whom, with what, ...
    """
    content = rng.standard_normal((count, TOKENS, CONTENT))
    roles = np.broadcast_to(np.eye(TOKENS), (count, TOKENS, TOKENS))
    rest = np.zeros((count, TOKENS, WIDTH - TOKENS - CONTENT))
    return Batch(np.concatenate([roles, content, rest], -1), content[:, :asked].reshape(count, -1))


def floor(asked: int, heads: int) -> float:
    """The least mean square error per number that this many heads allow, whatever reads their output (MHA-HEAD-12)."""
    return max(asked - heads, 0) * max(CONTENT - heads, 0) / (asked * CONTENT)


def floor_of_a_sample(asked: int, heads: int, count: int) -> float:
    """What the mean over ``count`` samples is not below, but for a chance of 3 in 100 000: 4 standard deviations under the floor.

    What no head fixes are (R - h)(k - h) independent standard normal numbers in a sample, so its least error is a chi-square variable.
    """
    left = max(asked - heads, 0) * max(CONTENT - heads, 0)
    return floor(asked, heads) * (1 - 4 * float(np.sqrt(2 / (left * count)))) if left else 0.0


def digits() -> tuple[Batch, Batch]:
    """scikit-learn's 1797 digits, 8 by 8 pixels in 16 patches of 2 by 2: (training, test), 1297 and 500 of them.

    A token is a patch, its 4 pixels scaled to 0 .. 1, and zeros up to the width.
    """
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    patches = images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4) / 16
    tokens = np.concatenate([patches, np.zeros((*patches.shape[:2], WIDTH - 4))], -1)
    order = np.random.default_rng(0).permutation(len(tokens))
    train, test = order[:-500], order[-500:]
    return Batch(tokens[train], classes[train]), Batch(tokens[test], classes[test])
