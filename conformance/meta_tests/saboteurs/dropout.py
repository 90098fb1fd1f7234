"""Saboteurs of DROP: other factors, other masks, other words, and what dropout must leave alone."""

from dataclasses import replace

import numpy as np
from honest import Honest
from honest_gradients import HonestGradients

from saboteurs.conduct import accepts
from saboteurs.kinds import breaks

for clause, answer in {"MHA-VAL-23": "any rate, seed and start is taken", "MHA-VAL-24": "a mask of numbers is taken"}.items():
    breaks(clause, answer)(accepts(clause))


@breaks("MHA-DROP-1", "what is kept is not scaled up")
class NotScaledUp(Honest):
    def factor(self, rate):
        return 1.0


@breaks("MHA-DROP-1", "what is kept is normalised again")
class NormalisedAgain(Honest):
    def dropped(self, call, a):
        if call.dropout is None:
            return a
        kept = a * (self.factors(call) != 0)
        total = kept.sum(-1, keepdims=True)
        return kept / np.where(total == 0, 1.0, total)


@breaks("MHA-DROP-2", "Flax's default: the mask of the first head is everyone's")
class MaskOfFirstHead(Honest):
    def keeps(self, call):
        keeps = super().keeps(call)
        return keeps if call.dropout.keep is None else keeps[..., :1, :, :]


@breaks("MHA-DROP-2", "a mask per head is read as one per item")
class MaskPerItem(Honest):
    def keeps(self, call):
        keeps = super().keeps(call)
        return keeps if call.dropout.keep is None else keeps[:1]


@breaks("MHA-DROP-3", "pytorch/pytorch#188015: heads draw the same numbers, because an offset wraps", bug="B137")
class HeadOffsetWraps(Honest):
    def indices(self, call):
        b, h, i, j = super().indices(call)
        return b, call.dropout.head_start + (h - call.dropout.head_start) % 2, i, j


@breaks("MHA-DROP-3", "the high word of the seed is cut off")
class SeedOf32Bits(Honest):
    def seed(self, call):
        return call.dropout.seed % 2**32


@breaks("MHA-DROP-3", "a word that equals the threshold is dropped")
class ThresholdIsDropped(Honest):
    def threshold(self, rate):
        return super().threshold(rate) + 1


@breaks("MHA-DROP-3", "words become floats of 24 bits before they are compared")
class WordsOf24Bits(Honest):
    def threshold(self, rate):
        return super().threshold(rate) // 256 * 256


@breaks("MHA-DROP-3", "query and key are exchanged in the counter")
class CounterTransposed(Honest):
    def indices(self, call):
        b, h, i, j = super().indices(call)
        return b, h, j + 0 * i, i + 0 * j


@breaks("MHA-DROP-4", "every part begins at 0")
class StartsIgnored(Honest):
    def indices(self, call):
        drop = call.dropout
        near = {name: 0 for name in ("batch_start", "head_start", "query_start", "key_start") if getattr(drop, name) < 2**20}
        return super().indices(replace(call, dropout=drop._replace(**near)))


@breaks("MHA-DROP-4", "the first key of a part begins a counter")
class LaneOfPart(Honest):
    def indices(self, call):
        return super().indices(replace(call, dropout=call.dropout._replace(key_start=call.dropout.key_start // 4 * 4)))


@breaks("MHA-DROP-5", "the query offset is added")
class OffsetAdded(Honest):
    def indices(self, call):
        b, h, i, j = super().indices(call)
        return (b, h, np.maximum(i + np.asarray(call.query_offset)[..., None, None, None], 0) if call.band else i, j)


@breaks("MHA-DROP-5", "heads of a group share their mask")
class KeyHeads(Honest):
    def indices(self, call):
        b, h, i, j = super().indices(call)
        return b, h // max(call.query.shape[-3] // max(call.key.shape[-3], 1), 1), i, j


@breaks("MHA-DROP-5", "batch axes are counted in column-major order")
class ColumnMajor(Honest):
    def indices(self, call):
        b, h, i, j = super().indices(call)
        batch = call.query.shape[:-3]
        start = call.dropout.batch_start
        return (start + (b - start).reshape(batch[::-1]).T.reshape(b.shape) if len(batch) > 1 else b), h, i, j


@breaks("MHA-DROP-6", "at rate 1 what is dropped is 0 times infinity")
class RateOneIsNan(Honest):
    def factors(self, call):
        return super().factors(call) if call.dropout.rate < 1 else np.full((1, 1), np.nan)


@breaks("MHA-DROP-7", "the lse of what is kept")
class LseOfKept(Honest):
    def result(self, call, output, a, lse):
        if call.dropout is not None:
            left = (a * (self.factors(call) != 0)).sum(-1)
            lse = np.where(left > 0, lse + np.log(np.where(left > 0, left, 1.0)), -np.inf)
        return super().result(call, output, a, lse)


@breaks("MHA-DROP-7", "torch's nn.MultiheadAttention: the weights that are returned are dropped")
class WeightsAfterDropout(Honest):
    def result(self, call, output, a, lse):
        return super().result(call, output, self.dropped(call, a), lse)


@breaks("MHA-DROP-8", "a value whose weight is dropped is not read")
class DroppedIsUnread(Honest):
    def values(self, a, v, see):
        return super().values(a, v, see & (a != 0) if self.dropping else see)

    def attend(self, call):
        self.dropping = call.dropout is not None
        return super().attend(call)


@breaks("MHA-DROP-9", "PaddlePaddle/Paddle#70298: a call with dropout moves the global generator, at rate 0 too")
class MovesTheGenerator(Honest):
    def before(self, options):
        if options.get("dropout") is not None:
            np.random.random()
        return options


@breaks("MHA-NUM-24", "the factor of float64 is a float32")
class FactorInFloat32(Honest):
    def factors(self, call):
        found = super().factors(call)
        return found.astype(np.float32).astype(np.float64) if call.query.dtype == np.float64 else found


@breaks("MHA-GRAD-22", "the backward draws with the next seed")
class BackwardOfNextSeed(HonestGradients):
    def through_dropout(self, call, x):
        drop = call.dropout
        if drop is not None and drop.seed is not None:
            call = replace(call, dropout=drop._replace(seed=drop.seed ^ 1))
        return super().through_dropout(call, x)


@breaks("MHA-GRAD-22", "backwards nothing is scaled up")
class BackwardNotScaledUp(HonestGradients):
    def through_dropout(self, call, x):
        return x if call.dropout is None else x * (self.factors(call) != 0)


@breaks("MHA-GRAD-22", "the weights of the softmax's gradient are those after dropout")
class SoftmaxOfDropped(HonestGradients):
    def score_gradient(self, a, dP, D, dL):
        return super().score_gradient(self.dropped(self.call, a), dP, D, dL)


@breaks("MHA-VARLEN-6", "every sequence of a pack drops the same")
class PackOfOneMask(Honest):
    def varlen(self, function, query, key, value, **options):
        if options.get("dropout") is None:
            return function(query, key, value, **options)
        a, b = options.pop("query_starts"), options.pop("key_starts")
        parts = [
            function(query[i:k], key[j:l], value[j:l], query_starts=[0, k - i], key_starts=[0, l - j], **options)
            for i, k, j, l in zip(a, a[1:], b, b[1:], strict=False)
        ]
        return np.concatenate(parts)
