"""Attention and its gradients as cuTile kernels: Python that cuda-tile compiles for tensor cores of compute capability 9.0 and 10.x.

FlashAttention (Dao et al., 2022, algorithms 1 and 4; Dao, 2023) in tiles of T_Q queries and T_K keys. Scores and sums are float32.

    forward     S = scale . Q K^T, P = exp(S - lse), O = P V, lse = m + log l       one block per tile of queries
    deltas      delta = sum_c dO_c O_c - dL                                          one block per tile of queries
    keys        dV = P^T dO, dK = scale . dS^T Q, dS = P (dO V^T - delta)            one block per tile of keys
    queries     dQ = scale . dS K                                                    one block per tile of queries

Arrays have four axes (batch, head, row, channel), lse and delta three; channels in excess of D_K and D_V, and rows beyond the last,
are read as 0 and not written. Exponentials are powers of two: ``scale`` comes times log2 e where a name says so. Nothing is added
by several blocks, so each run gives the same bits.

Query i sees key j where j <= offset + i (MHA-MASK-7); an offset of as many keys as there are shows all of them.
A key beyond the last one, or hidden by that band, has no influence (MHA-MASK-18, MHA-MASK-19). Tiles whose pairs are all visible
have a loop of their own; in the others a hidden score is selected away, never added to, and factors that would meet a weight of 0 are
made finite first; what a pair does see of NaN is put back by ``poison``.
"""

from typing import Any, TypeAlias

import cuda.tile as ct

LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
INFINITY, NAN, MOST = float("inf"), float("nan"), 3.4028234663852886e38  # the largest float32
ZERO = ct.PaddingMode.ZERO

Int: TypeAlias = ct.Constant[int]
Bool: TypeAlias = ct.Constant[bool]


def forward(
    Q: Any, K: Any, V: Any, O: Any, L: Any, scale_log2: float, spread: float, offset: int, tiles: int, heads: int, group: int,
    T_Q: Int, T_K: Int, D_K: Int, D_V: Int, BOUNDED: Bool,
) -> None:  # fmt: skip
    """O (MHA-ATTN-6) and the lse (MHA-AUX-4). P is kept times 2^-spread, so that no sum of P V leaves float32."""
    i = tiles - 1 - ct.bid(0) % tiles  # the last queries see the most keys: they begin first
    item = ct.bid(0) // tiles
    b, h = item // heads, item % heads
    kv = h // group
    q = rows(Q, b, h, i, T_Q, D_K)
    m = ct.full((T_Q, 1), -INFINITY, ct.float32)
    l = ct.full((T_Q, 1), 0.0, ct.float32)
    acc = ct.full((T_Q, D_V), 0.0, ct.float32)

    whole, end = spans(i, offset, K.shape[2], T_Q, T_K)
    for j in range(whole):
        s = scores(q, rows(K, b, kv, j, T_K, D_K), scale_log2, T_Q, T_K, BOUNDED)
        m, l, acc, p = softmax(s, spread, m, l, acc)
        acc = ct.mma(p.astype(V.dtype), rows(V, b, kv, j, T_K, D_V), acc)
    for j in range(whole, end):
        s = scores(q, rows(K, b, kv, j, T_K, D_K), scale_log2, T_Q, T_K, BOUNDED)
        visible = sees(i, j, offset, K.shape[2], T_Q, T_K)
        m, l, acc, p = softmax(ct.where(visible, s, -INFINITY), spread, m, l, acc)
        v = rows(V, b, kv, j, T_K, D_V)
        acc = ct.mma(p.astype(V.dtype), finite(v), acc + poison(visible, v, T_Q, D_V))

    empty = l == 0.0  # MHA-MASK-15
    total = ct.where(empty, 1.0, l)
    write(O, b, h, i, acc / total)
    lse = ct.where(empty, -INFINITY, (m + spread + ct.log2(total)) * LN_2)
    ct.store(L, index=(b, h, i), tile=lse.reshape((1, 1, T_Q)))


def deltas(O: Any, dO: Any, dL: Any, delta: Any, tiles: int, heads: int, T_Q: Int, D_V: Int, HAS_DL: Bool) -> None:
    """delta_i, by which the softmax and the lse send back (MHA-GRAD-4, MHA-GRAD-11)."""
    i, item = ct.bid(0) % tiles, ct.bid(0) // tiles
    b, h = item // heads, item % heads
    o, do = rows(O, b, h, i, T_Q, D_V).astype(ct.float32), rows(dO, b, h, i, T_Q, D_V).astype(ct.float32)
    found = ct.sum(o * do, axis=1).reshape((1, 1, T_Q))
    if HAS_DL:
        found = found - ct.load(dL, index=(b, h, i), shape=(1, 1, T_Q), padding_mode=ZERO)
    ct.store(delta, index=(b, h, i), tile=found)


