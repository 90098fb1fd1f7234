// Which weights are kept: the caller's mask, or Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011). It stands behind call.cu.
//
// The word of a pair depends on its seed and its four indices alone (MHA-DROP-3), so forward and backward find the same one, in whatever
// order and tile they come to the pair. What is kept is multiplied by 1 / (1 - rate) once a sum is whole (MHA-DROP-1).

// The word of lane `lane` for a counter and a key. Not inlined, as `load` is not.
__device__ __noinline__ unsigned philox(unsigned c0, unsigned c1, unsigned c2, unsigned c3, unsigned k0, unsigned k1, int lane)
{
    for (int round = 0; round < 10; ++round) {
        const unsigned long long p0 = 0xD2511F53ull * c0, p2 = 0xCD9E8D57ull * c2;
        c0 = (unsigned)(p2 >> 32) ^ c1 ^ k0;
        c1 = (unsigned)p2;
        c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;
        c3 = (unsigned)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return lane == 0 ? c0 : lane == 1 ? c1 : lane == 2 ? c2 : c3;
}

// 1 where the weight of query and key j is kept, 0 where it is dropped. A product with it leaves NaN (MHA-DROP-8).
__device__ int kept(const Params& p, const Row& row, long long j)
{
    if (p.keep) return p.keep[row.b * p.keep_b + row.h * p.keep_h + row.i * p.keep_i + j * p.keep_j] != 0;    // MHA-DROP-2
    if (p.threshold == 0) return 1;
    const long long key = p.key_start + j;    // MHA-DROP-4, MHA-DROP-5
    const unsigned word = philox((unsigned)(key / 4), (unsigned)(p.query_start + row.i), (unsigned)(p.head_start + row.h),
                                 (unsigned)(p.batch_start + row.b), (unsigned)p.seed_low, (unsigned)p.seed_high, (int)(key % 4));
    return word >= p.threshold;
}
