// The instructions of a warp that CUDA C++ has no words for, each as one function. They need sm_80 or newer.
//
// A compiler that is not CUDA's sees declarations only: whoever runs these kernels elsewhere brings the bodies.

struct float16 { unsigned short bits; };     // sign, 5 exponent bits, 10 digits
struct bfloat16 { unsigned short bits; };    // sign, 8 exponent bits, 7 digits

// The dynamic shared memory of the block.
__device__ char* shared_memory();

// 16 bytes from global to shared memory, in the background: `bytes` of them copied, the others 0. Both addresses are multiples of 16.
__device__ void copy_16(void* shared, const void* global, int bytes);
// The copies since the last call are one group.
__device__ void close_copies();
// Waits until of this thread's groups only the LATEST most recent ones may be under way.
template <int LATEST> __device__ void await_copies();

// Four 8 x 8 matrices of 16-bit elements, four times over: lane 8 k + r gives the address of row r of matrix k, and gets of each
// matrix the two neighbours at row lane / 4, columns 2 (lane % 4) and the next.
__device__ void load_matrices(unsigned (&to)[4], const void* row);
// The same of the transposed matrices.
__device__ void load_transposed(unsigned (&to)[4], const void* row);

// C += A B for A (16, 16), B (16, 8), C (16, 8), sums in float32. Lane 4 g + t holds
//     a[0..3]  A at rows g, g + 8, g, g + 8, columns 2 t and the next; those of a[2], a[3] are 8 further on
//     b[0..1]  B at column g, rows 2 t and the next; those of b[1] are 8 further on
//     c[0..3]  C at rows g, g, g + 8, g + 8, columns 2 t, 2 t + 1, 2 t, 2 t + 1
__device__ void multiply_add(float16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
__device__ void multiply_add(bfloat16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

// Two numbers rounded to the 16-bit type, the first in the low half.
__device__ unsigned pair_of(float16, float low, float high);
__device__ unsigned pair_of(bfloat16, float low, float high);

// 2^x, within 2 ulp; 0 for -infinity.
__device__ float power_of_two(float x);

// The value that the lane with the number (own number) ^ difference gave; that of lane `lane`. All 32 lanes take part.
__device__ float exchanged(float value, int difference);
__device__ unsigned from_lane(unsigned value, int lane);

#ifdef __CUDACC__

extern __shared__ __align__(128) char dynamic_shared_memory[];

__device__ char* shared_memory() { return dynamic_shared_memory; }

__device__ unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }

__device__ void copy_16(void* shared, const void* global, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}

__device__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LATEST> __device__ void await_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(LATEST) : "memory"); }

__device__ void load_matrices(unsigned (&to)[4], const void* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}

__device__ void load_transposed(unsigned (&to)[4], const void* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}

__device__ void multiply_add(float16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ void multiply_add(bfloat16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ unsigned pair_of(float16, float low, float high)
{
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ unsigned pair_of(bfloat16, float low, float high)
{
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ float power_of_two(float x)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

__device__ float exchanged(float value, int difference) { return __shfl_xor_sync(0xffffffffu, value, difference); }
__device__ unsigned from_lane(unsigned value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }

#endif
