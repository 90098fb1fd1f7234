// How a launch reaches the kernels behind this file: from Python through `emulate`, or from a record through `main`.
#pragma once
#include <cstdio>

namespace emulator {

struct Launch {
    char kernel[64];
    uint64_t blocks, threads, shared, order, copies, seed, params_size;
};

template <typename Given> inline const char* run(void (*entry)(Given), const Launch& launched, const void* params)
{
    if (launched.params_size != sizeof(Given)) return "host and kernel have structures of different size";
    Given given;
    memcpy(&given, params, sizeof given);
    launch(launched.blocks, launched.threads, launched.shared, (Order)launched.order, (Copies)launched.copies, launched.seed,
           [&] { entry(given); });
    return failure;
}

}  // namespace emulator

#define KERNEL(name) \
    if (!strcmp(launched->kernel, #name)) return emulator::run(name, *launched, params);

static const char* dispatch(const emulator::Launch* launched, const void* params);    // the names: written by compiler.py

// "" or why the launch was given up.
extern "C" const char* emulate(const emulator::Launch* launched, const void* params) { return dispatch(launched, params); }

extern "C" void bank_conflicts(unsigned long* found)
{
    found[0] = emulator::phases, found[1] = emulator::bank_cycles;
    emulator::phases = emulator::bank_cycles = 0;
}

#ifdef REPLAY
// A record: the launch, its parameters, where in them pointers stand, and the memory they point to. Each piece gets a heap block
// of exactly its size, so that AddressSanitizer sees a step beyond it.
template <typename T> static T get(FILE* file)
{
    T x;
    if (fread(&x, sizeof x, 1, file) != 1) exit(71);
    return x;
}

int main(int, char** arguments)
{
    FILE* file = fopen(arguments[1], "rb");
    auto launched = get<emulator::Launch>(file);
    std::vector<char> params(launched.params_size);
    if (fread(params.data(), 1, params.size(), file) != params.size()) return 71;
    std::vector<uint64_t> pointers(get<uint64_t>(file));
    for (uint64_t& offset : pointers) offset = get<uint64_t>(file);
    std::vector<char> moved(params);
    std::vector<void*> heap;
    for (uint64_t pieces = get<uint64_t>(file); pieces > 0; --pieces) {
        const auto begin = get<uint64_t>(file), size = get<uint64_t>(file), before = begin % 16;
        char* memory = (char*)malloc(before + size);    // a multiple of 16, so the piece keeps its alignment
        if (fread(memory + before, 1, size, file) != size) return 71;
        heap.push_back(memory);
        for (uint64_t offset : pointers) {
            uint64_t pointer;
            memcpy(&pointer, &params[offset], 8);
            if (pointer < begin || pointer >= begin + size) continue;
            pointer = (uint64_t)(memory + before) + (pointer - begin);
            memcpy(&moved[offset], &pointer, 8);
        }
    }
    fclose(file);
    const char* why = emulate(&launched, moved.data());
    for (void* memory : heap) free(memory);
    if (*why) fprintf(stderr, "emulator: %s\n", why);
    return *why ? 70 : 0;
}
#endif
