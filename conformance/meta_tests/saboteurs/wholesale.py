"""Saboteurs that break everything at once. Blame falls on the first thing that a correct attention must get right."""

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


@breaks("MHA-ATTN-1", "zeros")
class Zeros(Honest):
    def result(self, call, output, a, lse):
        return super().result(call, output * 0, a, lse)


@breaks("MHA-ATTN-1", "a constant")
class Constant(Honest):
    def result(self, call, output, a, lse):
        return super().result(call, np.ones_like(output), a, lse)


@breaks("MHA-ATTN-1", "the mean of V")
class MeanOfValues(Honest):
    def values(self, a, v, see):
        return super().values(see / np.maximum(see.sum(axis=-1, keepdims=True), 1), v, see)


@breaks("MHA-ATTN-1", "NaN everywhere")
class NanEverywhere(Honest):
    def result(self, call, output, a, lse):
        return super().result(call, output * np.nan, a, lse)


@breaks("MHA-ATTN-1", "the query comes back")
class Echo(Honest):
    def after(self, result):
        return result[..., ::-1, :] if isinstance(result, np.ndarray) and result.ndim > 2 else result
