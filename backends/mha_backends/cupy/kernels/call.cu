// What every kernel of attention knows: the parameters of a launch, the four element types, which keys a query sees, and the
// score of a pair. No header is included. `real` is float, and double for float64 arrays.

// One launch. The host packs the same fields in the same order, eight bytes each; a test compares the two lists.
// Each kernel reads the fields that it needs; the host leaves the others 0.
struct Params {
    // what is computed, contiguous; 0 where not wanted. `items` are batch times heads
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
    char* dscores;        // (items, rows, m) real: dO . v, then dS
    char* products;       // (items, rows, m) real: q . k, then dS times the slope of the cap; 0 where there is no cap
    char* rests;          // (items, n) real: D - dL of a row
    char* sink_terms;     // (items, n) real: what a row adds to the gradient of its sink
    char* dqueries;       // (batch, heads, n, d_k) the query's type
    char* dkeys;          // (batch, kv_heads, m, d_k) the query's type
    char* dvalues;        // (batch, kv_heads, m, d_v) the query's type
    // what is read, with strides in bytes, 0 on broadcast axes
    char* queries;        // (batch, heads, n, d_k)
    long long queries_b, queries_h, queries_i, queries_c;
    char* keys;           // (batch, kv_heads, m, d_k)
    long long keys_b, keys_h, keys_j, keys_c;
    char* values;         // (batch, kv_heads, m, d_v)
    long long values_b, values_h, values_j, values_c;
    char* mask;           // (batch, heads, n, m) bytes, or 0
    long long mask_b, mask_h, mask_i, mask_j;
    char* bias;           // (batch, heads, n, m), or 0
    long long bias_b, bias_h, bias_i, bias_j;
    char* outputs;        // (batch, heads, n, d_v), of the forward
    long long outputs_b, outputs_h, outputs_i, outputs_c;
    char* lses;           // (batch, heads, n) real, of the forward
    long long lses_b, lses_h, lses_i;
    char* grads;          // (batch, heads, n, d_v): dO
    long long grads_b, grads_h, grads_i, grads_c;
    char* grad_lses;      // (batch, heads, n) real: dL, or 0
    long long grad_lses_b, grad_lses_h, grad_lses_i;
    char* grad_weights;   // (batch, heads, n, m): dA, or 0
    long long grad_weights_b, grad_weights_h, grad_weights_i, grad_weights_j;
    char* dbias;          // (batch, heads, n, m) real, a sum that is added to; stride 0 where the bias was broadcast
    long long dbias_b, dbias_h, dbias_i, dbias_j;
    char* keep;           // (batch, heads, n, m) bytes, what dropout keeps, or 0: then by seed
    long long keep_b, keep_h, keep_i, keep_j;
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
    long long batch, heads, kv_heads, n, m, d_k, d_v, first, rows;
    long long whole_rows;      // 1 queries + 2 keys + 4 values + 8 grads: those whose rows can be copied 16 bytes at a time
    // dropout by seed: words below the threshold drop, 0 none and 2^32 all
    long long seed_low, seed_high, threshold, batch_start, head_start, query_start, key_start;
    // numbers
    long long left, right;     // the band; -1 is an open side
    long long offset, length;
    double scale, softcap;     // softcap 0 is none
    double factor;             // of what dropout keeps
    double spread;             // P is kept times 2^-spread, so that no sum of P V exceeds the largest value
};


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

// Not inlined, nor is load_integer: a kernel that asks for a number per pair would hold each of their branches many times over.
template <typename real> __device__ __noinline__ real load(const char* at, long long type)
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
    else if (type == 3) ((float*)base)[index] = (float)x;
    else ((double*)base)[index] = x;
}

__device__ __noinline__ long long load_integer(const char* at, long long type)
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

// Query i of head h of batch item b. What depends on positions alone is an interval: key j only if low <= j < high.
struct Row {
    long long item, b, h, i;
    long long low, high;
    long long segment;
};

