// Attention in one kernel, without the n x m matrix: FlashAttention (Dao et al., 2022, algorithm 1; Dao, 2023), forward.
//
//     S = scale . Q K^T, then the rule of MHA-ATTN-9          one tile of B_R queries and B_C keys at a time
//     m = max(m, max_j S_ij)                                  the running maximum of a row
//     P_ij = exp(S_ij - m),   l = e^(m_old - m) l + sum_j P_ij
//     O = e^(m_old - m) O + P V
//     output = O / l,   lse = m + log(l)                      after the last tile
//
// It stands behind call.cu, primitives.cu and tiles.cu, and is compiled for
//     ELEMENT      float16 or bfloat16
//     D_K, D_V     multiples of 16, at least the channels of a key and of a value; the channels in excess are 0
//     B_R, B_C     64, and 64 or 32: the more channels, the fewer keys do registers and shared memory hold
//     FORM         FULL: no option hides a key; BY_POSITION: band or lengths may; BY_PAIR: mask, bias or segments as well, or there is a cap or dropout
//
// One block computes B_R queries of one item (a head of a batch item), each of its warps 16 of them, and walks over
// the keys that any of them may see. Block x has the queries of tile x % tiles, counted from the end, of item x / tiles.
// While a tile of K and V is worked on, the next one is copied into the other half of shared memory.
//
// Hidden keys have no influence (MHA-MASK-18, MHA-MASK-19). S_ij depends on q_i and k_j alone, and is never read where j is
// hidden from i. The product P V mixes keys, and 0 . NaN is NaN: where an option may hide a key, NaN and infinities of V become
// 0 in shared memory, and O_ic is set to NaN where i sees one of channel c. No step depends on what a row does not see.

constexpr int K_TILE = B_C * K_ROW, V_TILE = B_C * V_ROW;

