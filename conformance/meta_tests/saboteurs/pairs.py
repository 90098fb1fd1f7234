"""Saboteurs of MASK: the visible set, empty rows, hidden data, NaN."""

from dataclasses import replace

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


@breaks("MHA-MASK-2", "openvinotoolkit/openvino#31630: True hides", bug="B003")
class MaskInverted(Honest):
    def by_mask(self, call):
        return None if call.mask is None else ~call.mask


@breaks("MHA-MASK-2", "pytorch/pytorch#117939, deepspeedai/DeepSpeed#1912: the mask is ignored", bug="B001")
class MaskIgnored(Honest):
    def by_mask(self, call):
        return None


@breaks("MHA-MASK-3", "ohdearquant/lattice#373: hidden scores become -1e4", bug="B067")
class Sentinel(Honest):
    def softmax(self, s, see, sink):
        some = see.any(axis=-1, keepdims=True)
        a, lse = super().softmax(np.where(see, s, -1e4), np.broadcast_to(some, s.shape), sink)
        return a, lse

    def values(self, a, v, see):
        tame = np.where(np.isfinite(v) & (np.abs(v) < 1e9), v, 0.0)
        return super().values(a, v, see) + super().values(a, tame, ~see)


@breaks("MHA-MASK-3", "-1e9 is added")
class SentinelAdded(Honest):
    def softmax(self, s, see, sink):
        some = np.broadcast_to(see.any(axis=-1, keepdims=True), s.shape)
        return super().softmax(np.where(see | np.isnan(s), np.where(see, s, -np.inf), s - 1e9), some, sink)

    def values(self, a, v, see):
        tame = np.where(np.isfinite(v) & (np.abs(v) < 1e9), v, 0.0)
        return super().values(a, v, see) + super().values(a, tame, ~see & (a != 0))


@breaks("MHA-MASK-4", "pytorch/pytorch#184180: a flat index over batch and heads", bug="B023")
class MaskFlatIndex(Honest):
    def by_mask(self, call):
        if call.mask is None or call.mask.ndim < 4:
            return call.mask
        flat = call.mask.reshape(-1, *call.mask.shape[-2:])
        b, h = call.query.shape[0], call.query.shape[-3]
        return flat[np.arange(b * h) % len(flat)].reshape(b, h, *flat.shape[-2:])


@breaks("MHA-MASK-4", "openvinotoolkit/openvino#30758: one query row is not broadcast", bug="B025")
class MaskRowNotBroadcast(Honest):
    def by_mask(self, call):
        if call.mask is None or call.mask.shape[-2] != 1 or call.query.shape[-2] == 1:
            return call.mask
        first = np.arange(call.query.shape[-2])[:, None] == 0
        return call.mask | ~first


@breaks("MHA-MASK-5", "a bias of -inf is replaced by a large number")
class BiasClamped(Honest):
    def by_bias(self, call):
        return None

    def biased(self, s, bias):
        return super().biased(s, None if bias is None else np.where(bias == -np.inf, -5.0, bias))


@breaks("MHA-ATTN-11", "a float64 bias is cast to float32, and what becomes -inf hides")
class BiasNarrowed(Honest):
    def attend(self, call):
        if call.bias is None:
            return super().attend(call)
        with np.errstate(over="ignore"):
            return super().attend(replace(call, bias=call.bias.astype(call.query.dtype)))


@breaks("MHA-MASK-6", "pytorch/pytorch#110213: finfo.min hides")
class LowestHides(Honest):
    def by_bias(self, call):
        return None if call.bias is None else ~(call.bias <= np.finfo(np.float32).min)


@breaks("MHA-MASK-7", "jax-ml/jax#19237: causal is ignored", bug="B019")
class CausalIgnored(Honest):
    def by_band(self, call):
        return None if call.band is not None and call.band == (None, 0) else super().by_band(call)


@breaks("MHA-MASK-7", "one key too many")
class CausalPlusOne(Honest):
    def sides(self, call):
        return (None, 1) if call.band == (None, 0) else call.band


