"""Saboteurs of GRAD: a backward with one step replaced; the forward of each is right."""

import numpy as np
from honest_gradients import HonestGradients

from saboteurs.kinds import breaks


def turned(x):
    return np.swapaxes(x, -1, -2)


@breaks("MHA-GRAD-1", "gradients of halves come back in float32")
class GradientsInFloat(HonestGradients):
    def rounded(self, call, **found):
        found = super().rounded(call, **found)
        half = call.query.dtype.itemsize == 2
        return found._replace(query=found.query.astype(np.float32)) if half else found


@breaks("MHA-GRAD-2", "grad_output is broadcast")
class GradOutputBroadcast(HonestGradients):
    def functions(self):
        found = super().functions()
        vjp = found["vjp"]

        def lenient(query, key, value, grad_output, *, grad_lse=None, **options):
            grad_output = np.broadcast_to(grad_output, (*query.shape[:-1], value.shape[-1]))
            grad_lse = None if grad_lse is None else np.reshape(grad_lse, query.shape[:-1])
            return vjp(query, key, value, grad_output, grad_lse=grad_lse, **options)

        return found | {"vjp": lenient}


@breaks("MHA-GRAD-3", "pytorch/pytorch#148476: the saved lse is not there", bug="B161")
class SavedLseZero(HonestGradients):
    def forward(self, call):
        found = super().forward(call)
        return found if self.kept is None else found | {"a": found["a"] * np.exp(found["lse"])[..., None]}


@breaks("MHA-GRAD-4", "flagos-ai/FlagGems#898: rows of padding overwrite the next head", bug="B123")
class ValueTailClobbers(HonestGradients):
    def value_gradient(self, a, dO, see):
        found = super().value_gradient(a, dO, see)
        tail = -found.shape[-2] % 4
        if found.shape[-3] > 1 and tail:
            found[..., 1:, :tail, :] = 0.0
        return found


@breaks("MHA-GRAD-4", "the last query is lost where the block is not full")
class ValueLosesLastQuery(HonestGradients):
    def value_gradient(self, a, dO, see):
        kept = see.copy()
        kept[..., -1, :] &= see.shape[-2] % 4 == 0
        return super().value_gradient(a, dO, kept)


@breaks(
    "MHA-GRAD-4",
    "Dao-AILab/flash-attention#2541: written with contiguous strides where value is a view of a packed buffer",
    bug="B116",
)
class ValueGradientContiguous(HonestGradients):
    def value_gradient(self, a, dO, see):
        found = super().value_gradient(a, dO, see)
        packed = self.call.value.size and not self.call.value.flags.c_contiguous
        return np.swapaxes(found, -2, -3).reshape(found.shape) if packed else found


@breaks("MHA-GRAD-4", "huggingface/diffusers#14341: saved keys and values are transposed a second time", bug="B108")
class SavedTransposed(HonestGradients):
    def forward(self, call):
        h, m = call.key.shape[-3:-1]
        if h != m or h == 1:
            return super().forward(call)
        found = super().forward(call)
        k, v = (np.swapaxes(found[name], -2, -3) for name in "kv")
        s = self.scores(found["q"], k, self.scale(call))
        a, lse = self.softmax(s, found["see"], np.full((*s.shape[:-1], 1), -np.inf))
        return found | {"k": k, "v": v, "a": a, "lse": lse}


@breaks("MHA-GRAD-4", "NVIDIA/cudnn-frontend#160, Dao-AILab/flash-attention#334: NaN where no tile is filled", bug="B125 B127")
class TailIsNan(HonestGradients):
    def forward(self, call):
        found = super().forward(call)
        a = found["a"].copy()
        if a.shape[-1] % 8:
            a[..., -1] = np.nan
        return found | {"a": a}


@breaks("MHA-GRAD-4", "pytorch/pytorch#184330: no channels of keys, gradients of zeros")
class NoChannelsNoGradient(HonestGradients):
    def value_gradient(self, a, dO, see):
        return super().value_gradient(a, dO, see) * (self.call.query.shape[-1] > 0)


@breaks("MHA-GRAD-5", "D is left out in the first tile")
class FirstTileWithoutD(HonestGradients):
    def score_gradient(self, a, dP, D, dL):
        D = np.broadcast_to(D, dP.shape).copy()
        D[..., :2] = 0.0
        return super().score_gradient(a, dP, D, dL)


@breaks("MHA-GRAD-5", "NVIDIA/TransformerEngine#3216: D of the first batch item for all of them", bug="B160")
class DOfFirstItem(HonestGradients):
    def mean(self, D):
        return np.broadcast_to(D[:1], D.shape) if D.ndim > 3 else D


