// The gradients of attention in row chunks: our kernels between the matrix products of cuBLAS, and the sums that gradients end with.
//
//     A = the forward again                                  cuBLAS, softmax_rows
//     dP = dO V^T                                            cuBLAS
//     D_i = sum_j A_ij (dP_ij + dA_ij)                       gradient_rows
//     dS_ij = A_ij (dP_ij + dA_ij - D_i + dL_i)              gradient_rows    MHA-GRAD-5, MHA-GRAD-7, MHA-GRAD-8
//     dQ = scale . dS K, dK = scale . dS^T Q, dV = A^T dO    cuBLAS, finish_gradient, finish_values
//     db = sum of dS                                         add_to_bias
//
// It stands behind call.cu, dropout.cu and softmax.cu; chunks are as there. Hidden pairs have no influence (MHA-GRAD-14, MHA-GRAD-15): their A and
// dS are 0 by selection, and the last three products take factors without NaN and infinities (finite_part). A row that sees a NaN
// has it in A or dS of every pair that it sees; only the channel of a NaN in dO is given back to dV, by finish_values.

template <typename real> __device__ real from_row(const char* base, const Row& row, long long b, long long h, long long i)
{
    return *(const real*)(base + row.b * b + row.h * h + row.i * i);
}

// What arrives at weight (i, j): through the value, where it was kept (MHA-GRAD-22), and at the weight itself.
template <typename real> __device__ real arriving(const Params& p, const Row& row, long long j, real through_value)
{
    through_value *= kept(p, row, j) * (real)p.factor;
    if (!p.grad_weights) return through_value;
    const char* at = p.grad_weights + row.b * p.grad_weights_b + row.h * p.grad_weights_h + row.i * p.grad_weights_i;
    return through_value + load<real>(at + j * p.grad_weights_j, p.element);
}

template <typename real> __device__ void gradient_row(const Params& p)
{
    const long long index = blockIdx.x;
    const Row row = this_row(p, index);
    real* const A = (real*)p.scores + index * p.m;
    real* const dS = (real*)p.dscores + index * p.m;

    real D = 0;
    for (long long j = threadIdx.x; j < p.m; j += blockDim.x)
        if (visible<real>(p, row, j)) D += A[j] * arriving(p, row, j, dS[j]);
    D = over_block(D, [](real a, real b) { return a + b; });
    const real dL = p.grad_lses ? from_row<real>(p.grad_lses, row, p.grad_lses_b, p.grad_lses_h, p.grad_lses_i) : 0;
    const real rest = D - dL;

    for (long long j = threadIdx.x; j < p.m; j += blockDim.x) {
        const bool sees = visible<real>(p, row, j);
        dS[j] = sees ? A[j] * (arriving(p, row, j, dS[j]) - rest) : 0;
        if (p.products) {
            real* const product = (real*)p.products + index * p.m + j;
            real slope = 0;
            if (sees) score(p, row, j, *product, slope);    // MHA-GRAD-9
            *product = sees ? dS[j] * slope : 0;
        }
        if (sees) A[j] *= kept(p, row, j);    // what meets dO; finish_values multiplies by the factor
    }

    if (threadIdx.x || !p.sink_terms) return;
    const real sink = sink_of<real>(p, row);
    const bool empty = !(((const int*)p.notes)[index] & SEES_KEY);
    real term = 0;    // p_i (dL_i - D_i); all of the weight of an empty row is the sink's (MHA-GRAD-11, MHA-GRAD-13)
    if (sink != minus_infinity<real>())
        term = empty ? dL : exp(sink - ((const real*)p.lse)[row.item * p.n + row.i]) * -rest;
    ((real*)p.sink_terms)[row.item * p.n + row.i] = term;
}

extern "C" __global__ void gradient_rows_float(Params p) { gradient_row<float>(p); }
extern "C" __global__ void gradient_rows_double(Params p) { gradient_row<double>(p); }

// clean = `values` in real, 0 for NaN and infinities; a row that had one is marked. One thread an element.
template <typename real> __device__ void finite_part(const Params& p)
{
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= p.batch * p.kv_heads * p.m * p.d_v) return;
    const long long c = index % p.d_v, key = index / p.d_v, j = key % p.m, kv = key / p.m % p.kv_heads, b = key / p.m / p.kv_heads;
    const char* at = p.values + b * p.values_b + kv * p.values_h + j * p.values_j + c * p.values_c;
    const bool finite = is_finite(p, load_bits(p, at));
    ((real*)p.clean)[index] = finite ? load<real>(at, p.element) : 0;
    if (!finite && p.tainted) p.tainted[key] = 1;    // whichever thread of the row writes it, it is 1
}

extern "C" __global__ void finite_part_float(Params p) { finite_part<float>(p); }
extern "C" __global__ void finite_part_double(Params p) { finite_part<double>(p); }