@breaks("MHA-MASK-7", "jax-ml/jax#17314: a tiled loop stops one tile early", bug="B042")
class CausalTileLost(Honest):
    def by_length(self, call):
        found = super().by_length(call)
        n, m = call.query.shape[-2], call.key.shape[-2]
        if call.band != (None, 0) or m < 64 or n != m:
            return found
        return np.arange(m)[None] < (np.arange(n)[:, None] // 32) * 32 + 16


@breaks("MHA-MASK-8", "openvinotoolkit/openvino#36680: bottom-right, whatever the offset", bug="B037")
class AlwaysBottomRight(Honest):
    def offset(self, call):
        return call.key.shape[-2] - call.query.shape[-2]


@breaks("MHA-MASK-8", "pytorch/pytorch#103082, onnx/onnx#7297: top-left, whatever the offset", bug="B033 B167")
class AlwaysTopLeft(Honest):
    def offset(self, call):
        return 0


@breaks("MHA-MASK-8", "Dao-AILab/flash-attention#1455: one offset for the whole batch", bug="B043")
class OffsetOfItemZero(Honest):
    def offset(self, call):
        return call.query_offset if np.ndim(call.query_offset) == 0 else np.max(call.query_offset)


@breaks("MHA-MASK-9", "negative positions are clipped to 0")
class NegativePositionsClipped(Honest):
    def query_positions(self, call):
        found = super().query_positions(call)
        return np.maximum(found, 0) if call.band == (None, 0) else found


@breaks(
    "MHA-MASK-10",
    "huggingface/transformers#39408, huggingface/transformers#26792, zml/zml#763: the left side is one too long",
    bug="B044 B045 B047",
)
class WindowLeftPlusOne(Honest):
    def sides(self, call):
        left, right = call.band
        return (None if left is None else left + 1), right


@breaks("MHA-MASK-10", "the right side is exclusive")
class WindowRightExclusive(Honest):
    def sides(self, call):
        left, right = call.band
        return left, (right - 1 if right else right)


@breaks("MHA-MASK-10", "an open side is taken for 0")
class WindowOpenSideClosed(Honest):
    def sides(self, call):
        left, right = call.band
        return (0 if left is None and right != 0 else left), (0 if right is None else right)


@breaks("MHA-MASK-11", "causal is dropped where there is a window")
class CausalDroppedByWindow(Honest):
    def before(self, options):
        return {name: x for name, x in options.items() if name != "is_causal" or "window" not in options}


@breaks("MHA-MASK-12", "key_lengths is inclusive")
class LengthInclusive(Honest):
    def by_length(self, call):
        return super().by_length(call if call.key_lengths is None else replace(call, key_lengths=call.key_lengths + 1))


@breaks("MHA-MASK-12", "the length of item 0 is used for all")
class LengthOfItemZero(Honest):
    def by_length(self, call):
        if call.key_lengths is None or np.ndim(call.key_lengths) == 0:
            return super().by_length(call)
        return super().by_length(replace(call, key_lengths=int(np.ravel(call.key_lengths)[0])))


@breaks("MHA-MASK-13", "segments are ignored")
class SegmentsIgnored(Honest):
    def by_segment(self, call):
        return None


@breaks("MHA-MASK-13", "segments only order, they do not separate")
class SegmentsOrdered(Honest):
    def by_segment(self, call):
        if call.query_segments is None:
            return None
        return call.query_segments[..., None, :, None] >= call.key_segments[..., None, None, :]


@breaks("MHA-MASK-14", "keras-team/keras#23040: causal is dropped where there is a mask", bug="B012")
class CausalDroppedByMask(Honest):
    def by_band(self, call):
        return None if call.mask is not None and call.band == (None, 0) else super().by_band(call)


@breaks("MHA-MASK-14", "a mask is dropped where there is a bias")
class MaskDroppedByBias(Honest):
    def by_mask(self, call):
        return None if call.bias is not None else call.mask


@breaks("MHA-MASK-1", "NVIDIA/TransformerEngine#1271: window or length in place of window and length", bug="B010")
class WindowOrLength(Honest):
    def by_length(self, call):
        length, band = super().by_length(call), super().by_band(call)
        return length if length is None or band is None or call.band == (None, 0) else length | band

    def by_band(self, call):
        return None if call.key_lengths is not None and call.band not in (None, (None, 0)) else super().by_band(call)


@breaks("MHA-MASK-15", "microsoft/onnxruntime#28958: the mean of all values", bug="B057")
class EmptyRowMean(Honest):
    def values(self, a, v, see):
        output = super().values(a, v, see)
        empty = ~see.any(axis=-1, keepdims=True)
        return np.where(empty, v.mean(axis=-2, keepdims=True) if v.shape[-2] else 0.0, output)


@breaks("MHA-MASK-15", "openvinotoolkit/openvino#35959: NaN", bug="B055")
class EmptyRowNaN(Honest):
    def values(self, a, v, see):
        return np.where(see.any(axis=-1, keepdims=True), super().values(a, v, see), np.nan)


@breaks("MHA-MASK-15", "vllm-project/vllm#15492: an LSE of +inf", bug="B176")
class EmptyLsePositive(Honest):
    def softmax(self, s, see, sink):
        a, lse = super().softmax(s, see, sink)
        return a, np.where(lse == -np.inf, np.inf, lse)


@breaks("MHA-MASK-16", "rows that a mask empties are 0, rows that a length empties are not")
class EmptyByLengthMean(Honest):
    def values(self, a, v, see):
        self.see = see
        return super().values(a, v, see)

    def result(self, call, output, a, lse):
        if call.mask is None and call.key_lengths is not None:
            output = np.where(self.see.any(axis=-1, keepdims=True), output, 7.0)
        return super().result(call, output, a, lse)


@breaks("MHA-MASK-17", "an empty row with a sink has an LSE of -inf")
class EmptySinkLost(Honest):
    def softmax(self, s, see, sink):
        a, lse = super().softmax(s, see, sink)
        return a, np.where(see.any(axis=-1), lse, -np.inf)


@breaks("MHA-MASK-18", "hidden values times a weight that is small but not 0")
class HiddenLeak(Honest):
    def values(self, a, v, see):
        leak = np.where(see[..., None], 0.0, np.where(np.abs(v) > 1e9, v, 0.0)[..., None, :, :] * 1e-9).sum(axis=-2)
        return super().values(a, v, see) + np.where(np.isfinite(leak), leak, 0.0)


@breaks("MHA-MASK-19", "pytorch/pytorch#101967: 0 times NaN", bug="B140")
class HiddenNaN(Honest):
    def values(self, a, v, see):
        return super().values(a, v, see) + np.where(see.any(axis=-1, keepdims=True), (0.0 * v).sum(axis=-2)[..., None, :], 0.0)


@breaks("MHA-MASK-19", "a guard over all keys, hidden ones included, chooses the algorithm")
class GuardWidened(Honest):
    def scores(self, q, k, scale):
        s = super().scores(q, k, scale)
        most = np.nanmax(np.abs(k), initial=0)
        return s.astype(np.float32).astype(np.float64) * (1 + 2**-22) if 1e6 <= most < 1e33 or np.isinf(most) else s


@breaks("MHA-MASK-20", "NaN becomes 0 on the way out")
class NanHidden(Honest):
    def values(self, a, v, see):
        return np.nan_to_num(super().values(a, v, see), nan=0.0)


@breaks("MHA-MASK-20", "NaN in one query spoils its whole head")
class NanSpreads(Honest):
    def scores(self, q, k, scale):
        s = super().scores(q, k, scale)
        return np.where(np.isnan(q).any(axis=(-2, -1), keepdims=True), np.nan, s)


@breaks("MHA-MASK-21", "NaN in one value channel spoils the row")
class NanAcrossChannels(Honest):
    def values(self, a, v, see):
        output = super().values(a, v, see)
        return np.where(np.isnan(output).any(axis=-1, keepdims=True), np.nan, output)


@breaks("MHA-MASK-22", "a NaN sink is taken for none")
class NanSinkIgnored(Honest):
    def sink(self, sink_logits, s):
        return super().sink(np.where(np.isnan(sink_logits), -np.inf, sink_logits), s)
