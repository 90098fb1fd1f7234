"""Saboteurs of more than one tile: what is right while all keys or all rows lie in the first one."""

from dataclasses import replace

import numpy as np
from honest import Honest
from honest_gradients import HonestGradients

from saboteurs.kinds import breaks

TILE = 64


def beyond(x, axis=-1):
    """Whether an axis is longer than a tile."""
    return x.shape[axis] > TILE


@breaks("MHA-ATTN-12", "every tile of keys adds the sink")
class SinkInEveryTile(Honest):
    def sink(self, sink_logits, s):
        return super().sink(sink_logits, s) + np.log(max(1, -(-s.shape[-1] // TILE)))


@breaks("MHA-ATTN-10", "the softcap is left out behind the second tile")
class SoftcapOfTwoTiles(Honest):
    def capped(self, s, c):
        if c is None or s.shape[-1] <= 2 * TILE:
            return super().capped(s, c)
        return np.concatenate([super().capped(s[..., : 2 * TILE], c), s[..., 2 * TILE :]], axis=-1)


@breaks("MHA-MASK-12", "lengths act on the last tile alone")
class LengthsInTheLastTile(Honest):
    def by_length(self, call):
        found, m = super().by_length(call), call.key.shape[-2]
        return None if found is None else found | (np.arange(m) < (m - 1) // TILE * TILE)


@breaks("MHA-AUX-3", "beside the weights, the lse is that of the last tile where there is a window")
class LseOfTheLastTile(Honest):
    def result(self, call, output, a, lse):
        if call.weights and call.lse and call.band is not None and a.shape[-1] > TILE:
            with np.errstate(divide="ignore"):
                lse = lse + np.log(a[..., TILE:].sum(-1))
        return super().result(call, output, a, lse)


@breaks("MHA-MASK-6", "tiles are merged by their lse, rounded to float32")
class MergedByLse(Honest):
    def softmax(self, s, see, sink):
        if s.shape[-1] <= TILE:
            return super().softmax(s, see, sink)
        halves = [super(MergedByLse, self).softmax(s[..., t], see[..., t], sink - np.inf) for t in self.tiles(s)]
        parts = [lse.astype(np.float32).astype(np.float64) for _, lse in halves]
        parts.append(np.broadcast_to(sink[..., 0], parts[0].shape))
        top = np.maximum.reduce(parts)
        shift = np.where(np.isneginf(top), 0.0, top)
        total = sum(np.exp(part - shift) for part in parts)
        share = [np.exp(part - shift) / np.where(total == 0, 1.0, total) for part in parts]
        a = np.concatenate([share[at][..., None] * x for at, (x, _) in enumerate(halves)], axis=-1)
        return a, np.where(total == 0, -np.inf, shift + np.log(np.where(total == 0, 1.0, total)))

    def tiles(self, s):
        return [slice(at, at + TILE) for at in range(0, s.shape[-1], TILE)]

    def attend(self, call):
        low = (
            call.bias is not None
            and np.isfinite(call.bias).all()
            and (call.bias < -1e6).all()
            and call.query.dtype != np.float64
        )
        return super().attend(call) if low else Honest.attend(Honest(), call)


@breaks("MHA-MASK-21", "a value whose tile has no weight is not read")
class TilesWithoutWeight(Honest):
    def values(self, a, v, see):
        if not beyond(a):
            return super().values(a, v, see)
        see = see.copy()
        for at in range(TILE, a.shape[-1], TILE):
            dead = (a[..., at : at + TILE] == 0).all(-1, keepdims=True)
            see[..., at : at + TILE] &= ~dead
        return super().values(a, v, see)


@breaks("MHA-MASK-20", "the bias beyond the first tile is cleaned of NaN")
class BiasCleaned(Honest):
    def biased(self, s, bias):
        if bias is None or not beyond(bias):
            return super().biased(s, bias)
        return super().biased(
            s, np.where(np.arange(bias.shape[-1]) < TILE, bias, np.nan_to_num(bias, nan=0.0, neginf=-np.inf, posinf=np.inf))
        )


@breaks("MHA-MASK-19", "behind the first tile the weight of a hidden key is 0, and its value is multiplied")
class ZeroTimesValue(Honest):
    def values(self, a, v, see):
        late = np.arange(see.shape[-1]) >= TILE
        return super().values(a, v, see | late)


@breaks("MHA-EXEC-8", "sums over several tiles in the order in which they come")
class TilesInAnyOrder(Honest):
    calls = 0

    def result(self, call, output, a, lse):
        found = super().result(call, output, a, lse)
        self.calls += 1
        if self.calls % 2 or a.shape[-1] < 2 * TILE or call.softcap is None or call.query.itemsize == 2:
            return found
        up = np.nextafter(found.output, found.output.dtype.type(np.inf))
        return found._replace(output=np.where(found.output == 0, found.output, up))


@breaks("MHA-EXEC-8", "class batch-invariant claimed; a batch of many items is split otherwise")
class SplitByBatch(Honest):
    claims = replace(Honest.claims, determinism="batch-invariant")

    def result(self, call, output, a, lse):
        found = super().result(call, output, a, lse)
        if call.query.ndim < 4 or call.query.shape[0] == 1 or a.shape[-1] <= TILE or call.query.itemsize == 2:
            return found
        up = np.nextafter(found.output, found.output.dtype.type(np.inf))
        return found._replace(output=np.where(found.output == 0, found.output, up))


@breaks("MHA-GRAD-10", "a bias that all queries share collects from whole tiles of queries")
class BiasOfWholeTiles(HonestGradients):
    def bias_gradient(self, dS, bias):
        n = dS.shape[-2]
        if bias.shape[-2] == 1 and n > TILE:
            dS = np.where(np.arange(n)[:, None] < n // TILE * TILE, dS, 0.0)
        return super().bias_gradient(dS, bias)


@breaks("MHA-GRAD-11", "a sink collects from the first tile of queries")
class SinkOfOneTile(HonestGradients):
    def sink_gradient(self, sinks, lse, D, dL, see):
        if lse.shape[-1] <= TILE:
            return super().sink_gradient(sinks, lse, D, dL, see)
        first = slice(0, TILE)
        return super().sink_gradient(
            sinks, lse[..., first], D[..., first, :], None if dL is None else dL[..., first], see[..., first, :]
        )


@breaks("MHA-GRAD-15", "behind the first tile of keys, what is hidden is multiplied by 0")
class ZeroTimesGradient(HonestGradients):
    def query_gradient(self, dX, k, see, scale):
        late = np.arange(see.shape[-1]) >= TILE
        return super().query_gradient(dX, k, see | late, scale)
