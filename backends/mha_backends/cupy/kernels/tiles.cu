// Tiles of 16-bit elements in shared memory, and what one warp does with them; forward (fused.cu) and backward (backward.cu) alike.
//
// It stands behind call.cu and primitives.cu. A block holds B_R rows, 16 for each warp, while tiles of B_C rows pass by.
//
// Lane 4 g + t holds of every 16 x 8 tile of a product the rows g and g + 8, columns 2 t and 2 t + 1: numbers [2 r] and [2 r + 1]
// of each tile belong to row r of the lane's two. The four lanes of equal g hold a row together.

enum { FULL, BY_POSITION, BY_PAIR };

constexpr int WARPS = B_R / 16, THREADS = 32 * WARPS;
constexpr int CHUNK = 8;                                              // elements in 16 bytes
constexpr int padded(int channels) { return channels + CHUNK; }       // a row of shared memory: eight begin in eight different banks
constexpr int K_ROW = padded(D_K), V_ROW = padded(D_V);
constexpr int AT_ONCE = B_C == 64 ? 4 : 1;                            // how far a sum over channels is unrolled: wide tiles need the registers
constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;

struct alignas(16) Chunk { unsigned words[4]; };

__device__ bool is_broken(const Params& p, unsigned bits) { return (bits & p.exponent) == p.exponent; }

// ROWS rows of x from `first` on, 0 beyond its end and in the channels from `width` on.
template <int ROWS, int D>
__device__ void fetch(ELEMENT* tile, const char* x, long long row_step, long long channel_step, bool whole_rows,
                      long long first, long long end, int width)
{
#pragma unroll 1    // the addresses of several chunks at once would cost the registers that sums need
    for (int k = threadIdx.x; k < ROWS * D / CHUNK; k += THREADS) {
        const int r = k / (D / CHUNK), c = k % (D / CHUNK) * CHUNK;
        const int channels = first + r < end && c < width ? width - c : 0;
        ELEMENT* to = tile + r * padded(D) + c;
        const char* from = channels ? x + (first + r) * row_step + c * channel_step : x;
        if (whole_rows) {
            copy_16(to, from, channels < CHUNK ? channels * (int)sizeof(ELEMENT) : 16);
        } else {
#pragma unroll 2
            for (int e = 0; e < CHUNK; ++e)
                to[e].bits = e < channels ? ((const ELEMENT*)(from + e * channel_step))->bits : (unsigned short)0;
        }
    }
}

// NaN and infinities become 0; true if there were any. A thread looks at what it fetched itself, so no barrier stands between.
template <int ROWS, int D> __device__ bool clean(const Params& p, ELEMENT* tile)
{
    bool found = false;
#pragma unroll 1
    for (int k = threadIdx.x; k < ROWS * D / CHUNK; k += THREADS) {
        Chunk* const at = (Chunk*)(tile + k / (D / CHUNK) * padded(D) + k % (D / CHUNK) * CHUNK);
        Chunk chunk = *at;
        bool broken = false;
#pragma unroll
        for (int w = 0; w < 4; ++w)
#pragma unroll
            for (int shift = 0; shift < 32; shift += 16)
                if (is_broken(p, chunk.words[w] >> shift)) {
                    chunk.words[w] &= ~(0xffffu << shift);
                    broken = true;
                }
        if (broken) *at = chunk;
        found |= broken;
    }
    return found;
}

// O_ic = NaN where query i sees a key of this tile whose value has NaN or an infinity in channel c (MHA-MASK-21).

// S += A B^T: the warp's 16 rows of a tile A, and all rows of a tile B of B_C rows, 16 of their D channels at a time.
template <int D> __device__ void add_products_of_rows(float (&S)[B_C / 8][4], const ELEMENT* A, const ELEMENT* B)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll AT_ONCE
    for (int c = 0; c < D; c += 16) {
        unsigned a[4];
        load_matrices(a, A + (16 * warp + lane % 16) * padded(D) + c + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < B_C / 8; j += 2) {
            unsigned b[4];    // rows 8 j to 8 j + 15 of B: b[0], b[1] for the first eight of them
            load_matrices(b, B + (8 * j + lane / 16 * 8 + lane % 8) * padded(D) + c + lane / 8 % 2 * 8);
            multiply_add(ELEMENT(), S[j], a, b[0], b[1]);
            multiply_add(ELEMENT(), S[j + 1], a, b[2], b[3]);
        }
    }
}

