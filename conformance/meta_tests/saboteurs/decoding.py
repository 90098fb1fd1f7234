"""Saboteurs of CACHE, VARLEN and STAT: chunks, single rows, caches that forget, packs that run together, other statistics."""

from dataclasses import replace

import numpy as np
from honest import Honest

from mha_core import KVCache
from mha_core.errors import Violation
from saboteurs.kinds import breaks


def decodes(call):
    """A call of causal attention whose queries are the last tokens."""
    plain = call.band is not None and isinstance(call.query_offset, int)
    return plain and call.query_offset > 0 and call.query_offset + call.query.shape[-2] == call.key.shape[-2]


@breaks("MHA-CACHE-1", "meta-llama/llama#899: a square mask, which shows a chunk no more than one chunk back")
class SquareMask(Honest):
    def by_band(self, call):
        see = super().by_band(call)
        n = call.query.shape[-2]
        if n > 1 and decodes(call) and call.query_offset >= n:
            see = see & (self.key_positions(call) >= call.query_offset - n)
        return see


@breaks("MHA-CACHE-2", "vllm-project/flash-attention#87: the lse of grouped heads in the order of key heads, one query")
class OneQueryLseOfGroups(Honest):
    def result(self, call, output, a, lse):
        h, h_kv = call.query.shape[-3], call.key.shape[-3]
        if call.query.shape[-2] == 1 and decodes(call) and h != h_kv:
            lse = np.swapaxes(lse.reshape(*lse.shape[:-2], h_kv, h // h_kv), -1, -2).reshape(lse.shape)
        return super().result(call, output, a, lse)


@breaks("MHA-CACHE-2", "class bit-exact is declared, and a decoding kernel rounds otherwise")
class OneQueryOtherBits(Honest):
    claims = replace(Honest.claims, determinism="bit-exact")

    def result(self, call, output, a, lse):
        found = super().result(call, output, a, lse)
        one = call.query.shape[-2] == 1 and decodes(call) and call.query.dtype == np.float32
        return found._replace(output=np.nextafter(found.output, np.float32(9))) if one else found


class PositionAfter(KVCache):
    def append(self, key, value, counts=None):
        held = super().append(key, value, counts)
        return held._replace(query_offset=self.read().query_offset)


@breaks("MHA-CACHE-3", "the offset is the position behind the tokens and not of the first of them")
class OffsetAfterAppend(Honest):
    cache = PositionAfter


class WithoutCounts(KVCache):
    def append(self, key, value, counts=None):
        return super().append(key, value)


@breaks("MHA-CACHE-4", "padding is kept")
class PaddingKept(Honest):
    cache = WithoutCounts


class Forgetful(KVCache):
    def _moved(self, buffer, size, order=None):
        fresh = super()._moved(buffer, size, order)
        if order is None:
            fresh[..., : fresh.shape[-2] // 4, :] = 0
        return fresh


@breaks("MHA-CACHE-5", "a cache that grows leaves tokens behind")
class GrowthForgets(Honest):
    cache = Forgetful


class Overflowing(KVCache):
    def append(self, key, value, counts=None):
        try:
            return super().append(key, value, counts)
        except Violation as error:
            if error.clause != "MHA-CACHE-5":
                raise
            self.rollback(0)
            return super().append(key, value, counts)


@breaks("MHA-CACHE-5", "Dao-AILab/flash-attention#638: no bounds are checked", bug="B174")
class FullStartsAgain(Honest):
    cache = Overflowing


class Cropping(KVCache):
    def append(self, key, value, counts=None):
        heads = min(key.shape[-3], value.shape[-3])
        return super().append(key[..., :heads, :, :], value[..., :heads, :, :], counts)


@breaks("MHA-CACHE-6", "what does not fit is cropped")
class MisfitCropped(Honest):
    cache = Cropping


class Keeping(KVCache):
    def rollback(self, lengths):
        pass


@breaks("MHA-CACHE-7", "a rejected draft stays")
class RollbackIgnored(Honest):
    cache = Keeping


class OneLength(KVCache):
    def rollback(self, lengths):
        super().rollback(np.minimum(np.max(lengths), self.lengths))


@breaks("MHA-CACHE-7", "all sequences are rolled back to one length")
class RollbackToTheLongest(Honest):
    cache = OneLength


class InPlace(KVCache):
    def reorder(self, order):
        pass


@breaks("MHA-CACHE-8", "beams stay where they were")
class ReorderIgnored(Honest):
    cache = InPlace


class LengthsStay(KVCache):
    def reorder(self, order):
        before = self._held.copy()
        super().reorder(order)
        self._held = before


@breaks("MHA-CACHE-8", "keys and values move, lengths do not")
class ReorderWithoutLengths(Honest):
    cache = LengthsStay


class SlotsWrap(KVCache):
    def append(self, key, value, counts=None):
        held = super().append(key, value, counts)
        for buffer, tokens in ((self._key, key), (self._value, value)):
            if len(buffer) > 1:
                buffer[0, :, self._held[0] - tokens.shape[-2] : self._held[0]] = tokens[-1]
        return held


@breaks(
    "MHA-CACHE-3",
    "Dao-AILab/flash-attention#772: the number of a slot wraps, and the last one writes into the first",
    bug="B136",
)
class SlotNumberWraps(Honest):
    cache = SlotsWrap


class SharedCells(KVCache):
    def evict(self):
        if self._left is not None and self._key is not None:
            longest = int(self._held.max(initial=0))
            for b in np.ndindex(self._held.shape):
                lost = max(longest - self._left, 0)
                for buffer in (self._key, self._value):
                    buffer[(*b, slice(None), slice(max(int(self._held[b]) - self._left, 0), lost))] = 0
        super().evict()


@breaks("MHA-CACHE-9", "ikawrakow/ik_llama.cpp#2186: the last cells are kept, of all sequences together", bug="B175")
class CellsOfAllSequences(Honest):
    cache = SharedCells


class ShortWindow(KVCache):
    def __init__(self, *, capacity=None, window=None):
        super().__init__(capacity=capacity, window=None if window is None else (window[0] - 1, window[1]))


@breaks("MHA-CACHE-9", "huggingface/transformers#37574: one token too many makes room", bug="B171")
class EvictsOneTooMany(Honest):
    cache = ShortWindow


@breaks("MHA-VARLEN-1", "the starts are ignored")
class OneSequence(Honest):
    def varlen(self, function, query, key, value, **options):
        if options.get("is_causal") or any(
            x.shape[0] != options[f"{name}_starts"][-1] for name, x in (("query", query), ("key", key))
        ):
            return function(query, key, value, **options)
        return function(query, key, value, **{**options, "query_starts": [0, query.shape[0]], "key_starts": [0, key.shape[0]]})


@breaks("MHA-VARLEN-2", "a sequence begins behind the tokens of lower numbers, as if the numbers of sequences rose")
class RisingNumbers(Honest):
    def by_segment(self, call):
        see = super().by_segment(call)
        ids = call.query_segments
        if see is None or ids.shape != call.key_segments.shape or not (np.diff(ids) < 0).any() or not packed(ids):
            return see
        begins = (ids[..., None, :] < ids[..., :, None]).sum(axis=-1)[..., None, :, None]
        return see & (self.key_positions(call) >= begins)


def packed(ids):
    """Whether each number stands in one run."""
    return all(1 + (np.diff(one) != 0).sum() == np.unique(one).size for one in ids)


@breaks("MHA-VARLEN-3", "tokens behind the last start become a sequence")
class SpilledTokensJoin(Honest):
    def varlen(self, function, query, key, value, **options):
        starts = {name: list(options[f"{name}_starts"]) for name in ("query", "key")}
        for name, x in (("query", query), ("key", key)):
            starts[name][-1] = x.shape[0]
        return function(query, key, value, **{**options, "query_starts": starts["query"], "key_starts": starts["key"]})


@breaks("MHA-VARLEN-4", "bottom-right, whatever is asked")
class VarlenBottomRight(Honest):
    def varlen(self, function, query, key, value, **options):
        if options.get("is_causal"):
            n, m = (np.diff(options[f"{name}_starts"]) for name in ("query", "key"))
            options["query_offset"] = (m - n).tolist()
        return function(query, key, value, **options)


@breaks("MHA-VARLEN-5", "queries without keys give NaN")
class KeylessNaN(Honest):
    def varlen(self, function, query, key, value, **options):
        output = function(query, key, value, **options)
        n, m = (np.diff(options[f"{name}_starts"]) for name in ("query", "key"))
        if not (m == 0).any():
            return output
        return np.where(np.repeat(m == 0, n)[:, None, None], np.float32(np.nan), output)


class Statistics(Honest):
    """Statistics of which one is another."""

    def statistics(self, function, query, key, **options):
        found = function(query, key, **options)
        changed = {name: self.changed(name, x, query, key) for name, x in found._asdict().items() if x is not None}
        return found._replace(**changed)

    def changed(self, name, x, query, key):
        return x


@breaks("MHA-STAT-1", "the mean over queries")
class MassIsMean(Statistics):
    def changed(self, name, x, query, key):
        return x / query.shape[-2] if name == "column_mass" else x


@breaks("MHA-STAT-2", "in bits")
class EntropyInBits(Statistics):
    def changed(self, name, x, query, key):
        return x / np.log(2).astype(x.dtype) if name == "row_entropy" else x


@breaks("MHA-STAT-3", "the smallest first")
class TopAscending(Statistics):
    def changed(self, name, x, query, key):
        return x[..., ::-1] if name in ("top_weights", "top_keys") else x


@breaks("MHA-STAT-4", "one head stands for all")
class MeanOfOneHead(Statistics):
    def statistics(self, function, query, key, **options):
        if options.get("head_mean") is None:
            return function(query, key, **options)
        return function(query[..., :1, :, :], key[..., :1, :, :], **options)


@breaks("MHA-STAT-6", "a NaN in one row reaches every key")
class MassNaNSpreads(Statistics):
    def changed(self, name, x, query, key):
        nan = np.isnan(query).any(axis=(-1, -2))[..., None]
        return np.where(nan, x.dtype.type(np.nan), x) if name == "column_mass" else x


@breaks("MHA-STAT-7", "float64 is summed in float32")
class MassInFloat32(Statistics):
    def changed(self, name, x, query, key):
        return x.astype(np.float32).astype(x.dtype) if x.dtype == np.float64 else x


@breaks("MHA-STAT-8", "a range that is too long is cut")
class RangeCut(Honest):
    def statistics(self, function, query, key, **options):
        span = options.get("head_mean")
        return function(query, key, **{**options, "head_mean": span and (span[0], min(span[1], key.shape[-2]))})
