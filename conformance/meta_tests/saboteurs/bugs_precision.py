"""Known bugs of arithmetic in half types: what is too narrow, and where. Each is a row of ``known_bugs.tsv``."""

from typing import Any

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


class InHalf(Honest):
    """A kernel that knows in which half type it runs."""

    kind: Any = None

    def attend(self, call):
        self.kind = call.query.dtype if call.query.dtype.itemsize == 2 else None
        return super().attend(call)

    def rounded(self, x):
        return x if self.kind is None else x.astype(self.kind).astype(np.float64)


@breaks("MHA-NUM-3", "pytorch/pytorch#103167: the softmax runs in half, its sum too", bug="B086")
class SoftmaxInHalf(InHalf):
    def softmax(self, s, see, sink):
        a, lse = super().softmax(s, see, sink)
        if self.kind is None or not s.shape[-1]:
            return a, lse
        s = self.rounded(s)
        wide = np.concatenate([np.where(see, s, -np.inf), self.rounded(sink)], axis=-1)
        top = wide.max(axis=-1, keepdims=True)
        e = self.rounded(np.exp(self.rounded(wide - np.where(top == -np.inf, 0.0, top))))
        total = np.zeros_like(top)
        for j in range(e.shape[-1]):
            total = self.rounded(total + e[..., j : j + 1])
        return np.where(see, self.rounded(e[..., :-1] / np.where(total == 0, 1.0, total)), 0.0), lse


@breaks("MHA-NUM-3", "pytorch/pytorch#135964: scores and weights are stored in half", bug="B087")
class StoredInHalf(InHalf):
    def scores(self, q, k, scale):
        return self.rounded(super().scores(q, k, scale))

    def values(self, a, v, see):
        return super().values(self.rounded(a), v, see)


@breaks("MHA-NUM-3", "philipturner/metal-flash-attention#8: the product is stored in half, and scaled after that", bug="B088")
class ScaledAfterwards(InHalf):
    def scores(self, q, k, scale):
        return self.rounded(super().scores(q, k, 1.0)) * scale


@breaks("MHA-NUM-3", "huggingface/transformers#33317: the product and the softmax are in half", bug="B089")
class EagerInHalf(InHalf):
    def scores(self, q, k, scale):
        return self.rounded(self.rounded(super().scores(q, k, 1.0)) * scale)

    def values(self, a, v, see):
        return super().values(self.rounded(a), v, see)


@breaks("MHA-ATTN-5", "thu-ml/SageAttention#388: weights in 8 bits with one scale for all", bug="B139")
class WeightsInEightBits(Honest):
    def values(self, a, v, see):
        return super().values(np.where(np.isnan(a), a, np.round(a * 448) / 448), v, see)