@breaks("MHA-GRAD-5", "the last block of keys is lost")
class QueryLosesLastKey(HonestGradients):
    def query_gradient(self, dX, k, see, scale):
        return super().query_gradient(dX[..., :-1], k[..., :-1, :], see[..., :-1], scale)


@breaks("MHA-GRAD-5", "the scale is missing")
class QueryWithoutScale(HonestGradients):
    def query_gradient(self, dX, k, see, scale):
        return super().query_gradient(dX, k, see, 1.0)


@breaks("MHA-GRAD-6", "the scale twice, once in the query already")
class KeyScaledTwice(HonestGradients):
    def key_gradient(self, dX, q, see, scale):
        return super().key_gradient(dX, q, see, scale * scale)


@breaks("MHA-GRAD-6", "the gradient of keys by the rows of dS, where they are as many")
class KeyNotTransposed(HonestGradients):
    def key_gradient(self, dX, q, see, scale):
        square = dX.shape[-1] == dX.shape[-2]
        return super().key_gradient(turned(dX) if square else dX, q, see, scale)


@breaks("MHA-GRAD-7", "what arrives at the lse is dropped")
class LseDropped(HonestGradients):
    def score_gradient(self, a, dP, D, dL):
        return super().score_gradient(a, dP, D, None)


@breaks("MHA-GRAD-7", "what arrives at the lse is subtracted with D")
class LseOfWrongSign(HonestGradients):
    def score_gradient(self, a, dP, D, dL):
        return super().score_gradient(a, dP, D, None if dL is None else -dL)


@breaks("MHA-GRAD-8", "what arrives at the weights is dropped")
class WeightsDropped(HonestGradients):
    def at_weights(self, dA):
        return 0.0 * dA


@breaks("MHA-GRAD-8", "D is the product of dO and O, though something arrives at the weights")
class WeightsWithoutMean(HonestGradients):
    def at_weights(self, dA):
        self.dA = dA
        return dA

    def attend_vjp(self, call, arriving, kept):
        self.dA = None
        return super().attend_vjp(call, arriving, kept)

    def score_gradient(self, a, dP, D, dL):
        return super().score_gradient(a, dP, D if self.dA is None else D - (a * self.dA).sum(-1, keepdims=True), dL)


@breaks("MHA-GRAD-9", "the slope of the cap is left out")
class CapWithoutSlope(HonestGradients):
    def through_cap(self, dS, x, c):
        return dS


@breaks("MHA-GRAD-10", "HKUSTDial/flash-sparse-attention#190: the bias's gradient of the first batch item and head", bug="B162")
class BiasOfFirst(HonestGradients):
    def bias_gradient(self, dS, bias):
        for axis in range(dS.ndim - 2):
            dS = dS[(slice(None),) * axis + (slice(0, 1),)] if bias.shape[axis] == 1 else dS
        return super().bias_gradient(dS, bias)


@breaks("MHA-GRAD-10", "jax-ml/jax#32242: a wider bias is read in the dtype of the query")
class BiasOfQueryDtype(HonestGradients):
    def rounded(self, call, **found):
        rounded = super().rounded(call, **found)
        return rounded if rounded.bias is None else rounded._replace(bias=rounded.bias.astype(call.query.dtype))


@breaks("MHA-GRAD-11", "the sink's gradient of the last batch item")
class SinkOfLastItem(HonestGradients):
    def sink_gradient(self, sinks, lse, D, dL, see):
        return super().sink_gradient(sinks, lse[-1:], D[-1:], None if dL is None else dL[-1:], see[-1:])


@breaks("MHA-GRAD-11", "the sink's gradient of the wrong sign")
class SinkOfWrongSign(HonestGradients):
    def sink_gradient(self, sinks, lse, D, dL, see):
        return super().sink_gradient(sinks, lse, -D, dL, see)


@breaks("MHA-GRAD-12", "the mean over the group in place of the sum")
class GroupMean(HonestGradients):
    def over_group(self, x, h_kv):
        return super().over_group(x, h_kv) * (h_kv / max(x.shape[-3], 1))


