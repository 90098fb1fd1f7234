// Attention in three steps: the softmax between two matrix products, and what surrounds it.
//
//     product = q . k                        cuBLAS
//     S = the rule of MHA-ATTN-9             softmax_rows   scale, softcap, bias, select
//     P = exp(S - top) / l                   softmax_rows   over the visible keys and the sink
//     acc = P V                              cuBLAS         V with its NaN and infinities taken out: clean_values
//     output = acc                           finish_rows    empty rows, NaN of the values, one rounding
//
// It stands behind call.cu and dropout.cu. One block computes one row (batch item b, head h, query i). A chunk holds `rows` consecutive
// queries of every head of every batch item; block x computes query first + x % rows of item x / rows = b * heads + h.
// The grid has one axis, because the others end at 65535.
//
// Hidden keys have no influence (MHA-MASK-18, MHA-MASK-19). A score depends on its own query and key, so a NaN in a
// hidden key stays in a score that is never read. The product P V mixes keys, and 0 * NaN is NaN: it is given values whose
// NaN and infinities are 0, and finish_rows puts the NaN back into exactly those elements that see one.

const int MOST_THREADS = 256;
const int SEES_KEY = 1, SEES_NAN = 2, SEES_TAINT = 4;    // the bits of a note

__device__ Row this_row(const Params& p, long long index)
{
    return row_of(p, index / p.rows, p.first + index % p.rows);
}

// Where the keys of this row begin in p.tainted.
__device__ long long tainted_keys(const Params& p, const Row& row) { return (row.b * p.kv_heads + kv_head(p, row)) * p.m; }


// ---- Reductions: every thread of the block gives a value and gets the combination of all of them ----