// O += P B: P rounded to ELEMENT, and D channels of a tile B of B_C rows of ROW elements, 16 of its rows at a time.
template <int ROW, int D>
__device__ void add_weighted_rows(float (&O)[D / 8][4], const float (&P)[B_C / 8][4], const ELEMENT* B)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < B_C / 8; j += 2) {    // two neighbouring tiles of P are one factor
        const unsigned weights[4] = {
            pair_of(ELEMENT(), P[j][0], P[j][1]), pair_of(ELEMENT(), P[j][2], P[j][3]),
            pair_of(ELEMENT(), P[j + 1][0], P[j + 1][1]), pair_of(ELEMENT(), P[j + 1][2], P[j + 1][3]),
        };
#pragma unroll
        for (int c = 0; c < D / 8; c += 2) {
            unsigned b[4];    // channels 8 c to 8 c + 15: b[0], b[1] for the first eight of them
            load_transposed(b, B + (8 * j + lane % 16) * ROW + 8 * c + lane / 16 * 8);
            multiply_add(ELEMENT(), O[c], weights, b[0], b[1]);
            multiply_add(ELEMENT(), O[c + 1], weights, b[2], b[3]);
        }
    }
}

// Which of a lane's two rows take part with a row of a tile whose element in `column` is NaN or an infinity: bit 0 for the first, bit 2 for
// the second. A column that is not there is 0. Not inlined: the addresses of many columns at once would cost the registers that sums need.
__device__ __noinline__ unsigned poisoned_rows(const char* column, long long row_step, unsigned exponent, unsigned seen)
{
    const int lane = threadIdx.x % 32;
    unsigned poisoned = 0;
    for (int k = 0; k < B_C; ++k) {    // of the four lanes of these rows, one knows who takes part with row k
        const unsigned sees = from_lane(seen, lane - lane % 4 + k % 8 / 2) >> (4 * (k / 8) + k % 2) & 5;
        if (sees == 0 || !column) continue;
        const unsigned bits = ((const ELEMENT*)(column + k * row_step))->bits;
        if ((bits & exponent) == exponent) poisoned |= sees;
    }
    return poisoned;
}

// O_rc = NaN where row r takes part with a row of x that has NaN or an infinity in channel c: D channels, of which `width` are there.
// `seen` holds the pairs of this lane that take part: bit 4 j + e for number e of tile j of P.
template <int D>
__device__ void spread_nan(const Params& p, const char* x, long long row_step, long long channel_step, int width, unsigned seen,
                           float (&O)[D / 8][4])
{
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int c = 8 * j + 2 * (threadIdx.x % 4) + e;
            const unsigned poisoned = poisoned_rows(c < width ? x + c * channel_step : 0, row_step, (unsigned)p.exponent, seen);
            if (poisoned & 1) O[j][e] = not_a_number<float>();
            if (poisoned & 4) O[j][2 + e] = not_a_number<float>();
        }
}

// Row i of a result (·, width), the channels from `from` on: the numbers of row r of the lane's two, times `share`, rounded once to the
// type (MHA-NUM-3). + 0: else a sum that underflows would have the sign of what 0 was multiplied with.
template <int D>
__device__ void store_row(ELEMENT* result, long long i, long long width, int from, const float (&O)[D / 8][4], int r, float share)
{
    ELEMENT* const row = result + i * width;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
        const int c = from + 8 * j + 2 * (threadIdx.x % 4);
        const unsigned both = pair_of(ELEMENT(), O[j][2 * r] * share + 0, O[j][2 * r + 1] * share + 0);
        if (width % 2 == 0) {
            if (c < width) *(unsigned*)(row + c) = both;
        } else {
            if (c < width) row[c].bits = (unsigned short)both;
            if (c + 1 < width) row[c + 1].bits = (unsigned short)(both >> 16);
        }
    }
}