// db += the dS of this chunk that belong to a number of the bias (MHA-GRAD-10); one thread a number.
template <typename real> __device__ void add_to_bias(const Params& p)
{
    const long long columns = p.dbias_j ? p.m : 1, rows = p.dbias_i ? p.rows : 1, heads = p.dbias_h ? p.heads : 1;
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= columns * rows * heads * (p.dbias_b ? p.batch : 1)) return;
    const long long j0 = index % columns, r0 = index / columns % rows, h0 = index / columns / rows % heads;
    const long long b0 = index / columns / rows / heads;
    real sum = 0;
    for (long long b = b0; b < (p.dbias_b ? b0 + 1 : p.batch); ++b)
        for (long long h = h0; h < (p.dbias_h ? h0 + 1 : p.heads); ++h)
            for (long long r = r0; r < (p.dbias_i ? r0 + 1 : p.rows); ++r)
                for (long long j = j0; j < (p.dbias_j ? j0 + 1 : p.m); ++j)
                    sum += ((const real*)p.dscores)[((b * p.heads + h) * p.rows + r) * p.m + j];
    *(real*)(p.dbias + b0 * p.dbias_b + h0 * p.dbias_h + (p.first + r0) * p.dbias_i + j0 * p.dbias_j) += sum;
}

extern "C" __global__ void add_to_bias_float(Params p) { add_to_bias<float>(p); }
extern "C" __global__ void add_to_bias_double(Params p) { add_to_bias<double>(p); }

// dV_jc = acc_jc, and NaN where a query that sees key j has NaN or an infinity in channel c of dO (MHA-GRAD-16); one block a key.
template <typename real> __device__ void finish_value(const Params& p)
{
    const long long key = blockIdx.x, j = key % p.m, kv = key / p.m % p.kv_heads, b = key / p.m / p.kv_heads;
    const long long group = p.heads / p.kv_heads, first = (b * p.heads + kv * group) * p.n;    // its queries lie side by side
    const auto tells = [&](long long k) { return p.tainted[first + k] && visible<real>(p, row_of(p, (first + k) / p.n, k % p.n), j); };

    int suspect = 0;
    for (long long k = threadIdx.x; p.tainted && k < group * p.n; k += blockDim.x) suspect |= tells(k);
    suspect = over_block(suspect, [](int a, int b) { return a | b; });

    for (long long c = threadIdx.x; c < p.d_v; c += blockDim.x) {
        real x = (((const real*)p.acc)[key * p.d_v + c] + 0) * (real)p.factor;    // + 0: a sum of 0 * dO has no sign
        for (long long k = 0; suspect && k < group * p.n; ++k) {
            const Row row = row_of(p, (first + k) / p.n, k % p.n);
            const char* at = p.grads + row.b * p.grads_b + row.h * p.grads_h + row.i * p.grads_i + c * p.grads_c;
            if (tells(k) && !is_finite(p, load_bits(p, at))) x = not_a_number<real>();
        }
        store<real>(p.dvalues, key * p.d_v + c, p.element, x);
    }
}

extern "C" __global__ void finish_values_float(Params p) { finish_value<float>(p); }
extern "C" __global__ void finish_values_double(Params p) { finish_value<double>(p); }

// output = scale . acc, rounded once: `rows` rows of d_v numbers of each of batch x heads items, to row `first` of n. One thread a number.
template <typename real> __device__ void finish_gradient(const Params& p)
{
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= p.batch * p.heads * p.rows * p.d_v) return;
    const long long c = index % p.d_v, r = index / p.d_v % p.rows, item = index / p.d_v / p.rows;
    const real x = (real)p.scale * ((const real*)p.acc)[index] + 0;
    store<real>(p.output, (item * p.n + p.first + r) * p.d_v + c, p.element, x);
}

extern "C" __global__ void finish_gradient_float(Params p) { finish_gradient<float>(p); }
extern "C" __global__ void finish_gradient_double(Params p) { finish_gradient<double>(p); }

// acc_h = the sum of what the rows of head h send to its sink (MHA-GRAD-11); one block a head.
template <typename real> __device__ void sum_sink_terms(const Params& p)
{
    const long long h = blockIdx.x, rows = p.batch * p.n;
    real sum = 0;
    for (long long k = threadIdx.x; k < rows; k += blockDim.x)
        sum += ((const real*)p.sink_terms)[(k / p.n * p.heads + h) * p.n + k % p.n];
    sum = over_block(sum, [](real a, real b) { return a + b; });
    if (threadIdx.x == 0) ((real*)p.acc)[h] = sum;
}

extern "C" __global__ void sum_sink_terms_float(Params p) { sum_sink_terms<float>(p); }
extern "C" __global__ void sum_sink_terms_double(Params p) { sum_sink_terms<double>(p); }
