"""Kernels that sum in an order or an arithmetic of their own."""

from dataclasses import replace
from typing import Any

import numpy as np
from honest import Honest

from zoo import arithmetic
from zoo.kernel import Eager, by_rows


class OneByOne(Eager):
    """Every sum runs over its terms one by one, in an order and an arithmetic of its own."""

    def step(self, acc: Any, a: Any, b: Any) -> Any:
        return acc + a * b

    def order(self, count: int) -> Any:
        return range(count)

    def dot(self, a: Any, b: Any) -> Any:
        acc = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-2]), dtype=a.dtype)
        for i in self.order(a.shape[-1]):
            acc = self.step(acc, a[..., :, i, None], b[..., None, :, i])
        return acc

    def total(self, e: Any) -> Any:
        acc = np.zeros((*e.shape[:-1], 1), dtype=e.dtype)
        for j in self.order(e.shape[-1]):
            acc = self.step(acc, e[..., j : j + 1], np.ones((1,), dtype=e.dtype))
        return acc

    def values(self, a: Any, v: Any, see: Any) -> Any:
        acc = np.zeros((*a.shape[:-1], v.shape[-1]), dtype=a.dtype)
        for j in self.order(a.shape[-1]):
            acc = np.where(see[..., j : j + 1], self.step(acc, a[..., j : j + 1], v[..., None, j, :]), acc)
        return acc


class ReversedSums(OneByOne):
    """From the last term to the first."""

    def order(self, count: int) -> Any:
        return range(count - 1, -1, -1)


class BlockedSums(OneByOne):
    """Every sum runs over blocks of 16 terms, and then over the blocks."""

    block = 16

    def dot(self, a: Any, b: Any) -> Any:
        return sum(super(BlockedSums, self).dot(a[..., at], b[..., at]) for at in self.blocks(a.shape[-1]))

    def total(self, e: Any) -> Any:
        return sum(super(BlockedSums, self).total(e[..., at]) for at in self.blocks(e.shape[-1]))

    def values(self, a: Any, v: Any, see: Any) -> Any:
        own = super().values
        return sum(own(a[..., at], v[..., at, :], see[..., at]) for at in self.blocks(a.shape[-1]))

    def blocks(self, count: int) -> list[slice]:
        return [slice(at, at + self.block) for at in range(0, max(1, count), self.block)]


class FusedMultiplyAdd(OneByOne):
    """Product and sum are rounded once, as in any matrix loop of a compiler."""

    def step(self, acc: Any, a: Any, b: Any) -> Any:
        return arithmetic.fused(a, b, acc)


class TruncatingAccumulator(OneByOne):
    """Each product and each partial sum is cut off, as in the matrix units of some chips."""

    claims = replace(Honest.claims, grade="ANY")

    def step(self, acc: Any, a: Any, b: Any) -> Any:
        return arithmetic.sum_toward_zero(acc, arithmetic.product_toward_zero(a, b))


class PairwiseSums(Eager):
    """Every sum is a tree of pairs."""

    def dot(self, a: Any, b: Any) -> Any:
        return by_rows(lambda a: self.tree(a[..., :, None, :] * b[..., None, :, :]), b.shape[-2], a)

    def total(self, e: Any) -> Any:
        return self.tree(e)[..., None]

    def values(self, a: Any, v: Any, see: Any) -> Any:
        def summed(a: Any, see: Any) -> Any:
            terms = np.where(see[..., None], a[..., None] * v[..., None, :, :], a.dtype.type(0))
            return self.tree(np.swapaxes(terms, -1, -2))

        return by_rows(summed, v.shape[-1], a, see)

    def tree(self, terms: Any) -> Any:
        while terms.shape[-1] > 1:
            odd = terms[..., terms.shape[-1] // 2 * 2 :]
            terms = np.concatenate([terms[..., 0:-1:2][..., : terms.shape[-1] // 2] + terms[..., 1::2], odd], axis=-1)
        return terms.sum(axis=-1)
