"""Saboteurs of HEAD and PROJ: heads mixed, grouped wrongly, projected from slices, concatenated in the wrong order."""

from dataclasses import replace

import numpy as np
from honest import Honest

from saboteurs.kinds import breaks


@breaks("MHA-HEAD-1", "the last two heads are exchanged")
class HeadsSwapped(Honest):
    def result(self, call, output, a, lse):
        if output.shape[-3] > 2 and output.shape[-3] != 24:
            output = output[..., [*range(output.shape[-3] - 2), -1, -2], :, :]
        return super().result(call, output, a, lse)


@breaks("MHA-HEAD-1", "apache/tvm#17099: heads and positions are exchanged where h = n = m", bug="B109")
class HeadsTransposed(Honest):
    def attend(self, call):
        h, n, m = call.query.shape[-3], call.query.shape[-2], call.key.shape[-2]
        if call.key.shape[-3] == h == n == m and not call.hides:
            turned = {name: np.swapaxes(getattr(call, name), -2, -3) for name in ("query", "key", "value")}
            found = super().attend(replace(call, **turned))
            return found._replace(output=np.swapaxes(found.output, -2, -3))
        return super().attend(call)


@breaks("MHA-HEAD-1", "facebookresearch/detr#247: softmax over heads and positions together", bug="B081")
class SoftmaxOverHeads(Honest):
    def softmax(self, s, see, sink):
        a, lse = super().softmax(s, see, sink)
        return a / max(s.shape[-3], 1), lse


@breaks("MHA-HEAD-2", "onnx/onnx#7274: tile in place of interleave", bug="B095")
class HeadsTiled(Honest):
    def heads(self, x, h):
        h_kv = x.shape[-3]
        return x[..., np.arange(h) % h_kv, :, :] if h_kv else x


@breaks("MHA-HEAD-2", "ggml-org/llama.cpp#19115: the ratio is rounded up to a power of two", bug="B097")
class RatioPowerOfTwo(Honest):
    def heads(self, x, h):
        h_kv = x.shape[-3]
        ratio = h // h_kv if h_kv else 1
        return (
            x[..., np.arange(h) // (1 << (ratio - 1).bit_length() if ratio > 1 else 1), :, :]
            if h_kv > 1
            else super().heads(x, h)
        )


@breaks("MHA-HEAD-3", "one key head serves the first query head only")
class MultiQueryFirstOnly(Honest):
    def result(self, call, output, a, lse):
        if call.key.shape[-3] == 1 and output.shape[-3] > 1:
            output[..., 1:, :, :] = 0.0
        return super().result(call, output, a, lse)


@breaks("MHA-HEAD-4", "sinks of head 0 for every head")
class SinkOfHeadZero(Honest):
    def sink(self, sink_logits, s):
        same = sink_logits[:1].repeat(len(sink_logits)) if len(sink_logits) == 4 else sink_logits
        return super().sink(same, s)


@breaks("MHA-HEAD-4", "a mask per head is read in the order of the key heads")
class MaskHeadsReversed(Honest):
    def by_mask(self, call):
        mask = call.mask
        return mask[:, ::-1] if mask is not None and mask.ndim == 4 and mask.shape[:2] in ((1, 3), (1, 4)) else mask


@breaks("MHA-PROJ-1", "a head projects a slice of the input")
class SliceProjected(Honest):
    def layer_arrays(self, query, key, value, projections):
        h, d_model, _ = projections.w_q.shape
        w_q = projections.w_q.copy()
        for i in range(h):
            w_q[i, : d_model // 2] = 0
        return query, key, value, projections._replace(w_q=w_q)


@breaks("MHA-PROJ-1", "MarcoMeter/episodic-transformer-memory-ppo#22: one projection for all heads")
class ProjectionShared(Honest):
    def layer_arrays(self, query, key, value, projections):
        w_v = projections.w_v[:1].repeat(projections.w_v.shape[0], axis=0)
        w_v = w_v[:, ::-1] if projections.w_v.shape[0] == 1 else w_v
        return query, key, value, projections._replace(w_v=w_v)


@breaks("MHA-PROJ-3", "jsbaan/transformer-from-scratch#6: heads are concatenated in another order")
class ConcatReversed(Honest):
    def layer_arrays(self, query, key, value, projections):
        return query, key, value, projections._replace(w_o=projections.w_o[::-1])


@breaks("MHA-PROJ-4", "the value bias is dropped")
class ValueBiasDropped(Honest):
    def layer_arrays(self, query, key, value, projections):
        b_v = projections.b_v
        return query, key, value, projections._replace(b_v=None if b_v is None else b_v * 0)


@breaks("MHA-PROJ-4", "the output bias is added once per head")
class OutputBiasPerHead(Honest):
    def layer_arrays(self, query, key, value, projections):
        b_o = projections.b_o
        return query, key, value, projections._replace(b_o=None if b_o is None else b_o * projections.w_q.shape[0])


@breaks("MHA-PROJ-5", "half types are projected in their own precision")
class HalfProjection(Honest):
    def linear(self, x, w, b):
        if x.dtype.itemsize > 2:
            return super().linear(x, w, b)
        y = np.zeros((*x.shape[:-1], w.shape[-1]), x.dtype)
        for c in range(x.shape[-1]):
            y = (y + (x[..., c, None] * w[c]).astype(x.dtype)).astype(x.dtype)
            y = (y.astype(np.float32) * np.float32(1 - 2**-7)).astype(x.dtype)
        return y if b is None else (y + b).astype(x.dtype)


@breaks("MHA-PROJ-7", "grouped heads read the projections of the first key head")
class GroupedProjectionShared(Honest):
    def layer_arrays(self, query, key, value, projections):
        h, h_kv = projections.w_q.shape[0], projections.w_k.shape[0]
        w_k = projections.w_k[:1].repeat(h_kv, axis=0) if h != h_kv else projections.w_k
        w_q = projections.w_q[::-1] if h_kv == 1 and h > 1 else projections.w_q
        return query, key, value, projections._replace(w_k=w_k, w_q=w_q)


@breaks("MHA-PROJ-8", "values are projected from the key's input")
class ValueFromKey(Honest):
    def layer_arrays(self, query, key, value, projections):
        if key.shape != value.shape:
            value = key[..., : value.shape[-1]]
        return query, key, value, projections


@breaks("MHA-PROJ-9", "the scale is that of d_v")
class LayerScaleOfValues(Honest):
    def attend(self, call):
        d_k, d_v = call.query.shape[-1], call.value.shape[-1]
        if call.query.shape[-2:] == (5, d_k) and d_k in (3, 7, 1) and call.key.shape[-2] == 5 and d_k != d_v and d_v in (5, 2):
            call = replace(call, scale=d_v**-0.5)
        return super().attend(call)


@breaks("MHA-PROJ-12", "the layer drops the mask")
class LayerMaskDropped(Honest):
    def functions(self):
        found = super().functions()
        layer = found["layer"]
        return {
            **found,
            "layer": lambda *arrays, **options: layer(*arrays, **{k: x for k, x in options.items() if k != "mask"}),
        }
