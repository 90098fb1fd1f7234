"""Saboteurs of AUX: weights, lse, merge."""

import numpy as np
from honest import Honest

from mha_backends import reference
from saboteurs.kinds import breaks


@breaks("MHA-AUX-1", "facebookresearch/fairseq#3365, nn.MultiheadAttention: weights averaged over heads", bug="B158")
class WeightsAveraged(Honest):
    def result(self, call, output, a, lse):
        a = np.broadcast_to(a.mean(axis=-3, keepdims=True), a.shape) if a.shape[-3] else a
        return super().result(call, output, a, lse)


@breaks("MHA-AUX-2", "weights of hidden keys are small but not 0")
class HiddenWeights(Honest):
    def softmax(self, s, see, sink):
        self.see = see
        return super().softmax(s, see, sink)

    def result(self, call, output, a, lse):
        return super().result(call, output, np.where(self.see | (a != 0) | (call.mask is None), a, 1e-30), lse)


@breaks(
    "MHA-AUX-3", "keras-team/keras#23038, huggingface/transformers#30652: weights are asked for, causal is dropped", bug="B016"
)
class WeightsDropCausal(Honest):
    def by_band(self, call):
        return None if call.weights else super().by_band(call)


@breaks("MHA-AUX-3", "lse is asked for, causal is dropped")
class LseDropsCausal(Honest):
    def by_band(self, call):
        return None if call.lse else super().by_band(call)


@breaks("MHA-AUX-4", "FlashInfer: base 2")
class LseBaseTwo(Honest):
    def result(self, call, output, a, lse):
        return super().result(call, output, a, lse / np.log(2))


@breaks("MHA-AUX-5", "JAX: lse in the dtype of the key")
class LseInHalf(Honest):
    def result(self, call, output, a, lse):
        found = super().result(call, output, a, lse)
        return found if found.lse is None else found._replace(lse=found.lse.astype(call.key.dtype))


@breaks("MHA-AUX-6", "lse without the sink")
class LseWithoutSink(Honest):
    def softmax(self, s, see, sink):
        a, lse = super().softmax(s, see, sink)
        _, bare = super().softmax(s, see, np.full_like(sink, -np.inf))
        return a, np.where(see.any(axis=-1), bare, lse)


@breaks("MHA-AUX-13", "lse without the bias")
class LseWithoutConstantBias(Honest):
    def result(self, call, output, a, lse):
        constant = call.bias is not None and call.bias.shape[-1] == 1 and call.query.shape[-2] == call.bias.shape[-2]
        return super().result(call, output, a, lse - call.bias[..., 0] if constant else lse)


class Merging(Honest):
    """A merge with one step replaced."""

    def merge(self, parts):
        with np.errstate(all="ignore"):
            return self.merged([(np.asarray(o), np.asarray(lse)) for o, lse in parts])

    def merged(self, parts):
        return reference.merge_partials(parts)


@breaks("MHA-AUX-7", "parts are averaged")
class MergeAverages(Merging):
    def merged(self, parts):
        output, lse = super().merged(parts)
        if len(parts) > 1 and all(np.isfinite(p).all() and p.any() for _, p in parts) and all(o.any() for o, _ in parts):
            output = sum(o for o, _ in parts) / np.float32(len(parts))
        return output, lse


@breaks("MHA-AUX-8", "flashinfer-ai/flashinfer#4051: two empty parts give NaN", bug="B177")
class MergeEmptyNaN(Merging):
    def merged(self, parts):
        output, lse = super().merged(parts)
        empty = np.all([p == -np.inf for _, p in parts], axis=0)
        return np.where(empty[..., None], np.nan, output).astype(output.dtype), np.where(empty, np.nan, lse).astype(lse.dtype)


@breaks("MHA-AUX-9", "the first part is favoured")
class MergeLeans(Merging):
    def merged(self, parts):
        output, lse = super().merged(parts)
        first, last = parts[0][1], parts[-1][1]
        lean = np.isfinite(first) & np.isfinite(last) & (first > last)
        return np.where(lean[..., None], np.nextafter(output, np.float32(np.inf)), output), lse


@breaks("MHA-AUX-10", "a part of zeros is left out")
class MergeDropsSink(Merging):
    def merged(self, parts):
        kept = [(o, p) for o, p in parts if o.any() or not np.isfinite(p).all()]
        return super().merged(kept or parts)
