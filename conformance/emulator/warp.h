// The bodies of kernels/primitives.cu for the emulator. Products are exact and summed in double, then rounded once to float:
// a tensor core may round otherwise.
#pragma once

namespace emulator {

// Memory of the program under test is read and written by elements, so that the sanitizers see every access.
inline void copy_now(const Copy& copy)
{
    for (int k = 0; k < 16; k += 2)
        *(uint16_t*)(copy.to + k) = k < copy.bytes ? *(const uint16_t*)(copy.from + k) : (uint16_t)0;
}

inline void must_be_shared(const void* at, const char* who)
{
    if ((uintptr_t)at % 16) stop("an address that is no multiple of 16 given to ", who);
    if ((char*)at < shared || (char*)at + 16 > shared + shared_size) stop("an address outside of shared memory given to ", who);
}

void load_eight_by_eight(unsigned (&to)[4], const void* row, const char* who, bool transposed)
{
    const uint16_t* rows[4][2];
    unsigned lane;
    {
        Bookkeeping unseen;
        must_be_shared(row, who);
        const unsigned half = meet(who, [&](Mail& mail) { mail.address = row; });
        const auto& mail = own_warp().mail[half];
        lane = own_lane();
        for (int k = 0; k < 4; ++k)
            for (int n = 0; n < 2; ++n)
                rows[k][n] = (const uint16_t*)mail[8 * k + (transposed ? 2 * (lane % 4) + n : lane / 4)].address;
        for (int k = 0; k < 4 && lane == 0; ++k) {    // a matrix is one phase: eight rows of 16 bytes, eight banks of 16 bytes
            unsigned rows_of_bank[8] = {}, most = 0;
            for (int r = 0; r < 8; ++r) most = std::max(most, ++rows_of_bank[(uintptr_t)mail[8 * k + r].address / 16 % 8]);
            phases += 1;
            bank_cycles += most;
        }
    }
    for (int k = 0; k < 4; ++k) {
        const unsigned c = transposed ? lane / 4 : 2 * (lane % 4);
        to[k] = rows[k][0][c] | (unsigned)rows[k][1][transposed ? c : c + 1] << 16;
    }
}

inline float number(float16 x) { _Float16 half; memcpy(&half, &x, 2); return (float)half; }
inline float number(bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }

inline unsigned rounded(float16, float x) { _Float16 half = (_Float16)x; uint16_t bits; memcpy(&bits, &half, 2); return x != x ? 0x7fff : bits; }
inline unsigned rounded(bfloat16, float x)
{
    const unsigned bits = __float_as_uint(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

template <typename T> inline void multiply_add(T, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    Bookkeeping unseen;
    const unsigned half = meet("multiply_add", [&](Mail& mail) {
        const unsigned given[6] = {a[0], a[1], a[2], a[3], b0, b1};
        for (int k = 0; k < 12; ++k) mail.numbers[k] = number(T{(uint16_t)(given[k / 2] >> 16 * (k % 2))});
    });
    const auto& mail = own_warp().mail[half];
    const unsigned g = own_lane() / 4, t = own_lane() % 4;
    for (int e = 0; e < 4; ++e) {
        double sum = c[e];
        for (unsigned q = 0; q < 4; ++q) {
            const float *A = mail[4 * g + q].numbers + e / 2 * 2, *B = mail[4 * (2 * t + e % 2) + q].numbers + 8;
            sum += (double)A[0] * B[0] + (double)A[1] * B[1] + (double)A[4] * B[2] + (double)A[5] * B[3];
        }
        c[e] = (float)sum;
    }
}

}  // namespace emulator

char* shared_memory() { return emulator::shared; }

void copy_16(void* to, const void* from, int bytes)
{
    const emulator::Copy copy = {(char*)to, (const char*)from, bytes};
    {
        emulator::Bookkeeping unseen;
        emulator::must_be_shared(to, "copy_16");
        if (bytes < 0 || bytes > 16) emulator::stop("copy_16 is asked for less than nothing or more than 16 bytes");
        if (bytes && (uintptr_t)from % 16) emulator::stop("copy_16 reads at an address that is no multiple of 16");
        if (emulator::copies == emulator::LATE) {
            emulator::running->open.push_back(copy);
            return;
        }
    }
    emulator::copy_now(copy);
}

void close_copies()
{
    emulator::Bookkeeping unseen;
    emulator::running->groups.push_back(std::move(emulator::running->open));
    emulator::running->open.clear();
}

template <int LATEST> void await_copies()
{
    for (;;) {
        std::vector<emulator::Copy> due;
        {
            emulator::Bookkeeping unseen;
            auto& groups = emulator::running->groups;
            if (groups.size() <= LATEST) return;
            due = std::move(groups.front());
            groups.erase(groups.begin());
        }
        for (size_t k = 0; k < due.size(); ++k) emulator::copy_now(due[k]);
    }
}

void load_matrices(unsigned (&to)[4], const void* row) { emulator::load_eight_by_eight(to, row, "load_matrices", false); }
void load_transposed(unsigned (&to)[4], const void* row) { emulator::load_eight_by_eight(to, row, "load_transposed", true); }

void multiply_add(float16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) { emulator::multiply_add(float16(), c, a, b0, b1); }
void multiply_add(bfloat16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) { emulator::multiply_add(bfloat16(), c, a, b0, b1); }

unsigned pair_of(float16, float low, float high) { return emulator::rounded(float16(), low) | emulator::rounded(float16(), high) << 16; }
unsigned pair_of(bfloat16, float low, float high) { return emulator::rounded(bfloat16(), low) | emulator::rounded(bfloat16(), high) << 16; }

float power_of_two(float x) { const float power = exp2f(x); return power < 1.17549435e-38f ? 0 : power; }    // subnormals are 0

float exchanged(float value, int difference)
{
    emulator::Bookkeeping unseen;
    const unsigned half = emulator::meet("exchanged", [&](emulator::Mail& mail) { mail.numbers[0] = value; });
    return emulator::own_warp().mail[half][emulator::own_lane() ^ difference].numbers[0];
}

unsigned from_lane(unsigned value, int lane)
{
    emulator::Bookkeeping unseen;
    const unsigned half = emulator::meet("from_lane", [&](emulator::Mail& mail) { mail.words[0] = value; });
    return emulator::own_warp().mail[half][lane].words[0];
}
