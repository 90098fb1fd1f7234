// The very source that the GPU compiles, and a launch by name with the very parameters that the host packs.
#include "cuda_on_cpu.h"
#include "softmax.cu"

static Params params;
static Linear linear;

#define KERNEL(kernel, given)                                                              \
    if (!std::strcmp(name, #kernel)) {                                                     \
        if (size != sizeof(given)) return 2;                                               \
        std::memcpy(&given, bytes, size);                                                  \
        return run_grid(blocks, threads, [] { kernel(given); });                           \
    }

extern "C" int launch(const char* name, unsigned blocks, unsigned threads, const void* bytes, size_t size)
{
    KERNEL(softmax_rows_float, params)
    KERNEL(softmax_rows_double, params)
    KERNEL(finish_rows_float, params)
    KERNEL(finish_rows_double, params)
    KERNEL(clean_values, params)
    KERNEL(finish_linear_float, linear)
    KERNEL(finish_linear_double, linear)
    return 3;
}
