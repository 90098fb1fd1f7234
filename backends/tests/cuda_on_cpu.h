// CUDA C++ for a CPU, as far as kernels/softmax.cu uses it: a kernel launched on a grid of blocks of threads.
// Every thread of a block is a fiber and runs to its next __syncthreads; then the next thread runs. Blocks follow each
// other. It models values and barriers, not time: races between barriers, memory coalescing and speed are not seen.
#include <cmath>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __shared__ static

struct Index { unsigned x; };
static Index threadIdx, blockIdx, blockDim;

static unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
static float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }

static ucontext_t scheduler;
static std::vector<ucontext_t> fibers;
static unsigned running;

static void __syncthreads() { swapcontext(&fibers[running], &scheduler); }

static void (*body)();
static std::vector<char> done;
static void thread_of_block() { body(); done[running] = 1; }

// 0, or 1 where some threads of a block left while others waited at a barrier.
static int run_grid(unsigned blocks, unsigned threads, void (*kernel)())
{
    static std::vector<char> stacks;
    const size_t stack = 1 << 16;
    stacks.resize(stack * threads);
    fibers.resize(threads);
    body = kernel;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        done.assign(threads, 0);
        for (unsigned t = 0; t < threads; ++t) {
            getcontext(&fibers[t]);
            fibers[t].uc_stack.ss_sp = &stacks[stack * t];
            fibers[t].uc_stack.ss_size = stack;
            fibers[t].uc_link = &scheduler;
            makecontext(&fibers[t], thread_of_block, 0);
        }
        for (unsigned left = threads; left > 0;) {
            for (running = 0; running < threads; ++running) {
                threadIdx.x = running;
                swapcontext(&scheduler, &fibers[running]);
            }
            left = 0;
            for (char over : done) left += !over;
            if (left != 0 && left != threads) return 1;
        }
    }
    return 0;
}
