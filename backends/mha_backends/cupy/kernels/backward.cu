// The gradients of attention in three kernels, without the n x m matrix (Dao et al., 2022, algorithm 4; Dao, 2023, algorithm 2), and
// a fourth for the bias. No kernel adds to what another block writes: each sum has one order, the same in every run (MHA-EXEC-8).
//
//     D_i = sum_c dO_ic O_ic                                           backward_rows
//     P_ij = exp(S_ij - L_i)                                           each of the others, again
//     dP_ij = sum_c dO_ic v_jc,   dS_ij = P_ij (dP_ij - D_i + dL_i)    MHA-GRAD-5, MHA-GRAD-7
//     dV_j = sum_i P_ij dO_i,   dK_j = scale . sum_i dS_ij q_i         backward_keys: holds keys, and queries pass by
//     dQ_i = scale . sum_j dS_ij k_j                                   backward_queries: holds queries, and keys pass by
//     db = sum of dS over the axes along which b was broadcast         backward_bias: holds a tile of dS
//
// It stands behind call.cu, primitives.cu and tiles.cu, and before a file for each kernel. It is compiled for
//     ELEMENT, D_K, D_V, FORM    as fused.cu
//     B_R, B_C     rows that a block holds, and rows that pass by at a time
//     SLICES       of the channels of dK and dV: each is a block of its own where registers cannot hold all of them
//
// Hidden pairs have no influence (MHA-GRAD-14, MHA-GRAD-15). S_ij and dP_ij depend on rows i and j alone, and P_ij and dS_ij of a
// hidden pair are 0 by selection. The sums over pairs take factors whose NaN and infinities are 0 in shared memory. Nothing
// is lost by that: what is NaN in a row i that sees something, or in what it sees, is in L_i or in D_i - dL_i, and so in P_ij or dS_ij of
// every pair that i sees (MHA-GRAD-16). Only the channel of dO that had it is not told by them: it is given back to dV.

constexpr int K_TILE = B_C * K_ROW, V_TILE = B_C * V_ROW;
constexpr int D_KS = D_K / SLICES, D_VS = D_V / SLICES;    // channels of a slice


// ---- A row ----

__device__ float lse_of(const Params& p, const Row& row)
{
    return *(const float*)(p.lses + row.b * p.lses_b + row.h * p.lses_h + row.i * p.lses_i);
}

__device__ float grad_lse_of(const Params& p, const Row& row)
{
    if (!p.grad_lses) return 0;
    return *(const float*)(p.grad_lses + row.b * p.grad_lses_b + row.h * p.grad_lses_h + row.i * p.grad_lses_i);
}

__device__ float rest_of(const Params& p, const Row& row) { return ((const float*)p.rests)[row.item * p.n + row.i]; }


// ---- A pair ----

// S = q . k and dP = dO . v become P, after dropout, and dS; 0 where the pair is hidden. Gives the slope of the cap.
__device__ float weigh(const Params& p, const Row& row, long long j, bool sees, float lse, float rest, float& S, float& dP)
{
    if (!sees) {
        S = dP = 0;
        return 0;
    }
    float slope = 1;
    const float s = FORM == BY_PAIR ? score(p, row, j, S, slope) : scaled(p, S);
    S = power_of_two((s - lse) * LOG2_E);    // P_ij = exp(S_ij - L_i)
    const int keep = FORM == BY_PAIR ? kept(p, row, j) : 1;
    if (FORM == BY_PAIR) dP *= keep * (float)p.factor;    // MHA-GRAD-22
    dP = S * (dP - rest);                    // dS_ij = P_ij (dP_ij - D_i + dL_i)
    S *= keep;                               // what meets dO; its factor comes when the sum is whole
    return slope;
}

// float16 ends at 65504. A row of dS that would leave it is held in a larger unit, a power of two, and the sums that it goes to with it.
template <int D> __device__ void fit(float16, float (&dS)[B_C / 8][4], float (&unit)[2], float (&sums)[D / 8][4])
{
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float top = 0;
#pragma unroll
        for (int j = 0; j < B_C / 8; ++j)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; ++e) top = fabsf(dS[j][e]) > top ? fabsf(dS[j][e]) : top;
#pragma unroll
        for (int difference = 1; difference < 4; difference *= 2) {
            const float other = exchanged(top, difference);
            top = other > top ? other : top;
        }
        if (top > 32768 * unit[r]) {
            const float larger = __uint_as_float(__float_as_uint(top) & 0x7f800000u) / 16384;    // top is 2^14 to 2^15 of these
#pragma unroll
            for (int j = 0; j < D / 8; ++j)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; ++e) sums[j][e] *= unit[r] / larger;
            unit[r] = larger;
        }
#pragma unroll
        for (int j = 0; j < B_C / 8; ++j)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; ++e) dS[j][e] *= 1 / unit[r];
    }
}

template <int D> __device__ void fit(bfloat16, float (&)[B_C / 8][4], float (&)[2], float (&)[D / 8][4]) {}    // it ends where float does
