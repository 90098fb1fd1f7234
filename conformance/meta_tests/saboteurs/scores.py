"""Saboteurs of ATTN: scores, scale, softcap, bias, softmax, sinks, values."""

from dataclasses import replace

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


@breaks("MHA-ATTN-1", "an accumulation over all channels but the last")
class LastChannelLost(Honest):
    def scores(self, q, k, scale):
        return super().scores(q[..., :-1], k[..., :-1], scale) if q.shape[-1] > 1 else super().scores(q, k, scale)


@breaks("MHA-ATTN-1", "keys read in reverse")
class KeysReversed(Honest):
    def scores(self, q, k, scale):
        return super().scores(q, k[..., ::-1, :], scale)


@breaks("MHA-ATTN-2", "apache/tvm#20078: the default scale is 1", bug="B076")
class ScaleOne(Honest):
    def scale(self, call):
        default = call.scale == (call.query.shape[-1] or 1) ** -0.5
        return 1.0 if default else call.scale


@breaks("MHA-ATTN-2", "BobMcDear/attorch#14: the scale is 0.5 whatever d_k", bug="B078")
class ScaleHalf(Honest):
    def scale(self, call):
        default = call.scale == (call.query.shape[-1] or 1) ** -0.5
        return 0.5 if default else call.scale


@breaks("MHA-ATTN-2", "1 / d_k")
class ScaleWithoutRoot(Honest):
    def scale(self, call):
        d_k = call.query.shape[-1] or 1
        return 1 / d_k if call.scale == d_k**-0.5 else call.scale


@breaks("MHA-ATTN-3", "an explicit scale is ignored")
class ScaleIgnored(Honest):
    def scale(self, call):
        return (call.query.shape[-1] or 1) ** -0.5


@breaks("MHA-ATTN-3", "onnxruntime: sqrt(scale) on both sides, NaN where it is negative")
class ScaleRoot(Honest):
    def scores(self, q, k, scale):
        return super().scores(q * np.sqrt(scale), k * np.sqrt(scale), 1.0)


@breaks("MHA-ATTN-4", "pytorch/pytorch#184330: no channels, no output", bug="B147")
class NoChannelsZero(Honest):
    def result(self, call, output, a, lse):
        return super().result(call, output * 0 if call.query.shape[-1] == 0 else output, a, lse)


@breaks("MHA-ATTN-5", "2^s in place of e^s")
class BaseTwo(Honest):
    def softmax(self, s, see, sink):
        a, lse = super().softmax(s * np.log(2), see, sink * np.log(2))
        return a, lse


@breaks("MHA-ATTN-5", "labmlai/annotated_deep_learning_paper_implementations#146: softmax over the queries", bug="B082")
class SoftmaxOverQueries(Honest):
    def softmax(self, s, see, sink):
        _, lse = super().softmax(s, see, sink)
        e = np.where(see, np.exp(s - s.max(axis=-2, keepdims=True, initial=-1e300)), 0.0)
        return e / np.where((t := e.sum(axis=-2, keepdims=True)) == 0, 1.0, t), lse


@breaks("MHA-ATTN-6", "the channels of the values are exchanged")
class ValueChannelsReversed(Honest):
    def values(self, a, v, see):
        return super().values(a, v[..., ::-1], see)


@breaks("MHA-ATTN-7", "values are cut to d_k channels")
class ValuesCut(Honest):
    def result(self, call, output, a, lse):
        d_k = call.query.shape[-1]
        if 0 < d_k < output.shape[-1]:
            output = np.concatenate([output[..., :d_k], np.zeros_like(output[..., d_k:])], axis=-1)
        elif output.shape[-1] < d_k:
            output = output * 2
        return super().result(call, output, a, lse)


@breaks("MHA-ATTN-8", "keys beyond the number of queries are not read")
class CrossLengthsCut(Honest):
    def by_length(self, call):
        n, m = call.query.shape[-2], call.key.shape[-2]
        found = super().by_length(call)
        return found if call.hides or n >= m or n == 1 else np.arange(m) < n


@breaks("MHA-ATTN-9", "softcap after the bias")
class SoftcapAfterBias(Honest):
    def capped(self, s, c):
        self.cap = c
        return s

    def biased(self, s, bias):
        return super().capped(super().biased(s, bias), self.cap)


@breaks("MHA-ATTN-10", "vllm-project/vllm-metal#665: softcap ignored", bug="B072")
class SoftcapIgnored(Honest):
    def capped(self, s, c):
        return s


@breaks("MHA-ATTN-10", "Dao-AILab/flash-attention#2402: s tanh(s / c)", bug="B071")
class SoftcapFormula(Honest):
    def capped(self, s, c):
        return s if c is None else s * np.tanh(s / c)


@breaks("MHA-ATTN-11", "bias before scale")
class BiasScaled(Honest):
    def attend(self, call):
        return super().attend(
            call if call.bias is None else replace(call, bias=call.bias * np.asarray(call.scale, call.bias.dtype))
        )


@breaks("MHA-ATTN-11", "bias ignored where it is broadcast over queries")
class BiasBroadcastLost(Honest):
    def biased(self, s, bias):
        return s if bias is not None and bias.shape[-2] == 1 and s.shape[-2] > 1 else super().biased(s, bias)


@breaks("MHA-ATTN-12", "sinks ignored")
class SinkIgnored(Honest):
    def sink(self, sink_logits, s):
        return super().sink(sink_logits * 0 - np.inf, s)


@breaks("MHA-ATTN-12", "ROCm/rocm-libraries#12229: the sink is counted twice", bug="B180")
class SinkTwice(Honest):
    def sink(self, sink_logits, s):
        return super().sink(sink_logits, s) + np.log(2)


@breaks("MHA-ATTN-13", "pytorch/executorch#18407: no maximum is subtracted", bug="B084")
class NoShift(Honest):
    def softmax(self, s, see, sink):
        a, lse = super().softmax(s, see, sink)
        e = np.where(see, np.exp(s.astype(np.float32)), 0)
        total = e.sum(axis=-1, keepdims=True) + np.exp(sink.astype(np.float32))
        over = np.isinf(total)
        return np.where(see & over, e / total, a), lse
