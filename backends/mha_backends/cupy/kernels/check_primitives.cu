// Every function of primitives.cu once, by one warp: what the device makes of it is compared with what it should be, bit by bit.
// It stands behind primitives.cu. Lane l writes word w of what it got to out[32 w + l], in the order of mha_conformance.gpu.golden.

struct Checked {
    const unsigned* x;    // 128 words: four 8 x 8 matrices of float16, then 128 words: the same of bfloat16, then 64 floats
    unsigned* out;
};

__device__ void put(unsigned*& to, unsigned word) { *to = word, to += 32; }

// The four matrices are a 16 x 16 factor A, and two of them, transposed, a 16 x 8 factor B.
template <typename element> __device__ void check_product(unsigned*& to, const char* matrices)
{
    const int lane = threadIdx.x;
    unsigned a[4], b[4];
    load_matrices(a, matrices + 16 * lane);
    load_transposed(b, matrices + 16 * lane);
    float c[4] = {1, 2, 3, 4};
    multiply_add(element(), c, a, b[0], b[1]);
    for (int k = 0; k < 4; ++k) put(to, __float_as_uint(c[k]));
}

extern "C" __global__ void check_primitives(Checked p)
{
    const int lane = threadIdx.x;
    char* const held = shared_memory();
    unsigned* to = p.out + lane;

    // three groups of copies: two whole, and one of 0 to 16 bytes that is filled with 0
    copy_16(held + 16 * lane, p.x + 4 * lane, 16);
    close_copies();
    copy_16(held + 512 + 16 * lane, p.x + 128 + 4 * lane, 16);
    close_copies();
    copy_16(held + 1024 + 16 * lane, p.x + 4 * lane, lane % 9 * 2);
    close_copies();
    await_copies<1>();
    __syncthreads();
    for (int k = 0; k < 4; ++k) put(to, ((const unsigned*)held)[4 * (lane ^ 1) + k]);    // what the neighbour copied
    for (int k = 0; k < 4; ++k) put(to, ((const unsigned*)(held + 512))[4 * (lane ^ 1) + k]);
    await_copies<0>();
    __syncthreads();
    for (int k = 0; k < 4; ++k) put(to, ((const unsigned*)(held + 1024))[4 * (lane ^ 1) + k]);

    unsigned loaded[4];
    load_matrices(loaded, held + 16 * lane);
    for (int k = 0; k < 4; ++k) put(to, loaded[k]);
    load_transposed(loaded, held + 16 * lane);
    for (int k = 0; k < 4; ++k) put(to, loaded[k]);
    check_product<float16>(to, held);
    check_product<bfloat16>(to, held + 512);

    const float x = __uint_as_float(p.x[256 + lane]), y = __uint_as_float(p.x[288 + lane]);
    put(to, pair_of(float16(), x, y));
    put(to, pair_of(bfloat16(), x, y));
    put(to, __float_as_uint(power_of_two(x)));
    for (int difference = 1; difference < 32; difference *= 2) put(to, __float_as_uint(exchanged(x, difference)));
    put(to, from_lane(p.x[lane], 31 - lane));
}
