"""Saboteurs of two things together: options backwards, results beside emptiness, hidden data beside the lse, and one item for another."""

from dataclasses import replace

import numpy as np
from honest import Honest
from honest_gradients import HonestGradients

from saboteurs.kinds import breaks


@breaks("MHA-GRAD-9", "beside segments, the slope of the softcap is left out")
class SlopeLostBesideSegments(HonestGradients):
    def through_cap(self, dS, x, c):
        return dS if self.call.query_segments is not None else super().through_cap(dS, x, c)


@breaks("MHA-GRAD-10", "beside lengths, the gradient of the bias counts each item's rows once more")
class BiasBesideLengths(HonestGradients):
    def bias_gradient(self, dS, bias):
        found = super().bias_gradient(dS, bias)
        return found * 2 if self.call.key_lengths is not None else found


@breaks("MHA-GRAD-11", "beside a bias, the sink's own weight is that without it")
class SinkBesideBias(HonestGradients):
    def sink_gradient(self, sinks, lse, D, dL, see):
        found = super().sink_gradient(sinks, lse, D, dL, see)
        return found * 1.5 if self.call.bias is not None else found


@breaks("MHA-GRAD-18", "beside lengths, a negative scale is multiplied twice")
class ScaleTwiceBesideLengths(HonestGradients):
    def key_gradient(self, dX, q, see, scale):
        return super().key_gradient(dX, q, see, scale * (scale if self.call.key_lengths is not None else 1.0) ** (scale < 0))


@breaks("MHA-GRAD-3", "with the forward given, the slope of the softcap is left out")
class KeptForgetsSoftcap(HonestGradients):
    def through_cap(self, dS, x, c):
        return super().through_cap(dS, x, None if self.kept is not None else c)


@breaks("MHA-GRAD-14", "the backward takes the last item's offset for all")
class OffsetOfLastItem(HonestGradients):
    def visible_backward(self, call):
        if call.band is not None and np.ndim(call.query_offset) and np.size(call.query_offset):
            last = np.broadcast_to(np.asarray(call.query_offset).reshape(-1)[-1:], np.size(call.query_offset))
            call = replace(call, query_offset=last.reshape(np.shape(call.query_offset)))
        return super().visible_backward(call)


@breaks("MHA-GRAD-13", "with the forward given, what arrives at an empty row's lse does not reach its sink")
class KeptEmptySink(HonestGradients):
    def sink_gradient(self, sinks, lse, D, dL, see):
        if self.kept is not None and dL is not None:
            dL = np.where(see.any(-1), dL, 0.0)
        return super().sink_gradient(sinks, lse, D, dL, see)


@breaks("MHA-MASK-17", "without keys the lse is that of nothing, sink or not")
class NoKeysForgetSink(Honest):
    def result(self, call, output, a, lse):
        return super().result(call, output, a, np.full_like(lse, -np.inf) if a.shape[-1] == 0 else lse)


@breaks("MHA-AUX-3", "without channels of values there is nothing to compute, so lse and weights stay 0")
class NoValuesNoLse(Honest):
    def result(self, call, output, a, lse):
        nothing = output.shape[-1] == 0 and a.shape[-1] > 0
        return super().result(call, output, a * (not nothing), lse * (not nothing))


@breaks("MHA-MASK-18", "the lse is shifted by the largest score of all keys, in the range of float32")
class LseShiftedByHidden(Honest):
    def softmax(self, s, see, sink):
        a, lse = super().softmax(s, see, sink)
        top = np.max(s, axis=-1, initial=-np.inf)
        lost = see.any(-1) & (lse < np.where(np.isfinite(top), top, -np.inf) - 104.0)
        return a, np.where(lost, -np.inf, lse)


@breaks("MHA-MASK-16", "an item without a visible key keeps the output of the item before it")
class EmptyItemKeepsTheLast(Honest):
    def result(self, call, output, a, lse):
        if call.key_lengths is not None and np.ndim(call.key_lengths) == 1:
            for at, length in enumerate(np.asarray(call.key_lengths).tolist()):
                if at and length <= 0:
                    output[at] = output[at - 1]
        return super().result(call, output, a, lse)


@breaks("MHA-MASK-8", "the loop over keys ends where the causal order of item 0 ends")
class LoopEndsWithItemZero(Honest):
    tile = 16

    def by_band(self, call):
        found, m = super().by_band(call), call.key.shape[-2]
        if found is None or not np.size(call.query_offset) or np.ndim(call.query_offset) != 1 or call.band[1] != 0:
            return found
        end = max(0, min(m, int(np.asarray(call.query_offset)[0]) + call.query.shape[-2]))
        return found & (np.arange(m) < -(-end // self.tile) * self.tile)


@breaks("MHA-MASK-10", "with an offset for each item, the right end of a window is outside")
class ArrayWindowRightOpen(Honest):
    def sides(self, call):
        left, right = super().sides(call)
        inner = np.ndim(call.query_offset) and right is not None and right > 0
        return left, right - 1 if inner else right
