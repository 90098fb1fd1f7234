// dK and dV: keys are held, queries pass by. It stands behind backward.cu.

// What is to be known of a query that passes by.
struct Passing { long long segment; int low, high; float lse, rest; };

__device__ Passing passing(const Params& p, long long item, long long i)
{
    if (i >= p.n) return {0, 0, 0, 0, 0};    // it sees nothing
    const Row row = row_of(p, item, i);
    return {row.segment, (int)row.low, (int)row.high, lse_of(p, row), rest_of(p, row)};
}

// The first query whose interval of keys ends, or begins, beyond key j; p.n if there is none. The intervals of later queries end and
// begin no earlier.
__device__ int first_beyond(const Params& p, long long item, int j, bool begins)
{
    int low = 0, high = (int)p.n;
    while (low < high) {
        const int i = low + (high - low) / 2;
        const Row row = row_of(p, item, i);
        if ((begins ? row.low : row.high) > j) high = i;
        else low = i + 1;
    }
    return low;
}

// A block holds B_R keys of a kv head, each of its warps 16, and walks over the queries that may see any of them, of one head of the
// group after the other (MHA-GRAD-12). Rows of its products are keys, columns are queries. Block x has slice x % SLICES of tile
// x / SLICES % tiles of kv head x / SLICES / tiles.
extern "C" __global__ void __launch_bounds__(THREADS, 1) backward_keys(Params p)
{
    ELEMENT* const K = (ELEMENT*)shared_memory();    // (B_R, D_K), V (B_R, D_V), two tiles (B_C, D_K) of Q and two (B_C, D_V) of dO
    ELEMENT* const V = K + B_R * K_ROW;
    ELEMENT* const Q = V + B_R * V_ROW;
    ELEMENT* const dO = Q + 2 * K_TILE;
    Passing* const passing_by = (Passing*)(dO + 2 * V_TILE);    // (B_C,)
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    const long long tiles = (p.m + B_R - 1) / B_R, head = blockIdx.x / SLICES / tiles;
    const int slice = blockIdx.x % SLICES, first = (int)(blockIdx.x / SLICES % tiles) * B_R;
    const int mine = first + 16 * warp + g, last = first + B_R < p.m ? first + B_R - 1 : (int)p.m - 1;
    const long long b = head / p.kv_heads, kv = head % p.kv_heads, group = p.heads / p.kv_heads;
    const char* const keys = p.keys + b * p.keys_b + kv * p.keys_h;
    const char* const values = p.values + b * p.values_b + kv * p.values_h;

    // the queries that may see any of these keys, and one step for each of their tiles in each head of the group
    const long long any = b * p.heads + kv * group;
    const int begin = first_beyond(p, any, first, false) / B_C * B_C, end = first_beyond(p, any, last, true);
    const int tiles_of_queries = begin < end ? (end - begin + B_C - 1) / B_C : 0;
    const long long steps = group * tiles_of_queries;

    const auto fetch_queries = [&](long long step, int half) {
        const long long h = kv * group + step / tiles_of_queries;
        const int query = begin + (int)(step % tiles_of_queries) * B_C;
        fetch<B_C, D_K>(Q + half * K_TILE, p.queries + b * p.queries_b + h * p.queries_h, p.queries_i, p.queries_c,
                        p.whole_rows & 1, query, p.n, p.d_k);
        fetch<B_C, D_V>(dO + half * V_TILE, p.grads + b * p.grads_b + h * p.grads_h, p.grads_i, p.grads_c,
                        p.whole_rows & 8, query, p.n, p.d_v);
    };

    float dK[D_KS / 8][4] = {}, dV[D_VS / 8][4] = {}, unit[2] = {1, 1};
    if (steps > 0) {
        fetch<B_R, D_K>(K, keys, p.keys_j, p.keys_c, p.whole_rows & 2, first, p.m, p.d_k);
        fetch<B_R, D_V>(V, values, p.values_j, p.values_c, p.whole_rows & 4, first, p.m, p.d_v);
        fetch_queries(0, 0);
    }
    close_copies();

    int half = 0;
    for (long long step = 0; step < steps; ++step, half ^= 1) {
        const long long h = kv * group + step / tiles_of_queries, item = b * p.heads + h;
        const int query = begin + (int)(step % tiles_of_queries) * B_C;
        ELEMENT* const Q_i = Q + half * K_TILE;
        ELEMENT* const dO_i = dO + half * V_TILE;
        if (step + 1 < steps) fetch_queries(step + 1, half ^ 1);
        close_copies();
        if (threadIdx.x < B_C) passing_by[threadIdx.x] = passing(p, item, query + threadIdx.x);
        await_copies<1>();    // this thread's share of the tiles has arrived
        if (FORM != FULL) clean<B_C, D_K>(p, Q_i);
        const bool broken = FORM != FULL && clean<B_C, D_V>(p, dO_i);
        const bool any_broken = __syncthreads_or(broken);    // everybody's has

        float S[B_C / 8][4] = {}, dP[B_C / 8][4] = {};
        add_products_of_rows<D_K>(S, K, Q_i);      // S^T = K Q^T
        add_products_of_rows<D_V>(dP, V, dO_i);    // dP^T = V dO^T

        unsigned seen = 0;
#pragma unroll
        for (int j = 0; j < B_C / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int column = 8 * j + 2 * t + e % 2, at = mine + 8 * (e / 2);
                const Passing& one = passing_by[column];
                const Row row = {item, b, h, query + column, one.low, one.high, one.segment};
                const bool sees = one.low <= at && at < one.high && (FORM != BY_PAIR || shown<float>(p, row, at));
                dP[j][e] *= weigh(p, row, at, sees, one.lse, one.rest, S[j][e], dP[j][e]);    // P and dS
                seen |= (unsigned)sees << (4 * j + e);
            }

        add_weighted_rows<V_ROW, D_VS>(dV, S, dO_i + slice * D_VS);    // dV += P^T dO (MHA-GRAD-4)
        if (FORM != FULL && any_broken) {
            const char* const grads = p.grads + b * p.grads_b + h * p.grads_h + query * p.grads_i + slice * D_VS * p.grads_c;
            spread_nan<D_VS>(p, grads, p.grads_i, p.grads_c, (int)p.d_v - slice * D_VS, seen, dV);    // MHA-GRAD-16
        }
        fit<D_KS>(ELEMENT(), dP, unit, dK);
        add_weighted_rows<K_ROW, D_KS>(dK, dP, Q_i + slice * D_KS);    // dK += dS^T Q (MHA-GRAD-6)
        __syncthreads();    // everybody has read this half: it may be overwritten
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const long long j = mine + 8 * r;
        if (j >= p.m) continue;
        store_row<D_KS>((ELEMENT*)p.dkeys, head * p.m + j, p.d_k, slice * D_KS, dK, r, (float)p.scale * unit[r]);    // MHA-GRAD-18
        store_row<D_VS>((ELEMENT*)p.dvalues, head * p.m + j, p.d_v, slice * D_VS, dV, r, (float)p.factor);
    }
}
