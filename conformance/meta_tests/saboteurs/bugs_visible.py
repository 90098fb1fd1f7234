"""Known bugs of the visible set: masks, the causal order, windows, lengths. Each is a row of ``known_bugs.tsv``."""

from dataclasses import replace

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


@breaks("MHA-MASK-2", "onnx/onnx#8068: the mask times -inf is added, and 0 * inf is NaN", bug="B006")
class MaskTimesInfinity(Honest):
    def by_mask(self, call):
        return None

    def attend(self, call):
        if call.mask is None:
            return super().attend(call)
        with np.errstate(invalid="ignore"):
            self.added = (1.0 - call.mask) * -np.inf
        found = super().attend(call)
        del self.added
        return found

    def biased(self, s, bias):
        return super().biased(s, bias) + getattr(self, "added", 0.0)


@breaks("MHA-MASK-4", "deepspeedai/DeepSpeed#1912: a mask of rank 4 is replaced by an empty one", bug="B008")
class MaskOfRankFourIgnored(Honest):
    def before(self, options):
        return {name: x for name, x in options.items() if name != "mask" or x.ndim != 4}


@breaks("MHA-MASK-2", "sgl-project/sglang#39593: under a mask the keys end with the query's own tile", bug="B014")
class MaskEndsWithCausalTile(Honest):
    tile = 16

    def by_mask(self, call):
        if call.mask is None:
            return None
        rows, keys = np.arange(call.query.shape[-2])[:, None], np.arange(call.key.shape[-2])
        return call.mask & (keys < (rows // self.tile + 1) * self.tile)


@breaks("MHA-AUX-3", "huggingface/transformers#30652: weights are asked for, no mask is given, causal is dropped", bug="B017")
class WeightsDropCausalWithoutMask(Honest):
    def by_band(self, call):
        return None if call.weights and call.mask is None else super().by_band(call)


@breaks("MHA-MASK-2", "huggingface/transformers#42820: a mask that is True everywhere turns the call causal", bug="B020")
class AllTrueIsCausal(Honest):
    def by_mask(self, call):
        if call.mask is None or not call.mask.all():
            return call.mask
        return np.tri(call.query.shape[-2], call.key.shape[-2], dtype=bool)


@breaks("MHA-MASK-12", "pytorch/pytorch#63271: padding hides rows as well as columns", bug="B022")
class PaddingHidesRows(Honest):
    def by_length(self, call):
        found = super().by_length(call)
        return found if found is None or call.query.shape[-2] != call.key.shape[-2] else found & np.swapaxes(found, -1, -2)


@breaks("MHA-MASK-4", "hyunwoongko/transformer#40: a padding mask lies along the queries", bug="B027")
class PaddingAlongQueries(Honest):
    def by_mask(self, call):
        mask = call.mask
        turned = mask is not None and mask.shape[-2] == 1 and call.query.shape[-2] == call.key.shape[-2]
        return np.swapaxes(mask, -1, -2) if turned else mask


@breaks("MHA-MASK-12", "tensorflow/tensorflow#60626: an axis is added at a fixed place, whatever the rank", bug="B028")
class AxisAtFixedPlace(Honest):
    def by_length(self, call):
        lengths = call.key_lengths
        if np.ndim(lengths) == 2:
            call = replace(call, key_lengths=np.broadcast_to(lengths[:, :1], lengths.shape))
        return super().by_length(call)


@breaks("MHA-MASK-4", "deepspeedai/DeepSpeed#2285: the mask advances by one row for each batch item", bug="B032")
class MaskAdvancesByRow(Honest):
    def by_mask(self, call):
        mask = call.mask
        if mask is None or mask.ndim != 4 or mask.shape[1] != 1 or mask.shape[0] == 1:
            return mask
        b, _, n, m = mask.shape
        flat = np.arange(b)[:, None, None] * m + np.arange(n)[:, None] * m + np.arange(m)
        return mask.reshape(-1)[flat % mask.size][:, None]


@breaks("MHA-MASK-9", "ml-explore/mlx#2967: bottom-right for more keys, top-left for more queries", bug="B035")
class AlignmentFlips(Honest):
    def offset(self, call):
        return np.maximum(call.query_offset, 0)


@breaks("MHA-MASK-8", "EleutherAI/gpt-neox#1178: a decoding step runs a top-left kernel", bug="B038")
class DecodesTopLeft(Honest):
    def offset(self, call):
        return 0 if call.query.shape[-2] == 1 else call.query_offset


@breaks("MHA-MASK-10", "NVIDIA/TransformerEngine#3528: the number for an open side is taken for a distance", bug="B050")
class OpenSideLiteral(Honest):
    def sides(self, call):
        left, right = call.band
        return call.band if call.band == (None, 0) else (-1 if left is None else left, -1 if right is None else right)


@breaks("MHA-MASK-15", "pytorch/pytorch#190486: one of two paths lacks the rule for empty rows", bug="B054")
class EmptyRowNaNWithoutWeights(Honest):
    def attend(self, call):
        self.weights = call.weights
        return super().attend(call)

    def values(self, a, v, see):
        output = super().values(a, v, see)
        return output if self.weights else np.where(see.any(axis=-1, keepdims=True), output, np.nan)


@breaks("MHA-MASK-2", "pytorch/pytorch#127055: a first tile that a row does not see makes the row NaN", bug="B062")
class FirstTileHiddenNaN(Honest):
    tile = 16

    def values(self, a, v, see):
        m = v.shape[-2]
        unseen = ~see[..., : self.tile].any(axis=-1, keepdims=True) & see.any(axis=-1, keepdims=True)
        return np.where(unseen & (m > self.tile), np.nan, super().values(a, v, see))


class AddsNumbers(Honest):
    """A kernel that hides by adding a large negative number for each option that hides."""

    number = -1e4

    def attend(self, call):
        see = [found for found in (self.by_mask(call), self.by_band(call), self.by_length(call)) if found is not None]
        shape = (*call.query.shape[:-1], call.key.shape[-2])
        with np.errstate(over="ignore"):
            self.added = sum((np.where(found, 0.0, self.number) for found in see), start=np.zeros(shape)).astype(np.float32)
        return super().attend(call)

    def biased(self, s, bias):
        return super().biased(s, bias) + self.added

    def visible(self, call):
        see = self.added > -np.inf
        for found in (self.by_bias(call), self.by_segment(call)):
            see = see if found is None else see & found
        return see


@breaks("MHA-MASK-15", "microsoft/onnxruntime#14363: -1e4 is added once for each mask that hides", bug="B065")
class SentinelTwice(AddsNumbers):
    pass


@breaks("MHA-MASK-15", "huggingface/transformers#27114: two masks of lowest numbers overflow where they meet", bug="B064")
class LowestTwice(AddsNumbers):
    number = float(np.finfo(np.float32).min)


@breaks("MHA-MASK-12", "pytorch/pytorch#86120: rows of padded tokens are 0", bug="B132")
class PaddedRowsZero(Honest):
    def result(self, call, output, a, lse):
        padded = None if call.query.shape[-2] != call.key.shape[-2] else self.by_length(call)
        return super().result(call, output if padded is None else np.where(padded[..., 0, :, None], output, 0.0), a, lse)


@breaks("MHA-MASK-2", "pytorch/pytorch#187227: the offset of a mask row wraps", bug="B133")
class MaskOffsetWraps(Honest):
    words = 2**12

    def by_mask(self, call):
        mask = call.mask
        if mask is None or 0 in mask.shape or mask.shape[-2] == 1:
            return mask
        n, m = mask.shape[-2:]
        rows = (np.arange(n) * m % self.words)[:, None] + np.arange(m)
        return mask.reshape(*mask.shape[:-2], n * m)[..., rows % (n * m)]


@breaks("MHA-MASK-2", "ml-explore/mlx#2894: the index into a mask is signed and wraps", bug="B134")
class MaskIndexSigned(Honest):
    bits = 12

    def by_mask(self, call):
        mask = call.mask
        if mask is None or 0 in mask.shape:
            return mask
        n, m = mask.shape[-2:]
        half = 2 ** (self.bits - 1)
        index = (np.arange(n * m).reshape(n, m) + half) % 2**self.bits - half
        return mask.reshape(*mask.shape[:-2], n * m)[..., index % (n * m)]


@breaks("MHA-MASK-16", "pytorch/pytorch#81077: an item of length 0 is NaN", bug="B149")
class LengthZeroNaN(Honest):
    def result(self, call, output, a, lse):
        if call.key_lengths is not None:
            none = np.asarray(call.key_lengths) <= 0
            output = np.where(none[..., None, None, None] if none.ndim else none, np.nan, output)
        return super().result(call, output, a, lse)


@breaks("MHA-MASK-8", "meta-llama/llama#899: the mask of a chunk has no columns for the cache", bug="B169")
class ChunkForgetsCache(Honest):
    def by_band(self, call):
        found = super().by_band(call)
        if call.band != (None, 0) or np.ndim(call.query_offset):
            return found
        return found & (np.arange(call.key.shape[-2]) >= call.query_offset)


@breaks("MHA-MASK-12", "huggingface/transformers#45940: slots that are not yet filled count as keys with score 0", bug="B172")
class UnfilledSlotsCount(Honest):
    def visible(self, call):
        see = super().visible(call)
        return see if call.key_lengths is None else see | ~self.by_length(call)

    def attend(self, call):
        if call.key_lengths is None:
            return super().attend(call)
        lengths = np.asarray(call.key_lengths)
        filled = np.arange(call.key.shape[-2])[:, None] < (lengths[..., None, None, None] if lengths.ndim else lengths)
        empty = call.key.dtype.type(0)
        return super().attend(replace(call, key=np.where(filled, call.key, empty), value=np.where(filled, call.value, empty)))