template <typename value, typename Combine> __device__ value over_block(value mine, Combine combine)
{
    __shared__ value held[MOST_THREADS];
    __syncthreads();    // the previous use of `held` has been read
    held[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {    // the same tree in every run (MHA-EXEC-8)
        if (threadIdx.x < half) held[threadIdx.x] = combine(held[threadIdx.x], held[threadIdx.x + half]);
        __syncthreads();
    }
    return held[0];
}


// ---- The kernels ----

template <typename real> __device__ void softmax_row(const Params& p)
{
    const long long index = blockIdx.x;
    const Row row = this_row(p, index);
    const long long taints = tainted_keys(p, row);
    real* const s = (real*)p.scores + index * p.m;
    const real hidden = minus_infinity<real>();    // no visible score is -infinity: `score` is bounded

    // S_ij of the visible keys (MHA-ATTN-9), their maximum, and what the row sees
    real top = hidden;
    int note = 0;
    for (long long j = threadIdx.x; j < p.m; j += blockDim.x) {
        if (!visible<real>(p, row, j)) {
            s[j] = hidden;    // selected, not added (MHA-MASK-3)
            continue;
        }
        const real x = score(p, row, j, s[j]);
        s[j] = x;
        top = x > top ? x : top;
        note |= SEES_KEY;
        if (x != x) note |= SEES_NAN;
        if (p.tainted && p.tainted[taints + j]) note |= SEES_TAINT;
    }
    top = over_block(top, [](real a, real b) { return a > b ? a : b; });
    note = over_block(note, [](int a, int b) { return a | b; });
    const bool empty = !(note & SEES_KEY);    // MHA-MASK-15

    // the sink is one more score, of value 0 (MHA-ATTN-12)
    const real sink = sink_of<real>(p, row);
    top = sink > top ? sink : top;
    if (note & SEES_NAN || sink != sink) top = not_a_number<real>();    // MHA-MASK-20, MHA-MASK-22: the row is NaN

    // l = sum of exp(S_ij - top) over the visible keys and the sink; the shift by the maximum cancels (MHA-ATTN-13)
    real sum = 0;
    for (long long j = threadIdx.x; j < p.m; j += blockDim.x) {
        const real e = s[j] == hidden ? 0 : exp(s[j] - top);
        s[j] = e;
        sum += e;
    }
    sum = over_block(sum, [](real a, real b) { return a + b; });
    if (sink != hidden) sum += exp(sink - top);

    // A_ij = exp(S_ij - top) / l (MHA-ATTN-5). A hidden key has weight 0, in a NaN row too (MHA-AUX-2).
    // float16 has too few exponents for small weights: there the product takes exp(S_ij - top) and finish_rows divides.
    const long long at = (row.item * p.n + row.i) * p.m;
    for (long long j = threadIdx.x; j < p.m; j += blockDim.x) {
        const real e = s[j], weight = e == 0 ? 0 : e / sum;
        const int keep = e == 0 ? 0 : kept(p, row, j);    // MHA-DROP-1; finish_rows multiplies by the factor
        s[j] = weight * keep;
        if (p.shares) store<real>(p.shares, index * p.m + j, p.element, keep * (p.element == 1 ? e : weight));
        if (p.weights) store<real>(p.weights, at + j, p.element, weight);    // MHA-AUX-1
    }

    if (threadIdx.x) return;
    ((real*)p.divisors)[index] = empty ? 0 : p.element == 1 ? sum : 1;
    ((int*)p.notes)[index] = note;
    if (p.lse)    // MHA-AUX-4, MHA-AUX-6; an empty row has the sink's logit or -infinity (MHA-MASK-15, MHA-MASK-17)
        ((real*)p.lse)[row.item * p.n + row.i] = empty ? sink : top + log(sum);
}

// Does query i see a key whose value has NaN or an infinity in channel c? A weight that underflows is no excuse (MHA-MASK-21).
template <typename real> __device__ bool sees_taint(const Params& p, const Row& row, long long c)
{
    const long long kv = kv_head(p, row), taints = tainted_keys(p, row);
    for (long long j = 0; j < p.m; ++j) {
        if (!p.tainted[taints + j] || !visible<real>(p, row, j)) continue;
        const char* at = p.values + row.b * p.values_b + kv * p.values_h + j * p.values_j + c * p.values_c;
        if (!is_finite(p, load_bits(p, at))) return true;
    }
    return false;
}

// O_ic = acc_ic, divided where that is still to be done, rounded once (MHA-NUM-3); 0 in an empty row (MHA-MASK-15).
template <typename real> __device__ void finish_row(const Params& p)
{
    const long long index = blockIdx.x;
    const Row row = this_row(p, index);
    const real divisor = ((const real*)p.divisors)[index];
    const bool suspect = ((const int*)p.notes)[index] & SEES_TAINT;
    for (long long c = threadIdx.x; c < p.d_v; c += blockDim.x) {
        real o = 0;
        if (divisor != 0) o = (((const real*)p.acc)[index * p.d_v + c] + 0) / divisor * (real)p.factor;    // + 0: a sum of 0 * v has no sign
        if (suspect && sees_taint<real>(p, row, c)) o = not_a_number<real>();
        store<real>(p.output, (row.item * p.n + row.i) * p.d_v + c, p.element, o);
    }
}

extern "C" __global__ void softmax_rows_float(Params p) { softmax_row<float>(p); }
extern "C" __global__ void softmax_rows_double(Params p) { softmax_row<double>(p); }
extern "C" __global__ void finish_rows_float(Params p) { finish_row<float>(p); }
extern "C" __global__ void finish_rows_double(Params p) { finish_row<double>(p); }

// clean = value, or 0 where that is NaN or an infinity; one thread an element. Bits are copied, so that subnormals survive.
extern "C" __global__ void clean_values(Params p)
{
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= p.batch * p.kv_heads * p.m * p.d_v) return;
    const long long c = index % p.d_v, key = index / p.d_v, j = key % p.m, kv = key / p.m % p.kv_heads;
    const long long b = key / p.m / p.kv_heads;
    long long bits = load_bits(p, p.values + b * p.values_b + kv * p.values_h + j * p.values_j + c * p.values_c);
    if (!is_finite(p, bits)) {
        bits = 0;
        p.tainted[key] = 1;    // whichever thread of the key writes it, it is 1
    }
    if (p.element == 4) ((long long*)p.clean)[index] = bits;
    else if (p.element == 3) ((unsigned*)p.clean)[index] = (unsigned)bits;
    else ((unsigned short*)p.clean)[index] = (unsigned short)bits;
}

// The end of a linear layer, x W + b: acc + bias, rounded once; one thread an element (MHA-PROJ-1, MHA-NUM-3).
struct Linear {
    char* acc;       // (rows, columns) real
    char* bias;      // (columns,), or 0
    long long bias_j;
    char* output;    // (rows, columns)
    long long element, size, columns;
};

template <typename real> __device__ void finish_linear(const Linear& p)
{
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= p.size) return;
    real x = ((const real*)p.acc)[index];
    if (p.bias) x += load<real>(p.bias + index % p.columns * p.bias_j, p.element);
    store<real>(p.output, index, p.element, x);
}

extern "C" __global__ void finish_linear_float(Linear p) { finish_linear<float>(p); }
extern "C" __global__ void finish_linear_double(Linear p) { finish_linear<double>(p); }
