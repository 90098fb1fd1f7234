"""Known bugs of scores and softmax: order, scale, overflow, tails, NaN. Each is a row of ``known_bugs.tsv``."""

from dataclasses import replace

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


@breaks("MHA-MASK-20", "tenstorrent/tt-metal#56056: the exponential clamps its argument and replaces NaN", bug="B059")
class ExponentialSanitised(Honest):
    def softmax(self, s, see, sink):
        return super().softmax(
            np.nan_to_num(s, nan=-88.5, neginf=-88.5, posinf=88.5), see, np.nan_to_num(sink, nan=0.0, neginf=-np.inf)
        )


@breaks("MHA-MASK-6", "pytorch/pytorch#110213: the lowest number times log2(e) overflows, and the row is NaN", bug="B060")
class LowestTimesLog2(Honest):
    def biased(self, s, bias):
        found = super().biased(s, bias)
        if bias is None:
            return found
        with np.errstate(over="ignore"):
            narrow = (found * np.log2(np.e)).astype(np.float32)
        lost = np.isneginf(narrow) & (bias != -np.inf)
        return np.where(lost.all(axis=-1, keepdims=True) & (found.shape[-1] > 0), np.nan, found)


@breaks("MHA-ATTN-10", "ggml-org/llama.cpp#29034: keys of a partial tile come back by the cap", bug="B069")
class CapRevivesTail(Honest):
    tile = 64

    def attend(self, call):
        self.tail = 0 if call.softcap is None or call.hides else -call.key.shape[-2] % self.tile
        self.cap = call.softcap
        return super().attend(call)

    def softmax(self, s, see, sink):
        if not self.tail or not s.shape[-1]:
            return super().softmax(s, see, sink)
        ghosts = np.log(self.tail) - self.cap
        return super().softmax(s, see, np.logaddexp(sink, ghosts))


@breaks("MHA-EXEC-5", "pytorch/pytorch#184122: a cache of kernels has the shapes for its key, and not the scale", bug="B074")
class ScaleRemembered(Honest):
    def __init__(self):
        self.kernels = {}

    def scale(self, call):
        return self.kernels.setdefault((call.query.shape, call.key.shape, call.query.dtype.name), call.scale)


@breaks("MHA-ATTN-3", "NVIDIA/Megatron-LM#1429: a multiplier of the scale is taken once where it counts twice", bug="B079")
class MultiplierOnce(Honest):
    def scale(self, call):
        default = (call.query.shape[-1] or 1) ** -0.5
        return call.scale if call.scale <= 0 else np.sqrt(call.scale * default)


@breaks("MHA-ATTN-13", "pytorch/pytorch#121558: x * c is exact and the maximum times c is rounded", bug="B091")
class FusedExponent(Honest):
    def softmax(self, s, see, sink):
        c = np.log2(np.e)
        kept = np.where(see & np.isfinite(s), s, -np.inf)
        top = np.concatenate([kept, sink], axis=-1).max(axis=-1, keepdims=True)
        top = np.where(np.isfinite(top), top, 0.0)
        residual = (top.astype(np.float32) * np.float32(c)).astype(np.float32).astype(np.float64) - top * np.float64(
            np.float32(c)
        )
        a, lse = super().softmax(s, see, sink)
        e = np.exp2(-residual).astype(np.float32).astype(np.float64)
        return np.where((e == 0) | np.isinf(e), np.where(np.isinf(e), np.nan, 0.0) * a, a), lse


@breaks("MHA-ATTN-6", "jax-ml/jax#27224: keys that fill the last block up have score 0, not weight 0", bug="B120")
class TailCounts(Honest):
    block = 16

    def attend(self, call):
        self.tail = -call.key.shape[-2] % self.block if call.key.shape[-2] > self.block and not call.hides else 0
        return super().attend(call)

    def softmax(self, s, see, sink):
        return super().softmax(s, see, np.logaddexp(sink, np.log(self.tail)) if self.tail else sink)


@breaks("MHA-ATTN-6", "FluxML/NNkernels.jl#16: the maximum of a row is taken over what lies behind the keys", bug="B122")
class MaximumOverGarbage(Honest):
    group = 16

    def values(self, a, v, see):
        m = v.shape[-2]
        return super().values(a * 0 if m > self.group and m % self.group else a, v, see)


@breaks("MHA-ATTN-1", "pytorch/pytorch#110505: channels are read in eights, and the lanes left over hold NaN", bug="B130")
class LanesOfEight(Honest):
    def scores(self, q, k, scale):
        s = super().scores(q, k, scale)
        return s * np.nan if q.shape[-1] > 4 and q.shape[-1] % 8 else s


@breaks("MHA-MASK-19", "Dao-AILab/flash-attention#1745: behind the length only the scores are masked", bug="B141")
class ValuesBehindLength(Honest):
    def attend(self, call):
        found = super().attend(call)
        length = self.by_length(call)
        if length is None or not call.key.size:
            return found
        behind = ~np.broadcast_to(length, (*call.query.shape[:-1], call.key.shape[-2])).any(axis=-2)[..., None]
        hidden = np.where(behind, self.heads(call.value.astype(np.float64), call.query.shape[-3]), 0.0)
        with np.errstate(invalid="ignore"):
            lost = (0.0 * hidden).sum(axis=-2)[..., None, :]
        return found._replace(output=(found.output + lost).astype(found.output.dtype))


@breaks("MHA-ATTN-11", "jax-ml/jax#32242: a wide bias is narrowed to the query's type", bug="B094")
class BiasInQueryType(Honest):
    def attend(self, call):
        if call.bias is None:
            return super().attend(call)
        with np.errstate(over="ignore"):
            return super().attend(replace(call, bias=call.bias.astype(call.query.dtype)))
