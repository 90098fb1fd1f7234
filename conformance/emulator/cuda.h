// What a .cu file finds in CUDA C++ without including anything: words, indices, barriers; and the bodies of kernels/primitives.cu.
#pragma once
#include <cmath>
#include "machine.h"

#define __global__
#define __device__
#define __noinline__ __attribute__((noinline))
#define __shared__ static
#define __launch_bounds__(...)
#define threadIdx emulator::thread_index
#define blockIdx emulator::block_index
#define blockDim emulator::block_size
#define gridDim emulator::grid_size

inline void __syncthreads() { emulator::come_to_barrier("__syncthreads", 0); }
inline int __syncthreads_or(int vote) { return emulator::come_to_barrier("__syncthreads_or", vote != 0); }

inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
