// What is computed once for each row; dQ, and what a row sends to its sink: queries are held, keys pass by. It stands behind backward.cu.

// rest_i = D_i - dL_i; each warp takes 16 rows, and the lanes of a warp share the channels of one.
extern "C" __global__ void backward_rows(Params p)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int r = 0; r < 16; ++r) {
        const long long index = (long long)blockIdx.x * B_R + 16 * warp + r;
        if (index >= p.batch * p.heads * p.n) return;
        const Row row = row_of(p, index / p.n, index % p.n);
        const char* const dO = p.grads + row.b * p.grads_b + row.h * p.grads_h + row.i * p.grads_i;
        const char* const O = p.outputs + row.b * p.outputs_b + row.h * p.outputs_h + row.i * p.outputs_i;
        float D = 0;
        for (long long c = lane; c < p.d_v; c += 32)
            D += load<float>(dO + c * p.grads_c, p.element) * load<float>(O + c * p.outputs_c, p.element);    // MHA-GRAD-5
        for (int difference = 1; difference < 32; difference *= 2) D += exchanged(D, difference);
        if (lane == 0) ((float*)p.rests)[index] = D - grad_lse_of(p, row);                                   // MHA-GRAD-7
    }
}

// As the forward: a block holds B_R queries of an item, and walks over the keys that any of them may see.
extern "C" __global__ void __launch_bounds__(THREADS, 1) backward_queries(Params p)
{
    ELEMENT* const Q = (ELEMENT*)shared_memory();    // (B_R, D_K), dO (B_R, D_V), two tiles (B_C, D_K) of K and two (B_C, D_V) of V
    ELEMENT* const dO = Q + B_R * K_ROW;
    ELEMENT* const K = dO + B_R * V_ROW;
    ELEMENT* const V = K + 2 * K_TILE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    const long long tiles = (p.n + B_R - 1) / B_R, item = blockIdx.x / tiles;
    const long long first = (tiles - 1 - blockIdx.x % tiles) * B_R;
    const long long last = first + B_R < p.n ? first + B_R - 1 : p.n - 1;
    const long long mine = first + 16 * warp + g;
    const Row rows[2] = {row_of(p, item, mine < last ? mine : last), row_of(p, item, mine + 8 < last ? mine + 8 : last)};
    const int from[2] = {(int)rows[0].low, (int)rows[1].low}, until[2] = {(int)rows[0].high, (int)rows[1].high};
    const float lse[2] = {lse_of(p, rows[0]), lse_of(p, rows[1])}, rest[2] = {rest_of(p, rows[0]), rest_of(p, rows[1])};
    const int low = (int)row_of(p, item, first).low, high = (int)row_of(p, item, last).high;

    const long long b = rows[0].b, h = rows[0].h, kv = kv_head(p, rows[0]);
    const char* const queries = p.queries + b * p.queries_b + h * p.queries_h;
    const char* const grads = p.grads + b * p.grads_b + h * p.grads_h;
    const char* const keys = p.keys + b * p.keys_b + kv * p.keys_h;
    const char* const values = p.values + b * p.values_b + kv * p.values_h;

    float dQ[D_K / 8][4] = {}, unit[2] = {1, 1}, sees_any[2] = {0, 0};

    const int begin = low / B_C * B_C;
    if (begin < high) {
        fetch<B_R, D_K>(Q, queries, p.queries_i, p.queries_c, p.whole_rows & 1, first, p.n, p.d_k);
        fetch<B_R, D_V>(dO, grads, p.grads_i, p.grads_c, p.whole_rows & 8, first, p.n, p.d_v);
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
        await_copies<1>();
        if (FORM != FULL) clean<B_C, D_K>(p, K_j);
        __syncthreads();    // the tiles of all threads have arrived

        float S[B_C / 8][4] = {}, dP[B_C / 8][4] = {};
        add_products_of_rows<D_K>(S, Q, K_j);      // S = Q K^T
        add_products_of_rows<D_V>(dP, dO, V_j);    // dP = dO V^T
#pragma unroll
        for (int j = 0; j < B_C / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int r = e / 2, at = key + 8 * j + 2 * t + e % 2;
                const bool sees = from[r] <= at && at < until[r] && (FORM != BY_PAIR || shown<float>(p, rows[r], at));
                dP[j][e] *= weigh(p, rows[r], at, sees, lse[r], rest[r], S[j][e], dP[j][e]);    // dS
                if (sees) sees_any[r] = 1;
            }
        fit<D_K>(ELEMENT(), dP, unit, dQ);
        add_weighted_rows<K_ROW, D_K>(dQ, dP, K_j);    // dQ += dS K (MHA-GRAD-5)
        __syncthreads();    // everybody has read this half: it may be overwritten
    }

    const float sink = sink_of<float>(p, rows[0]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        sees_any[r] += exchanged(sees_any[r], 1);
        sees_any[r] += exchanged(sees_any[r], 2);
        const long long i = mine + 8 * r;
        if (i >= p.n) continue;
        store_row<D_K>((ELEMENT*)p.dqueries, item * p.n + i, p.d_k, 0, dQ, r, (float)p.scale * unit[r]);    // MHA-GRAD-18
        if (!p.sink_terms || t != 0) continue;
        float term = 0;    // p_i (dL_i - D_i); all of the weight of an empty row is the sink's (MHA-GRAD-11, MHA-GRAD-13)
        if (sink != minus_infinity<float>())
            term = sees_any[r] > 0 ? power_of_two((sink - lse[r]) * LOG2_E) * -rest[r] : grad_lse_of(p, rows[r]);
        ((float*)p.sink_terms)[item * p.n + i] = term;
    }
}