def keys(
    Q: Any, K: Any, V: Any, dO: Any, L: Any, delta: Any, dK: Any, dV: Any, scale: float, offset: int, tiles: int, kv_heads: int,
    group: int, T_Q: Int, T_K: Int, D_K: Int, D_V: Int,
) -> None:  # fmt: skip
    """dK and dV of a tile of keys (MHA-GRAD-5, MHA-GRAD-6), summed over the queries and over the heads of the group."""
    j, item = ct.bid(0) % tiles, ct.bid(0) // tiles
    b, kv = item // kv_heads, item % kv_heads
    k, v = rows(K, b, kv, j, T_K, D_K), rows(V, b, kv, j, T_K, D_V)
    dk = ct.full((T_K, D_K), 0.0, ct.float32)
    dv = ct.full((T_K, D_V), 0.0, ct.float32)

    # tiles of queries: from `begin` some query sees the first key, from `whole` each query sees every key
    end = ct.cdiv(Q.shape[2], T_Q)
    begin = min(end, max(0, j * T_K - offset) // T_Q)
    whole = min(end, (max(0, (j + 1) * T_K - 1 - offset) + T_Q - 1) // T_Q)
    if (j + 1) * T_K > K.shape[2]:
        whole = end
    for g in range(group):
        h = kv * group + g
        for i in range(begin, whole):  # apart from the next loop, in which the compiler for 10.0 cannot hold one more product
            visible = ct.transpose(sees(i, j, offset, K.shape[2], T_Q, T_K))
            dv = dv + poison(visible, rows(dO, b, h, i, T_Q, D_V), T_K, D_V)
        for i in range(begin, whole):
            q, do = rows(Q, b, h, i, T_Q, D_K), rows(dO, b, h, i, T_Q, D_V)
            p, ds = shares(k, q, v, do, L, delta, b, h, i, scale, T_Q, T_K)
            visible = ct.transpose(sees(i, j, offset, K.shape[2], T_Q, T_K))
            p, ds = ct.where(visible, p, 0.0), ct.where(visible, ds, 0.0)
            dv = ct.mma(p.astype(dO.dtype), finite(do), dv)
            dk = ct.mma(ds.astype(Q.dtype), finite(q), dk)
        for i in range(whole, end):
            q, do = rows(Q, b, h, i, T_Q, D_K), rows(dO, b, h, i, T_Q, D_V)
            p, ds = shares(k, q, v, do, L, delta, b, h, i, scale, T_Q, T_K)
            dv = ct.mma(p.astype(dO.dtype), do, dv)
            dk = ct.mma(ds.astype(Q.dtype), q, dk)
    write(dK, b, kv, j, dk * scale)
    write(dV, b, kv, j, dv)


def queries(
    Q: Any, K: Any, V: Any, dO: Any, L: Any, delta: Any, dQ: Any, scale: float, offset: int, tiles: int, heads: int, group: int,
    T_Q: Int, T_K: Int, D_K: Int, D_V: Int,
) -> None:  # fmt: skip
    """dQ of a tile of queries (MHA-GRAD-4)."""
    i = tiles - 1 - ct.bid(0) % tiles
    item = ct.bid(0) // tiles
    b, h = item // heads, item % heads
    kv = h // group
    q, do = rows(Q, b, h, i, T_Q, D_K), rows(dO, b, h, i, T_Q, D_V)
    shift, back = shifts(L, b, h, i, T_Q).reshape((T_Q, 1)), column(delta, b, h, i, T_Q).reshape((T_Q, 1))
    dq = ct.full((T_Q, D_K), 0.0, ct.float32)
    whole, end = spans(i, offset, K.shape[2], T_Q, T_K)
    for j in range(whole):
        k, v = rows(K, b, kv, j, T_K, D_K), rows(V, b, kv, j, T_K, D_V)
        p = ct.exp2(scores(q, k, scale * LOG2_E, T_Q, T_K, True) - shift)
        ds = p * (products(do, v, T_Q, T_K) - back)
        dq = ct.mma(ds.astype(K.dtype), k, dq)
    for j in range(whole, end):
        k, v = rows(K, b, kv, j, T_K, D_K), rows(V, b, kv, j, T_K, D_V)
        p = ct.exp2(scores(q, k, scale * LOG2_E, T_Q, T_K, True) - shift)
        ds = ct.where(sees(i, j, offset, K.shape[2], T_Q, T_K), p * (products(do, v, T_Q, T_K) - back), 0.0)
        dq = ct.mma(ds.astype(K.dtype), finite(k), dq)
    write(dQ, b, h, i, dq * scale)


# ---- What the kernels are made of; cuda-tile puts each where it is called ----


def rows(x: Any, b: int, h: int, i: int, T: int, D: int) -> Any:
    """Tile i of T rows and D channels."""
    return ct.load(x, index=(b, h, i, 0), shape=(1, 1, T, D), padding_mode=ZERO, latency=2).reshape((T, D))


def write(x: Any, b: int, h: int, i: int, tile: Any) -> None:
    ct.store(x, index=(b, h, i, 0), tile=tile.reshape((1, 1, tile.shape[0], tile.shape[1])).astype(x.dtype))


def column(x: Any, b: int, h: int, i: int, T: int) -> Any:
    """One number for each of T rows."""
    return ct.load(x, index=(b, h, i), shape=(1, 1, T), padding_mode=ZERO)


def shifts(L: Any, b: int, h: int, i: int, T: int) -> Any:
    """lse times log2 e; infinity where a row is empty, so that P is 0 there."""
    lse = column(L, b, h, i, T)
    return ct.where(lse == -INFINITY, INFINITY, lse * LOG2_E)


def spans(i: int, offset: int, keys: int, T_Q: int, T_K: int) -> Any:
    """For tile i of queries: the number of tiles of keys that each of them sees whole, and of those that some query sees."""
    end = min(ct.cdiv(keys, T_K), (max(0, (i + 1) * T_Q + offset) + T_K - 1) // T_K)
    return min(end, min(keys // T_K, max(0, i * T_Q + offset + 1) // T_K)), end


def products(x: Any, y: Any, M: int, N: int) -> Any:
    """(M, N): every row of x times every row of y."""
    return ct.mma(x, ct.transpose(y), ct.full((M, N), 0.0, ct.float32))


def scores(x: Any, y: Any, scale: float, M: int, N: int, BOUNDED: bool) -> Any:
    """S (MHA-ATTN-1). One that overflows is the largest number and hides nothing (MHA-MASK-6); NaN stays NaN."""
    if BOUNDED:
        return bounded(bounded(products(x, y, M, N)) * scale)
    return products(x, y, M, N) * scale


def shares(
    k: Any, q: Any, v: Any, do: Any, L: Any, delta: Any, b: int, h: int, i: int, scale: float, T_Q: int, T_K: int
) -> Any:  # fmt: skip
    """P and dS of a tile, (T_K, T_Q): a column is a query."""
    p = ct.exp2(scores(k, q, scale * LOG2_E, T_K, T_Q, True) - shifts(L, b, h, i, T_Q).reshape((1, T_Q)))
    return p, p * (products(v, do, T_K, T_Q) - column(delta, b, h, i, T_Q).reshape((1, T_Q)))


def softmax(s: Any, spread: float, m: Any, l: Any, acc: Any) -> Any:
    """One more tile of scores: the new maxima, sums and outputs of its rows, and P times 2^-spread."""
    top = ct.maximum(m, ct.max(s, axis=1, keepdims=True))
    shift = ct.where(top == -INFINITY, 0.0, top)
    shrink = ct.exp2(m - shift)
    p = ct.exp2(s - (shift + spread))
    return top, l * shrink + ct.sum(p, axis=1, keepdims=True), acc * shrink, p


def bounded(s: Any) -> Any:
    return ct.minimum(ct.maximum(s, -MOST, propagate_nan=True), MOST, propagate_nan=True)


def sees(i: int, j: int, offset: int, keys: int, T_Q: int, T_K: int) -> Any:
    """(T_Q, T_K): which pairs are visible (MHA-MASK-7)."""
    key = j * T_K + ct.arange(T_K, dtype=ct.int32).reshape((1, T_K))
    last = ct.minimum(i * T_Q + offset + ct.arange(T_Q, dtype=ct.int32).reshape((T_Q, 1)), keys - 1)
    return key <= last


def is_finite(x: Any) -> Any:
    return (x > -INFINITY) & (x < INFINITY)


def finite(x: Any) -> Any:
    """x with 0 for NaN and infinities."""
    return ct.where(is_finite(x), x, ct.full(x.shape, 0.0, x.dtype))


def poison(visible: Any, x: Any, M: int, N: int) -> Any:
    """NaN where a row sees a row of x that is not finite in that channel, else 0 (MHA-MASK-21, MHA-GRAD-16)."""
    broken = ct.where(is_finite(x), 0.0, 1.0).astype(x.dtype)
    count = ct.mma(visible.astype(x.dtype), broken, ct.full((M, N), 0.0, ct.float32))
    return ct.where(count > 0.0, NAN, 0.0)