@breaks("MHA-GRAD-12", "the group is every h_kv-th head")
class GroupTiled(HonestGradients):
    def over_group(self, x, h_kv):
        *b, h, m, d = x.shape
        return x.reshape(*b, h // h_kv if h_kv else 1, h_kv, m, d).sum(-4)


@breaks(
    "MHA-GRAD-13", "pytorch/pytorch#41508, mindspore-lab/mindone#1229: the weights of an empty row stay NaN", bug="B052 B198"
)
class EmptyRowsNan(HonestGradients):
    def forward(self, call):
        found = super().forward(call)
        empty = ~found["see"].any(-1, keepdims=True)
        return found | {"a": np.where(empty, np.nan, found["a"]), "see": found["see"] | empty}


@breaks("MHA-GRAD-13", "an empty row is the mean of all values, backwards")
class EmptyRowsUniform(HonestGradients):
    def forward(self, call):
        found = super().forward(call)
        empty = ~found["see"].any(-1, keepdims=True)
        return found | {"a": np.where(empty, 1.0 / max(found["a"].shape[-1], 1), found["a"]), "see": found["see"] | empty}


@breaks("MHA-GRAD-14", "xlite-dev/ffpa-attn#300: causal from the top left, backwards", bug="B040")
class CausalTopLeftBackwards(HonestGradients):
    def visible_backward(self, call):
        if call.band == (None, 0) and call.key.shape[-2] > call.query.shape[-2]:
            n, m = call.query.shape[-2], call.key.shape[-2]
            return np.arange(m)[None] <= np.arange(n)[:, None]
        return self.visible(call)


@breaks("MHA-GRAD-14", "Dao-AILab/flash-attention#2324: gradients of what is beyond the length are not written", bug="B143")
class BeyondTheLengthUnwritten(HonestGradients):
    def rounded(self, call, **found):
        if call.key_lengths is not None:
            beyond = np.arange(call.key.shape[-2]) >= np.asarray(call.key_lengths)[..., None]
            shown = np.where(np.any(np.asarray(call.key_lengths) == 0), False, beyond)
            for name in ("key", "value"):
                found[name] = np.where(np.broadcast_to(shown[:, None, :, None], found[name].shape), 1e3, found[name])
        return super().rounded(call, **found)


class Multiplied(HonestGradients):
    """Products with a weight of 0, in which empty rows alone were cleaned."""

    def value_gradient(self, a, dO, see):
        return turned(a) @ np.where(see.any(-1, keepdims=True), dO, 0.0)


@breaks("MHA-GRAD-15", "0 times NaN over the queries")
class PlainProduct(Multiplied):
    pass


@breaks("MHA-GRAD-16", "NaN becomes 0")
class NanBecomesZero(HonestGradients):
    def rounded(self, call, **found):
        clean = {
            name: None if x is None else np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf) for name, x in found.items()
        }
        return super().rounded(call, **clean)


@breaks("MHA-GRAD-16", "a score that is clamped sends nothing back where it is NaN")
class ClampedNan(HonestGradients):
    def through_cap(self, dS, x, c):
        return np.where(np.isnan(x), 0.0, super().through_cap(dS, x, c))


@breaks("MHA-GRAD-18", "the default scale, backwards")
class DefaultScaleBackwards(HonestGradients):
    def query_gradient(self, dX, k, see, scale):
        return super().query_gradient(dX, k, see, max(k.shape[-1], 1) ** -0.5)


@breaks("MHA-GRAD-19", "products with small values are skipped")
class SmallValuesSkipped(HonestGradients):
    def through_values(self, dO, v):
        return super().through_values(dO, v) * (np.abs(v).max(initial=0.0) > 0.1)


class Layer(HonestGradients):
    """A layer of which one gradient is changed."""

    def layer_vjp(self, api):
        def vjp(*arrays, **options):
            return self.changed(api.multi_head_attention_vjp(*arrays, **options), *arrays)

        return vjp


@breaks("MHA-GRAD-17", "the bias of the output by the mean over tokens")
class OutputBiasMean(Layer):
    def changed(self, found, query, *others):
        p = found.projections
        tokens = query.size // query.shape[-1]
        return found if p.b_o is None else found._replace(projections=p._replace(b_o=p.b_o / p.b_o.dtype.type(tokens)))


@breaks("MHA-GRAD-17", "the gradient of a weight is transposed where it is square")
class WeightTransposed(Layer):
    def changed(self, found, *arrays):
        w = found.projections.w_o
        flat = w.reshape(-1, w.shape[-1])
        if flat.shape[0] == flat.shape[1]:
            return found._replace(projections=found.projections._replace(w_o=flat.T.reshape(w.shape)))
        return found


@breaks("MHA-GRAD-17", "the mean over heads in place of the sum, in the input's gradient")
class HeadsMean(Layer):
    def changed(self, found, query, key, value, projections, *others):
        return found._replace(query=found.query / found.query.dtype.type(projections.w_q.shape[0]))
