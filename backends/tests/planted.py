"""Bugs to plant into the fused kernels, one at a time; by which launches each is seen, and as what.

``wrong``: a result outside the bound, under every schedule. ``sometimes wrong``: under some. ``fault``: the emulator stops it.
``thread``, ``address``: a sanitizer speaks, and names a line of the kernel. ``banks``: matrix loads wait for one another.
"""

from typing import Literal, NamedTuple


class Bug(NamedTuple):
    name: str
    launch: str
    seen_as: Literal["wrong", "sometimes wrong", "fault", "thread", "address", "banks"]
    old: str
    new: str


BARRIER = "const bool any_broken = __syncthreads_or(broken);"
TRAILING = "        __syncthreads();    // everybody has read this half"
AWAIT = "        await_copies<1>();"
SHARE = """    // this thread's share of the tile has arrived
        const bool broken = FORM != FULL && clean<B_C, D_V>(p, V_j);
        """

BUGS = (
    # barriers
    Bug("no barrier after the copies", "full", "wrong", BARRIER, "const bool any_broken = broken;"),
    Bug("no barrier after the copies", "full", "thread", BARRIER, "const bool any_broken = broken;"),
    Bug("no barrier before a half is overwritten", "full", "sometimes wrong", TRAILING, "//"),
    Bug("no barrier before a half is overwritten", "full", "thread", TRAILING, "//"),
    Bug("barrier before the wait", "full", "sometimes wrong", AWAIT + SHARE + BARRIER,
        "        const bool any_broken = __syncthreads_or(false);\n        await_copies<1>();"),
    Bug("barrier for three warps only", "full", "fault", TRAILING, "        if (warp) __syncthreads();  //"),
    Bug("a warp returns before the barrier", "full", "fault", "    float O[D_V / 8]",
        "    if (first + 16 * warp >= p.n) return;\n    float O[D_V / 8]"),
    # copies
    Bug("waits for one group too few", "full", "sometimes wrong", AWAIT, "        await_copies<2>();"),
    Bug("groups are never closed", "full", "sometimes wrong", "        close_copies();\n", ""),
    Bug("the next keys into the half in use", "full", "wrong", "K + (half ^ 1) * K_TILE", "K + half * K_TILE"),
    Bug("the halves never change", "full", "wrong", "half ^= 1)", "half ^= 0)"),
    Bug("values of the tile before", "full", "wrong", "V_j = V + half", "V_j = V + (half ^ 1)"),
    # fragments
    Bug("Q loaded as K is", "full", "wrong", "A + (16 * warp + lane % 16) * padded(D) + c + lane / 16 * 8",
        "A + (16 * warp + lane / 16 * 8 + lane % 8) * padded(D) + c + lane / 8 % 2 * 8"),
    Bug("K loaded as Q is", "full", "wrong", "B + (8 * j + lane / 16 * 8 + lane % 8) * padded(D) + c + lane / 8 % 2 * 8",
        "B + (8 * j + lane % 16) * padded(D) + c + lane / 16 * 8"),
    Bug("V not transposed", "full", "wrong", "load_transposed(b,", "load_matrices(b,"),
    Bug("two quarters of P exchanged", "full", "wrong", "pair_of(ELEMENT(), P[j][2], P[j][3]),\n",
        "pair_of(ELEMENT(), P[j + 1][2], P[j + 1][3]),\n"),
    Bug("one half of a fragment twice", "full", "wrong", "O[c + 1], weights, b[2], b[3]", "O[c + 1], weights, b[0], b[1]"),
    Bug("rows of shared memory not in steps of 16 bytes", "full", "fault", "return channels + CHUNK;", "return channels + 4;"),
    Bug("rows of shared memory begin in one bank", "full", "banks", "return channels + CHUNK;", "return channels;"),
    # tails and guards
    Bug("channels beyond the last are not 0", "full", "wrong", "&& c < width ? width - c : 0", "? CHUNK : 0"),
    Bug("keys beyond the last are read", "full", "address", "first + r < end && c < width", "c < width"),
    Bug("keys beyond the last are read one by one", "position", "address", "first + r < end && c < width", "c < width"),
    Bug("rows beyond the last are stored", "full", "address", "if (i >= p.n) continue;", ""),
    Bug("keys beyond the last take weight", "full", "wrong", "at < until[e / 2]", "at < until[e / 2] + B_C"),
    Bug("channels beyond the last are stored", "full", "wrong", "if (c < width) *(unsigned*)", "if (c <= width) *(unsigned*)"),
    # the walk over keys, and which of them are visible
    Bug("keys end where the first query's do", "position", "wrong", "row_of(p, item, last).high", "row_of(p, item, first).high"),
    Bug("keys begin where the last query's do", "position", "wrong", "row_of(p, item, first).low", "row_of(p, item, last).low"),
    Bug("the left side of a window ignored", "position", "wrong", "from[e / 2] <= at && ", "from[e / 2] <= at + B_C && "),
    Bug("a row has the interval of the other", "position", "wrong", "from[2] = {(int)rows[0].low, (int)rows[1].low}",
        "from[2] = {(int)rows[1].low, (int)rows[0].low}"),
    Bug("mask, bias and segments hide nothing", "pair", "wrong", "FORM != BY_PAIR || shown", "true || shown"),
    # softmax
    Bug("O is not rescaled", "full", "wrong", "O[j][e] *= shrink;", ";"),
    Bug("l is not rescaled", "full", "wrong", "l[r] *= shrink;", ";"),
    Bug("the maximum of half a row", "full", "wrong", "difference < 4;", "difference < 2;"),
    Bug("the sum of half a row", "full", "wrong", "l[r] += exchanged(l[r], 2);", ""),
    Bug("-inf minus -inf", "position", "wrong", "shift = top == hidden ? 0 : top;\n            const float shrink",
        "shift = top;\n            const float shrink"),
    Bug("hidden is a large negative number", "pair", "wrong", "hidden = minus_infinity<float>()", "hidden = -30000.0f"),
    Bug("the factor is missing", "dropout", "wrong", "shrink / total * (float)p.factor;", "shrink / total;"),
    Bug("l sums what is kept", "dropout", "wrong", "S[j][e] *= kept(p, rows[r], key + 8 * j + 2 * t + e % 2);",
        "{ const float P = S[j][e]; S[j][e] *= kept(p, rows[r], key + 8 * j + 2 * t + e % 2); l[r] += S[j][e] - P; }"),
    Bug("the sink takes no weight", "full", "wrong", "if (sink != hidden) total +=", "if (false) total +="),
    Bug("the sink is not the top", "loud sink", "wrong", "top = sink > m[r] ? sink : m[r]", "top = m[r]"),
    Bug("lse forgets the spread", "bfloat16", "wrong", " + (float)p.spread * LN_2", ""),
    Bug("lanes are at different collectives", "full", "fault", "other = exchanged(top, difference)",
        "other = g % 2 ? exchanged(top, difference) : top"),
    # dropout
    Bug("a round too few", "dropout", "wrong", "round < 10", "round < 9"),
    Bug("the key does not grow", "dropout", "wrong", "k1 += 0xBB67AE85u;", ""),
    Bug("the words of the head before", "dropout", "wrong", "(unsigned)(p.head_start + row.h)", "(unsigned)(p.head_start + row.h - 1)"),
    Bug("the lane of another key", "dropout", "wrong", "(int)(key % 4)", "(int)(key % 2)"),
    Bug("key_start in 32 bits", "dropout", "wrong", "const long long key = p.key_start + j;", "const int key = (int)p.key_start + j;"),
    Bug("what is kept is dropped", "dropout", "wrong", "word >= p.threshold", "word < p.threshold"),
    # heads and strides
    Bug("kv heads repeat instead of lasting", "full", "wrong", "row.h / (p.heads / p.kv_heads)", "row.h % p.kv_heads"),
    Bug("values walk with the stride of keys", "full", "wrong", "kv * p.values_h", "kv * p.keys_h"),
    Bug("offsets of 32 bits", "far", "wrong", "x + (first + r) * row_step", "x + (int)((first + r) * row_step)"),
    # hidden NaN
    Bug("hidden NaN reaches the product", "pair", "wrong", "clean<B_C, D_V>(p, V_j)", "false"),
    Bug("visible NaN is lost", "pair", "wrong", "if (FORM != FULL && any_broken)", "if (FORM != FULL && any_broken && p.m < 0)"),
    Bug("NaN to the wrong row", "pair", "wrong", "if (poisoned & 1) O[j][e]", "if (poisoned & 4) O[j][e]"),
    Bug("NaN to every row of a tile", "pair", "wrong", "poisoned |= sees;", "poisoned |= 5;"),
    Bug("NaN by what another lane sees", "pair", "wrong", "lane - lane % 4 + k % 8 / 2", "lane"),
)  # fmt: skip

