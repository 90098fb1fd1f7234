// db: a tile of dS is held, and all that its numbers of the bias were used for passes by. It stands behind backward.cu.

// A block holds B_R x B_C numbers of dS that belong to as many numbers of the bias, or to fewer where an axis was broadcast, and adds
// to them whatever else they were used for: other batch items, other heads, other tiles (MHA-GRAD-10). Block x counts key tiles
// fastest, then query tiles, heads and batch items, each only where the bias has that axis.
extern "C" __global__ void __launch_bounds__(THREADS, 1) backward_bias(Params p)
{
    ELEMENT* const Q = (ELEMENT*)shared_memory();    // (B_R, D_K), dO (B_R, D_V), K (B_C, D_K), V (B_C, D_V); at the end the sums
    ELEMENT* const dO = Q + B_R * K_ROW;
    ELEMENT* const K = dO + B_R * V_ROW;
    ELEMENT* const V = K + K_TILE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    const long long key_tiles = (p.m + B_C - 1) / B_C, query_tiles = (p.n + B_R - 1) / B_R;
    const long long own_keys = p.dbias_j ? key_tiles : 1, own_queries = p.dbias_i ? query_tiles : 1, own_heads = p.dbias_h ? p.heads : 1;
    const long long x = p.first + blockIdx.x, key_tile = x % own_keys, query_tile = x / own_keys % own_queries;
    const long long head = x / own_keys / own_queries % own_heads, batch_item = x / own_keys / own_queries / own_heads;

    float sums[B_C / 8][4] = {};
    for (long long b = batch_item; b < (p.dbias_b ? batch_item + 1 : p.batch); ++b)
    for (long long h = head; h < (p.dbias_h ? head + 1 : p.heads); ++h)
    for (long long first = query_tile * B_R; first < (p.dbias_i ? (query_tile + 1) * B_R : p.n); first += B_R) {
        const long long item = b * p.heads + h, last = first + B_R < p.n ? first + B_R - 1 : p.n - 1;
        const long long mine = first + 16 * warp + g;
        const Row rows[2] = {row_of(p, item, mine < last ? mine : last), row_of(p, item, mine + 8 < last ? mine + 8 : last)};
        const float lse[2] = {lse_of(p, rows[0]), lse_of(p, rows[1])}, rest[2] = {rest_of(p, rows[0]), rest_of(p, rows[1])};
        const long long low = row_of(p, item, first).low, high = row_of(p, item, last).high, kv = kv_head(p, rows[0]);
        for (long long key = key_tile * B_C; key < (p.dbias_j ? (key_tile + 1) * B_C : p.m); key += B_C) {
            if (key >= high || key + B_C <= low) continue;    // none of these queries sees any of these keys
            fetch<B_R, D_K>(Q, p.queries + b * p.queries_b + h * p.queries_h, p.queries_i, p.queries_c, p.whole_rows & 1, first, p.n, p.d_k);
            fetch<B_R, D_V>(dO, p.grads + b * p.grads_b + h * p.grads_h, p.grads_i, p.grads_c, p.whole_rows & 8, first, p.n, p.d_v);
            fetch<B_C, D_K>(K, p.keys + b * p.keys_b + kv * p.keys_h, p.keys_j, p.keys_c, p.whole_rows & 2, key, p.m, p.d_k);
            fetch<B_C, D_V>(V, p.values + b * p.values_b + kv * p.values_h, p.values_j, p.values_c, p.whole_rows & 4, key, p.m, p.d_v);
            close_copies();
            await_copies<0>();
            __syncthreads();    // the tiles of all threads have arrived
            float S[B_C / 8][4] = {}, dP[B_C / 8][4] = {};
            add_products_of_rows<D_K>(S, Q, K);
            add_products_of_rows<D_V>(dP, dO, V);
#pragma unroll
            for (int j = 0; j < B_C / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const Row& row = rows[e / 2];
                    const long long at = key + 8 * j + 2 * t + e % 2;
                    const bool sees = mine + 8 * (e / 2) < p.n && visible<float>(p, row, at);
                    weigh(p, row, at, sees, lse[e / 2], rest[e / 2], S[j][e], dP[j][e]);
                    sums[j][e] += dP[j][e];
                }
            __syncthreads();    // everybody has read the tiles
        }
    }

    // the numbers of this block side by side, then one thread for each number of the bias
    float* const dS = (float*)shared_memory();    // (B_R, B_C)
#pragma unroll
    for (int j = 0; j < B_C / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) dS[(16 * warp + g + 8 * (e / 2)) * B_C + 8 * j + 2 * t + e % 2] = sums[j][e];
    __syncthreads();
    const int rows = p.dbias_i ? B_R : 1, columns = p.dbias_j ? B_C : 1;
    for (int k = threadIdx.x; k < rows * columns; k += THREADS) {
        const int r = k / columns, c = k % columns;
        const long long i = query_tile * B_R + r, j = key_tile * B_C + c;
        if ((p.dbias_i && i >= p.n) || (p.dbias_j && j >= p.m)) continue;
        float sum = 0;
        for (int row = r; row < (p.dbias_i ? r + 1 : B_R); ++row)
            for (int column = c; column < (p.dbias_j ? c + 1 : B_C); ++column) sum += dS[row * B_C + column];
        *(float*)(p.dbias + batch_item * p.dbias_b + head * p.dbias_h + i * p.dbias_i + j * p.dbias_j) += sum;
    }
}
