// The softmax between the two matrix products of attention, and what surrounds it.
//
//     product = q . k                        cuBLAS
//     S = the rule of MHA-ATTN-9             softmax_rows   scale, softcap, bias, select
//     P = exp(S - top) / l                   softmax_rows   over the visible keys and the sink
//     acc = P V                              cuBLAS         V with its NaN and infinities taken out: clean_values
//     output = acc                           finish_rows    empty rows, NaN of the values, one rounding
//
// One block computes one row (batch item b, head h, query i). A chunk holds `rows` consecutive queries of every head of
// every batch item; block x computes query first + x % rows of item x / rows = b * heads + h. The grid has one axis,
// because the others end at 65535. `real` is float, and double for float64 arrays. No header is included.
//
// Hidden keys have no influence (MHA-MASK-18, MHA-MASK-19). A score depends on its own query and key, so a NaN in a
// hidden key stays in a score that is never read. The product P V mixes keys, and 0 * NaN is NaN: it is given values whose
// NaN and infinities are 0, and finish_rows puts the NaN back into exactly those elements that see one.

// One launch. The host packs the same fields in the same order, eight bytes each; a test compares the two lists.
struct Params {
    // what is computed, contiguous; 0 where not wanted
    char* scores;         // (items, rows, m) real: q . k, then P
    char* shares;         // (items, rows, m) P in the query's type, where that is not real
    char* divisors;       // (items, rows) real: acc / divisor is the output; 0 marks an empty row
    char* notes;          // (items, rows) int: what the row has seen
    char* weights;        // (batch, heads, n, m) the query's type
    char* lse;            // (batch, heads, n) real
    char* acc;            // (items, rows, d_v) real
    char* output;         // (batch, heads, n, d_v) the query's type
    char* clean;          // (batch, kv_heads, m, d_v) the values with 0 for NaN and infinities
    char* tainted;        // (batch, kv_heads, m) bytes: 1 where a value of this key was taken out
    // what is read, with strides in bytes, 0 on broadcast axes
    char* values;         // (batch, kv_heads, m, d_v)
    long long values_b, values_h, values_j, values_c;
    char* mask;           // (batch, heads, n, m) bytes, or 0
    long long mask_b, mask_h, mask_i, mask_j;
    char* bias;           // (batch, heads, n, m), or 0
    long long bias_b, bias_h, bias_i, bias_j;
    char* sinks;          // (heads,), or 0
    long long sinks_h;
    char* offsets;        // (batch,), or 0: then `offset` for all
    long long offsets_b;
    char* lengths;        // (batch,), or 0: then `length` for all
    long long lengths_b;
    char* query_segments; // (batch, n), or 0
    long long query_segments_b, query_segments_i;
    char* key_segments;   // (batch, m), or 0
    long long key_segments_b, key_segments_j;
    // types: a float is 1 float16, 2 bfloat16, 3 float32, 4 float64; an integer is its size in bytes, negative if unsigned
    long long element, bias_type, sinks_type, offsets_type, lengths_type, query_segments_type, key_segments_type;
    long long exponent;   // the exponent bits of `element`: all of them set is NaN or an infinity
    // sizes
    long long batch, heads, kv_heads, n, m, d_v, first, rows;
    // numbers
    long long left, right;     // the band; -1 is an open side
    long long offset, length;
    double scale, softcap;     // softcap 0 is none
};

const int MOST_THREADS = 256;
const int SEES_KEY = 1, SEES_NAN = 2, SEES_TAINT = 4;    // the bits of a note


// ---- Numbers: the four element types, in plain integer arithmetic, so that no header of half types is needed ----

__device__ float largest(float) { return 3.402823466e+38f; }
__device__ double largest(double) { return 1.7976931348623157e+308; }

template <typename real> __device__ real minus_infinity() { return (real)__uint_as_float(0xff800000u); }
template <typename real> __device__ real not_a_number() { return (real)__uint_as_float(0x7fc00000u); }

// A finite number beyond the largest `real` becomes the largest; infinities and NaN stay.
template <typename real> __device__ real narrow(double x)
{
    if (x - x != 0) return (real)x;
    const double most = largest(real());
    return (real)(x > most ? most : x < -most ? -most : x);
}

__device__ float from_half(unsigned short bits)
{
    const unsigned sign = (unsigned)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00) return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
    const unsigned exponent = magnitude >> 10;
    const unsigned digits = exponent ? (magnitude & 0x3ff) | 0x400 : magnitude;
    const float unit = __uint_as_float(((exponent ? exponent : 1) + 102) << 23);    // 2^(exponent - 25)
    return (sign ? -(float)digits : (float)digits) * unit;
}

__device__ unsigned short to_half(float x)    // to nearest, ties to even
{
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000u) return 0x7e00;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00;    // 65520 and above
    if (magnitude < 0x38800000u)                           // below 2^-14: a multiple of 2^-24
        return sign | (unsigned)rintf(__uint_as_float(magnitude) * 16777216.0f);
    return sign | (((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112 << 10));
}

__device__ unsigned short to_bfloat(float x)    // to nearest, ties to even
{
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000u) return 0x7fc0;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

template <typename real> __device__ real load(const char* at, long long type)
{
    if (type == 1) return from_half(*(const unsigned short*)at);
    if (type == 2) return __uint_as_float((unsigned)*(const unsigned short*)at << 16);
    if (type == 3) return *(const float*)at;
    return narrow<real>(*(const double*)at);
}