extern "C" __global__ void __launch_bounds__(THREADS, 1) fused_forward(Params p)
{
    ELEMENT* const Q = (ELEMENT*)shared_memory();    // (B_R, D_K), then two tiles (B_C, D_K) of K and two (B_C, D_V) of V
    ELEMENT* const K = Q + B_R * K_ROW;
    ELEMENT* const V = K + 2 * K_TILE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float hidden = minus_infinity<float>();    // no visible score is -infinity: `score` is bounded

    // the queries of this block, and the two rows of this lane; a row beyond the last query does as that one, and is not stored
    const long long tiles = (p.n + B_R - 1) / B_R, item = blockIdx.x / tiles;
    const long long first = (tiles - 1 - blockIdx.x % tiles) * B_R;
    const long long last = first + B_R < p.n ? first + B_R - 1 : p.n - 1;
    const long long mine = first + 16 * warp + g;
    const Row rows[2] = {row_of(p, item, mine < last ? mine : last), row_of(p, item, mine + 8 < last ? mine + 8 : last)};
    const int from[2] = {(int)rows[0].low, (int)rows[1].low}, until[2] = {(int)rows[0].high, (int)rows[1].high};

    // the keys that any of them may see: the intervals of later queries begin and end no earlier
    const int low = (int)row_of(p, item, first).low, high = (int)row_of(p, item, last).high;

    const long long b = rows[0].b, kv = kv_head(p, rows[0]);
    const char* const queries = p.queries + b * p.queries_b + rows[0].h * p.queries_h;
    const char* const keys = p.keys + b * p.keys_b + kv * p.keys_h;
    const char* const values = p.values + b * p.values_b + kv * p.values_h;

    float O[D_V / 8][4] = {}, m[2] = {hidden, hidden}, l[2] = {0, 0};

    const int begin = low / B_C * B_C;    // a tile begins at a multiple of B_C: the sums of a row have one order
    if (begin < high) {
        fetch<B_R, D_K>(Q, queries, p.queries_i, p.queries_c, p.whole_rows & 1, first, p.n, p.d_k);
        fetch<B_C, D_K>(K, keys, p.keys_j, p.keys_c, p.whole_rows & 2, begin, p.m, p.d_k);
        fetch<B_C, D_V>(V, values, p.values_j, p.values_c, p.whole_rows & 4, begin, p.m, p.d_v);
    }
    close_copies();

    int half = 0;
    for (int key = begin; key < high; key += B_C, half ^= 1) {
        ELEMENT* const K_j = K + half * K_TILE;
        ELEMENT* const V_j = V + half * V_TILE;
        if (key + B_C < high) {
            fetch<B_C, D_K>(K + (half ^ 1) * K_TILE, keys, p.keys_j, p.keys_c, p.whole_rows & 2, key + B_C, p.m, p.d_k);
            fetch<B_C, D_V>(V + (half ^ 1) * V_TILE, values, p.values_j, p.values_c, p.whole_rows & 4, key + B_C, p.m, p.d_v);
        }
        close_copies();
        await_copies<1>();    // this thread's share of the tile has arrived
        const bool broken = FORM != FULL && clean<B_C, D_V>(p, V_j);
        const bool any_broken = __syncthreads_or(broken);    // everybody's has

        float S[B_C / 8][4] = {};
        add_products_of_rows<D_K>(S, Q, K_j);    // S = Q K^T (MHA-ATTN-1)

        // the score of a visible pair (MHA-ATTN-9); hidden is selected, not added (MHA-MASK-3)
        unsigned seen = 0;
#pragma unroll
        for (int j = 0; j < B_C / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const Row& row = rows[e / 2];
                const int at = key + 8 * j + 2 * t + e % 2;
                const bool sees = from[e / 2] <= at && at < until[e / 2] && (FORM != BY_PAIR || shown<float>(p, row, at));
                if (FORM == BY_PAIR)
                    S[j][e] = sees ? score(p, row, at, S[j][e]) : hidden;
                else
                    S[j][e] = sees ? scaled(p, S[j][e]) : hidden;
                seen |= (unsigned)sees << (4 * j + e);
            }

        // m, P and l of each row. NaN is never the larger one; it comes back in P, l and O (MHA-MASK-20)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float top = m[r];
#pragma unroll
            for (int j = 0; j < B_C / 8; ++j)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; ++e) top = S[j][e] > top ? S[j][e] : top;
#pragma unroll
            for (int difference = 1; difference < 4; difference *= 2) {
                const float other = exchanged(top, difference);
                top = other > top ? other : top;
            }
            const float shift = top == hidden ? 0 : top;
            const float shrink = power_of_two((m[r] - shift) * LOG2_E);    // e^(m_old - m)
            m[r] = top;
            l[r] *= shrink;
#pragma unroll
            for (int j = 0; j < B_C / 8; ++j)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; ++e) {
                    S[j][e] = power_of_two((S[j][e] - shift) * LOG2_E - (float)p.spread);    // P_ij, times 2^-spread
                    l[r] += S[j][e];
                    if (FORM == BY_PAIR && S[j][e] != 0) S[j][e] *= kept(p, rows[r], key + 8 * j + 2 * t + e % 2);    // MHA-DROP-1
                }
#pragma unroll
            for (int j = 0; j < D_V / 8; ++j)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; ++e) O[j][e] *= shrink;
        }

        add_weighted_rows<V_ROW, D_V>(O, S, V_j);    // O += P V (MHA-ATTN-8)
        if (FORM != FULL && any_broken)
            spread_nan<D_V>(p, values + key * p.values_j, p.values_j, p.values_c, (int)p.d_v, seen, O);    // MHA-MASK-21
        __syncthreads();    // everybody has read this half: it may be overwritten
    }

    // output = O / l, where the sink is one more term of l, of value 0 (MHA-ATTN-5, MHA-ATTN-12)
    const float sink = sink_of<float>(p, rows[0]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        l[r] += exchanged(l[r], 1);
        l[r] += exchanged(l[r], 2);
        const bool empty = m[r] == hidden && l[r] == 0;    // MHA-MASK-15
        const float top = sink > m[r] ? sink : m[r], shift = top == hidden ? 0 : top;
        const float shrink = power_of_two((m[r] - shift) * LOG2_E);
        float total = l[r] * shrink;
        if (sink != hidden) total += power_of_two((sink - shift) * LOG2_E - (float)p.spread);

        const float share = empty ? 0 : shrink / total * (float)p.factor;

        const long long i = mine + 8 * r;
        if (i >= p.n) continue;
        const long long at = item * p.n + i;
        if (p.lse && t == 0)    // MHA-AUX-4, MHA-AUX-6; an empty row has the sink's logit or -infinity (MHA-MASK-15, MHA-MASK-17)
            ((float*)p.lse)[at] = empty ? sink : shift + (logf(total) + (float)p.spread * LN_2);
        store_row<D_V>((ELEMENT*)p.output, at, p.d_v, 0, O, r, share);
    }
}
