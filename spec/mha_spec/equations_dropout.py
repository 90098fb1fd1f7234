"""Chapter 3, the equations of dropout: which pairs are kept, by the counter-based generator Philox4x32-10, and what becomes of a weight.

A generator without a state: the word of a pair is a function of its seed and its four indices, so that whoever computes a part of a
call, in any order, finds the same words. Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3,
SC 2011. Arrays of words are int64, which every library computes with, and hold 32 bits each.
"""

import math

import array_api_compat
from jaxtyping import Bool, Float, Int64

from mha_spec.call import Array, Call

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
WORD = 2**32


def dropped(A: Float[Array, "*b h n m"], M: Float[Array, "*b h n m"]) -> Float[Array, "*b h n m"]:
    """(*b h n m), (*b h n m) -> (*b h n m): the weights that meet the values (MHA-DROP-1). A product, so NaN stays (MHA-DROP-8)."""
    return A * M


def factors(call: Call) -> Float[Array, "*b h n m"]:
    """-> (*b h n m): M_ij, which is 1/(1 - rate) where the pair is kept and 0 where it is dropped; 0 everywhere at rate 1 (MHA-DROP-6)."""
    xp = array_api_compat.array_namespace(call.query)
    batch, h, _, n, m, _, _ = call.sizes
    drop = call.dropout
    assert drop is not None
    none = xp.zeros((*batch, h, n, m), dtype=call.query.dtype, device=array_api_compat.device(call.query))
    if drop.rate == 1:
        return none
    keep = drawn(call) if drop.keep is None else drop.keep
    return xp.where(keep, none + 1 / (1 - drop.rate), none)


def drawn(call: Call) -> Bool[Array, "*b h n m"]:
    """-> (*b h n m): whether the word of a pair is at least floor(rate 2^32) (MHA-DROP-3).

    The counter holds (key_start + j) // 4, query_start + i, head_start + head and batch_start + b, with b the number of the batch item in
    row-major order (MHA-DROP-4, MHA-DROP-5); the word is the one of lane (key_start + j) % 4.
    """
    xp = array_api_compat.array_namespace(call.query)
    batch, h, _, n, m, _, _ = call.sizes
    drop = call.dropout
    assert drop is not None and drop.seed is not None

    def index(start: int, size: int) -> Array:
        return xp.arange(start, start + size, dtype=xp.int64, device=array_api_compat.device(call.query))

    b = xp.reshape(index(drop.batch_start, math.prod(batch)), (*batch, 1, 1, 1))
    head = xp.reshape(index(drop.head_start, h), (h, 1, 1))
    i = xp.reshape(index(drop.query_start, n), (n, 1))
    j = index(drop.key_start, m)
    lanes = philox((j // 4, i, head, b), drop.seed)
    lane = j % 4
    word = lanes[0]
    for number in (1, 2, 3):
        word = xp.where(lane == number, lanes[number], word)
    return word >= math.floor(drop.rate * WORD)


def philox(
    counter: tuple[Int64[Array, "..."], Int64[Array, "..."], Int64[Array, "..."], Int64[Array, "..."]], seed: int
) -> tuple[Int64[Array, "..."], Int64[Array, "..."], Int64[Array, "..."], Int64[Array, "..."]]:
    """Four words of counter, broadcast, and the key (seed mod 2^32, seed // 2^32) -> four words: Philox4x32-10.

    A round multiplies words 0 and 2 by the multipliers and gives (high_2 xor word_1 xor key_0, low_2, high_0 xor word_3 xor key_1, low_0);
    the key then grows by its steps.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = seed % WORD, seed // WORD
    for _ in range(ROUNDS):
        (high_0, low_0), (high_2, low_2) = product(c0, MULTIPLIERS[0]), product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high_2 ^ c1 ^ k0, low_2, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + KEY_STEPS[0]) % WORD, (k1 + KEY_STEPS[1]) % WORD
    return c0, c1, c2, c3


def product(word: Int64[Array, "..."], multiplier: int) -> tuple[Int64[Array, "..."], Int64[Array, "..."]]:
    """The two words of a product of two, high and low; by halves of the multiplier, so that nothing exceeds 2^49."""
    low = word * (multiplier % 2**16)
    middle = word * (multiplier // 2**16) + low // 2**16
    return middle // 2**16, middle % 2**16 * 2**16 + low % 2**16