template <typename real> __device__ void store(char* base, long long index, long long type, real x)
{
    if (type == 1) ((unsigned short*)base)[index] = to_half((float)x);
    else if (type == 2) ((unsigned short*)base)[index] = to_bfloat((float)x);
    else ((real*)base)[index] = x;
}

__device__ long long load_integer(const char* at, long long type)
{
    switch (type) {
    case 1: return *(const signed char*)at;
    case -1: return *(const unsigned char*)at;
    case 2: return *(const short*)at;
    case -2: return *(const unsigned short*)at;
    case 4: return *(const int*)at;
    case -4: return *(const unsigned*)at;
    default: return *(const long long*)at;
    }
}

// The bits of an element of the query's type.
__device__ long long load_bits(const Params& p, const char* at)
{
    return load_integer(at, p.element == 3 ? -4 : p.element == 4 ? 8 : -2);
}

__device__ bool is_finite(const Params& p, long long bits) { return (bits & p.exponent) != p.exponent; }


// ---- The visible set: MHA-MASK-1, from the inputs alone ----

struct Row {
    long long item, b, h, i;
    long long position;    // of query i (MHA-MASK-8)
    long long length;      // keys from here on are padding
    long long segment;
    long long tainted;     // where the keys of this row begin in p.tainted
};

__device__ Row this_row(const Params& p, long long index)
{
    Row row;
    row.item = index / p.rows;
    row.b = row.item / p.heads;
    row.h = row.item % p.heads;
    row.i = p.first + index % p.rows;

    long long offset = p.offset;
    if (p.offsets) {
        // any integer is legal (MHA-VAL-21): beyond these two nothing changes, and nothing overflows within them
        const long long low = -(p.n + (p.right > 0 ? p.right : 0)) - 1, high = p.m + (p.left > 0 ? p.left : 0) + 1;
        offset = load_integer(p.offsets + row.b * p.offsets_b, p.offsets_type);
        offset = offset < low ? low : offset > high ? high : offset;
    }
    row.position = offset + row.i;
    row.length = p.lengths ? load_integer(p.lengths + row.b * p.lengths_b, p.lengths_type) : p.length;
    row.segment = 0;
    if (p.query_segments) {
        const char* at = p.query_segments + row.b * p.query_segments_b + row.i * p.query_segments_i;
        row.segment = load_integer(at, p.query_segments_type);
    }
    row.tainted = (row.b * p.kv_heads + row.h / (p.heads / p.kv_heads)) * p.m;    // MHA-HEAD-2
    return row;
}

template <typename real> __device__ real bias_of(const Params& p, const Row& row, long long j)
{
    const char* at = p.bias + row.b * p.bias_b + row.h * p.bias_h + row.i * p.bias_i + j * p.bias_j;
    return load<real>(at, p.bias_type);
}

template <typename real> __device__ bool visible(const Params& p, const Row& row, long long j)
{
    if (j >= row.length) return false;                                     // MHA-MASK-12
    const long long distance = j - row.position;
    if (p.left >= 0 && distance < -p.left) return false;                   // MHA-MASK-10
    if (p.right >= 0 && distance > p.right) return false;                  // MHA-MASK-7 is right = 0; MHA-MASK-11
    if (p.query_segments) {                                                // MHA-MASK-13
        const char* at = p.key_segments + row.b * p.key_segments_b + j * p.key_segments_j;
        if (load_integer(at, p.key_segments_type) != row.segment) return false;
    }
    if (p.mask && !p.mask[row.b * p.mask_b + row.h * p.mask_h + row.i * p.mask_i + j * p.mask_j])
        return false;                                                      // MHA-MASK-2, MHA-MASK-4
    if (p.bias && bias_of<real>(p, row, j) == minus_infinity<real>())      // MHA-MASK-5; `narrow` keeps a finite bias finite
        return false;
    return true;
}


// ---- The score of a visible pair: MHA-ATTN-9 ----

// A score that overflows hides nothing (MHA-MASK-6): it becomes the largest number. NaN stays NaN.
template <typename real> __device__ real bounded(real x)
{
    const real most = largest(real());
    return x > most ? most : x < -most ? -most : x;
}

template <typename real> __device__ real score(const Params& p, const Row& row, long long j, real product)
{
    real s = (real)p.scale * bounded(product);                  // MHA-ATTN-1, MHA-ATTN-3
    const real cap = (real)p.softcap;
    if (cap > 0) s = cap * tanh(s / cap);                       // MHA-ATTN-10
    if (p.bias) s += bias_of<real>(p, row, j);                  // MHA-ATTN-11
    return bounded(s);
}


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
        if (p.tainted && p.tainted[row.tainted + j]) note |= SEES_TAINT;
    }
    top = over_block(top, [](real a, real b) { return a > b ? a : b; });
    note = over_block(note, [](int a, int b) { return a | b; });
    const bool empty = !(note & SEES_KEY);    // MHA-MASK-15

    // the sink is one more score, of value 0 (MHA-ATTN-12)
    real sink = hidden;
    if (p.sinks) {
        const real x = load<real>(p.sinks + row.h * p.sinks_h, p.sinks_type);
        sink = x == hidden ? hidden : bounded(x);
    }
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
        s[j] = weight;
        if (p.shares) store<real>(p.shares, index * p.m + j, p.element, p.element == 1 ? e : weight);
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
    const long long kv = row.h / (p.heads / p.kv_heads);
    for (long long j = 0; j < p.m; ++j) {
        if (!p.tainted[row.tainted + j] || !visible<real>(p, row, j)) continue;
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
        if (divisor != 0) o = (((const real*)p.acc)[index * p.d_v + c] + 0) / divisor;    // + 0: a sum of 0 * v has no sign
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