__device__ Row row_of(const Params& p, long long item, long long i)
{
    Row row;
    row.item = item;
    row.b = item / p.heads;
    row.h = item % p.heads;
    row.i = i;

    long long offset = p.offset;
    if (p.offsets) {
        // any integer is legal (MHA-VAL-21): beyond these two nothing changes, and nothing overflows within them
        const long long low = -(p.n + (p.right > 0 ? p.right : 0)) - 1, high = p.m + (p.left > 0 ? p.left : 0) + 1;
        offset = load_integer(p.offsets + row.b * p.offsets_b, p.offsets_type);
        offset = offset < low ? low : offset > high ? high : offset;
    }
    const long long position = offset + i;                                                       // MHA-MASK-8
    const long long length = p.lengths ? load_integer(p.lengths + row.b * p.lengths_b, p.lengths_type) : p.length;

    row.low = 0;
    row.high = length < 0 ? 0 : length < p.m ? length : p.m;                                     // MHA-MASK-12
    if (p.left >= 0 && position > p.left) row.low = position - p.left;                           // MHA-MASK-10
    if (p.right >= 0 && p.right < row.high - position) row.high = position + p.right + 1;        // MHA-MASK-7: right = 0
    if (row.low > p.m) row.low = p.m;      // so that both fit an int where m does
    if (row.high < 0) row.high = 0;

    row.segment = 0;
    if (p.query_segments) {
        const char* at = p.query_segments + row.b * p.query_segments_b + i * p.query_segments_i;
        row.segment = load_integer(at, p.query_segments_type);
    }
    return row;
}

// The key and value head of a query head (MHA-HEAD-2).
__device__ long long kv_head(const Params& p, const Row& row) { return row.h / (p.heads / p.kv_heads); }

template <typename real> __device__ real bias_of(const Params& p, const Row& row, long long j)
{
    const char* at = p.bias + row.b * p.bias_b + row.h * p.bias_h + row.i * p.bias_i + j * p.bias_j;
    return load<real>(at, p.bias_type);
}

// Key j, which is within the row's interval: do segments, mask and bias show it as well?
template <typename real> __device__ bool shown(const Params& p, const Row& row, long long j)
{
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

template <typename real> __device__ bool visible(const Params& p, const Row& row, long long j)
{
    return row.low <= j && j < row.high && shown<real>(p, row, j);         // MHA-MASK-1, MHA-MASK-11: all of them
}


// ---- The score of a visible pair: MHA-ATTN-9 ----

// A score that overflows hides nothing (MHA-MASK-6): it becomes the largest number. NaN stays NaN.
template <typename real> __device__ real bounded(real x)
{
    const real most = largest(real());
    return x > most ? most : x < -most ? -most : x;
}

template <typename real> __device__ real scaled(const Params& p, real product)
{
    return bounded((real)p.scale * bounded(product));           // MHA-ATTN-1, MHA-ATTN-3
}

// The score, and by how much it grows with the scaled product: 1, or the slope of the cap (MHA-GRAD-9).
template <typename real> __device__ real score(const Params& p, const Row& row, long long j, real product, real& slope)
{
    real s = scaled(p, product);
    const real cap = (real)p.softcap;
    slope = 1;
    if (cap > 0) {
        const real t = tanh(s / cap);
        s = cap * t;                                            // MHA-ATTN-10
        slope = 1 - t * t;
    }
    if (p.bias) s += bias_of<real>(p, row, j);                  // MHA-ATTN-11
    return bounded(s);
}

template <typename real> __device__ real score(const Params& p, const Row& row, long long j, real product)
{
    real slope;
    return score(p, row, j, product, slope);
}

// The logit of a head's sink, finite or NaN; -infinity where there is none (MHA-ATTN-12).
template <typename real> __device__ real sink_of(const Params& p, const Row& row)
{
    const real none = minus_infinity<real>();
    if (!p.sinks) return none;
    const real x = load<real>(p.sinks + row.h * p.sinks_h, p.sinks_type);
    return x == none ? none : bounded(x);
}
