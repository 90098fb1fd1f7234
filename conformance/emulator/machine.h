// A grid of blocks of threads: blocks one after another, each thread a fiber that runs until it waits for others.
//
// A schedule is chosen to be unkind. One warp runs as far as it can before the next one starts, from the first or from the last;
// or warps take turns at random. Copies in the background end as late as they may, or as early. The results of a right kernel
// are the same under all schedules. Shared memory begins as bytes 255, which are NaN in every float type.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "fibers.h"

struct dim3 { unsigned x, y, z; };

namespace emulator {

enum Order { FIRST_TO_LAST, LAST_TO_FIRST, RANDOM };
enum Copies { LATE, EARLY };
enum State { READY, AT_WARP, AT_BLOCK, DONE };

struct Copy { char* to; const char* from; int bytes; };

struct Thread {
    Fiber fiber;
    unsigned number;
    State state;
    unsigned meetings;                        // of its warp: their parity says which half of the warp's mail is in use
    std::vector<std::vector<Copy>> groups;    // closed groups of copies, the oldest first
    std::vector<Copy> open;
};

union Mail { float numbers[16]; unsigned words[16]; const void* address; };

struct Warp {
    unsigned arrived, living, size, meetings;
    const char* what;        // the collective that those who arrived are at
    Mail mail[2][32];
    char order[2];           // for ThreadSanitizer: who met, by parity
};

static std::vector<Thread> threads;
static std::vector<Warp> warps;
static Thread* running;
static dim3 thread_index, block_index, block_size, grid_size;
static const std::function<void()>* kernel;
static Order order;
static Copies copies;
static uint64_t random_state;

static unsigned at_barrier, barriers;
static const char* barrier;
static int votes[2];
static char barrier_order[2], launched, finished;

static char* shared;
static size_t shared_size;

static unsigned long phases, bank_cycles;    // of ldmatrix: how many phases there were, and how many cycles the banks took

static char failure[300];    // why the launch was given up; empty while it goes on

inline void fail(const char* what, const char* more)
{
    snprintf(failure, sizeof failure, "%s%s (block %u, thread %u)", what, more, block_index.x, running ? running->number : 0);
}

inline uint64_t random_number()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

UNSEEN inline void wait_as(State state)
{
    running->state = state;
    go_home(running->fiber, state == DONE);
}

// A thread of the program under test has done what a GPU does not allow: it stops here, and the launch is given up.
[[noreturn]] inline void stop(const char* what, const char* more = "")
{
    fail(what, more);
    wait_as(DONE);
    abort();
}

// Every lane of the warp must come to the same collective; then all go on. Gives the half of the mail that holds what they brought.
template <typename Bring> inline unsigned meet(const char* what, Bring bring)
{
    Bookkeeping unseen;
    Warp& warp = warps[running->number / 32];
    const unsigned half = running->meetings++ & 1;
    if (warp.living != warp.size) stop("a lane has left, and its warp comes to ", what);
    if (warp.arrived == 0) warp.what = what;
    if (strcmp(warp.what, what)) stop("lanes of a warp are at different collectives, one of them ", what);
    bring(warp.mail[half][running->number % 32]);
    leave(&warp.order[half]);
    running->state = AT_WARP;
    if (++warp.arrived == warp.living) {
        warp.arrived = 0;
        const unsigned first = running->number / 32 * 32;
        for (unsigned t = first; t < first + warp.size; ++t) threads[t].state = READY;
        wait_as(READY);
    } else {
        wait_as(AT_WARP);
    }
    enter(&warp.order[half]);
    return half;
}

UNSEEN inline Warp& own_warp() { return warps[running->number / 32]; }
UNSEEN inline unsigned own_lane() { return running->number % 32; }

inline int come_to_barrier(const char* what, int vote)
{
    Bookkeeping unseen;
    const unsigned half = barriers & 1;
    if (at_barrier == 0) barrier = what;
    if (barrier != what) stop("threads of a block are at different barriers, one of them ", what);
    votes[half] |= vote;
    ++at_barrier;
    leave(&barrier_order[half]);
    wait_as(AT_BLOCK);
    enter(&barrier_order[half]);
    return votes[half];
}

inline void body_of_thread()
{
    arrived();
    enter(&launched);
    (*kernel)();
    leave(&finished);
    wait_as(DONE);
}

inline void resume(Thread& thread)
{
    running = &thread;
    thread_index = {thread.number % block_size.x, thread.number / block_size.x, 0};
    go_to(thread.fiber);
    running = nullptr;
}

// Runs what can run of a warp; true if anything did.
inline bool advance(unsigned w)
{
    bool any = false;
    for (bool more = true; more;) {
        more = false;
        for (unsigned k = 0; k < warps[w].size; ++k) {
            Thread& thread = threads[32 * w + (order == LAST_TO_FIRST ? warps[w].size - 1 - k : k)];
            if (thread.state != READY) continue;
            resume(thread);
            any = more = true;
            if (thread.state == DONE) --warps[w].living;
            if (thread.state == DONE && warps[w].arrived && !*failure) fail("a lane leaves while its warp waits at ", warps[w].what);
            if (*failure) return true;
        }
        if (order == RANDOM && random_number() % 4 == 0) break;
    }
    return any;
}

inline void run_block()
{
    memset(shared, 255, shared_size);
    at_barrier = 0;
    for (unsigned w = 0; w < warps.size(); ++w) {
        warps[w].arrived = 0;
        warps[w].living = warps[w].size = std::min<unsigned>(32, (unsigned)threads.size() - 32 * w);
    }
    for (Thread& thread : threads) {
        thread.state = READY;
        thread.meetings = 0;
        thread.groups.clear();
        thread.open.clear();
        thread.fiber.begin(body_of_thread);
    }
    for (size_t done = 0; done < threads.size();) {
        bool any = false;
        for (unsigned k = 0; k < warps.size() && !*failure; ++k)
            any |= advance(order == LAST_TO_FIRST ? (unsigned)warps.size() - 1 - k : order == RANDOM ? random_number() % warps.size() : k);
        if (*failure) return;
        done = 0;
        for (const Thread& thread : threads) {
            done += thread.state == DONE;
            any |= thread.state == READY;
        }
        if (at_barrier == threads.size()) {
            at_barrier = 0;
            ++barriers;
            votes[barriers & 1] = 0;
            for (Thread& thread : threads) thread.state = READY;
        } else if (!any && done < threads.size()) {
            return fail("some threads of a block wait at a barrier, or a warp at a collective, to which others never come", "");
        }
    }
    for (Thread& thread : threads) thread.fiber.end();
}

inline void launch(unsigned blocks, unsigned block_threads, size_t bytes, Order in, Copies when, uint64_t seed, const std::function<void()>& body)
{
    leave(&launched);
    {
        Bookkeeping unseen;
        grid_size = {blocks, 1, 1};
        block_size = {block_threads, 1, 1};
        order = in, copies = when, kernel = &body, *failure = 0;
        random_state = 0x9E3779B97F4A7C15ull * (seed + 1);
        if (threads.size() != block_threads) {
            for (Thread& thread : threads) free(thread.fiber.stack);
            threads = std::vector<Thread>(block_threads);
            warps = std::vector<Warp>((block_threads + 31) / 32);
            for (unsigned t = 0; t < block_threads; ++t) threads[t].number = t;
        }
        for (unsigned k = 0; k < blocks && !*failure; ++k) {
            block_index = {in == LAST_TO_FIRST ? blocks - 1 - k : k, 0, 0};
            shared_size = bytes;
            shared = (char*)aligned_alloc(128, (bytes + 127) / 128 * 128 + 128);    // of its own for each block
            run_block();
            free(shared);
        }
    }
    enter(&finished);
}

}  // namespace emulator