HALF_READ = "dK += dS^T Q (MHA-GRAD-6)\n        __syncthreads();"
ARRIVED = "__syncthreads();    // the tiles of all threads have arrived\n\n"

BACKWARD_BUGS = (
    # barriers and copies
    Bug("no barrier after the copies of queries", "full", "wrong", BARRIER, "const bool any_broken = broken;"),
    Bug("no barrier after the copies of queries", "full", "thread", BARRIER, "const bool any_broken = broken;"),
    Bug("no barrier before a half of the queries is overwritten", "full", "wrong", HALF_READ, HALF_READ[:-16]),
    Bug("no barrier after the copies of keys", "full", "wrong", ARRIVED, ""),
    Bug("the next queries into the half in use", "full", "wrong", "fetch_queries(step + 1, half ^ 1)", "fetch_queries(step + 1, half)"),
    # the row, the pair
    Bug("D is missing", "full", "wrong", "= D - grad_lse_of(p, row);", "= 0 - grad_lse_of(p, row);"),
    Bug("D of half the channels", "full", "wrong", "difference < 32;", "difference < 8;"),
    Bug("what arrives at the lse is ignored", "full", "wrong", "= D - grad_lse_of(p, row);", "= D;"),
    Bug("the slope of the cap is missing in dK", "pair", "wrong", "dP[j][e] *= weigh(p, row, at,", "weigh(p, row, at,"),
    Bug("weights of another query", "full", "wrong", "(p, row, at, sees, one.lse,", "(p, row, at, sees, passing_by[0].lse,"),
    # the walk
    Bug("queries begin where the last key's do", "position", "wrong",
        "first_beyond(p, any, first, false)", "first_beyond(p, any, last, false)"),
    Bug("queries end where the first key's do", "position", "wrong",
        "first_beyond(p, any, last, true)", "first_beyond(p, any, last - B_R, true)"),
    Bug("the sum over the group is missing", "full", "wrong", "steps = group * tiles_of_queries", "steps = tiles_of_queries"),
    Bug("every head of the group has the mask of the first", "pair", "wrong",
        "row = {item, b, h, query", "row = {item, b, kv * group, query"),
    # dropout
    Bug("dP passes no dropout", "dropout", "wrong", "if (FORM == BY_PAIR) dP *= keep * (float)p.factor;", ""),
    Bug("dV passes no dropout", "dropout", "wrong", "S *= keep;", ""),
    Bug("dV lacks the factor", "dropout", "wrong", "D_VS, dV, r, (float)p.factor", "D_VS, dV, r, 1"),
    # units, slices, tails
    Bug("dS overflows", "large", "wrong", "top > 32768 * unit[r]", "top > 1e30f * unit[r]"),
    Bug("sums stay in the old unit", "large", "wrong", "sums[j][e] *= unit[r] / larger;", ";"),
    Bug("the unit is forgotten", "large", "wrong", "D_KS, dK, r, (float)p.scale * unit[r]", "D_KS, dK, r, (float)p.scale"),
    Bug("every slice has the channels of the first", "wide", "wrong", "Q_i + slice * D_KS", "Q_i"),
    Bug("keys beyond the last are stored", "full", "address", "if (j >= p.m) continue;", ""),
    # hidden NaN
    Bug("hidden NaN of dO reaches dV", "pair", "wrong", "clean<B_C, D_V>(p, dO_i)", "false"),
    Bug("hidden NaN of Q reaches dK", "pair", "wrong", "if (FORM != FULL) clean<B_C, D_K>(p, Q_i);", ""),
    Bug("hidden NaN of K reaches dQ", "pair", "wrong", "if (FORM != FULL) clean<B_C, D_K>(p, K_j);", ""),
    Bug("visible NaN of dO is lost", "pair", "wrong", "if (FORM != FULL && any_broken) {", "if (FORM != FULL && any_broken && p.m < 0) {"),
    # bias and sink
    Bug("a bias collects from one batch item", "bias", "wrong", "b < (p.dbias_b ? batch_item + 1 : p.batch)", "b < batch_item + 1"),
    Bug("queries beyond the last add to the bias", "bias", "wrong", "mine + 8 * (e / 2) < p.n && visible", "visible"),
    Bug("the sink of an empty row receives nothing", "position", "wrong", ": grad_lse_of(p, rows[r]);", ": 0;"),
)  # fmt: skip
