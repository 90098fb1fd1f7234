// A fiber is a stack and a place in the code: one per CUDA thread. x86-64 only: the switch saves what that ABI asks to keep.
// Under ThreadSanitizer each fiber counts as a thread of its own, with no order between two of them but what `meet` says; under
// AddressSanitizer each has its own stack.
#pragma once
#include <cstddef>
#include <cstdlib>

#ifndef __x86_64__
#error "the emulator's fibers are written for x86-64"
#endif

#ifdef __SANITIZE_THREAD__
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#endif
#ifdef __SANITIZE_ADDRESS__
extern "C" {
void __sanitizer_start_switch_fiber(void**, const void*, size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
}
#endif

namespace emulator {

#ifdef __SANITIZE_THREAD__
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))
// While it lives, accesses are the emulator's own and no part of the program under test.
struct Bookkeeping {
    Bookkeeping() { AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0); }
    ~Bookkeeping() { AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0); }
};
// What came before `leave(x)` on any fiber comes before what follows `enter(x)`.
inline void leave(void* x) { __tsan_release(x); }
inline void enter(void* x) { __tsan_acquire(x); }
#else
#define UNSEEN
struct Bookkeeping { Bookkeeping() {} ~Bookkeeping() {} };
inline void leave(void*) {}
inline void enter(void*) {}
#endif

extern "C" void emulator_switch(void** from, void* to) __attribute__((visibility("hidden")));
asm(".text\n.globl emulator_switch\n.hidden emulator_switch\nemulator_switch:\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");

const size_t STACK = 128 << 10;

struct Fiber {
    char* stack = nullptr;
    void* at = nullptr;      // the stack pointer while it does not run
    void* thread = nullptr;  // ThreadSanitizer's name for it

    void begin(void (*body)())
    {
        if (!stack) stack = (char*)aligned_alloc(4096, STACK);
        void** top = (void**)(stack + STACK - 64);
        *--top = nullptr;
        *--top = (void*)body;
        for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
        at = top;
#ifdef __SANITIZE_THREAD__
        thread = __tsan_create_fiber(0);
#endif
    }
    void end()
    {
#ifdef __SANITIZE_THREAD__
        __tsan_destroy_fiber(thread);
        free(stack);    // the next block's threads have stacks of their own, or they would seem to race with these
        stack = nullptr;
#endif
    }
};

// The scheduler's own stack, to which every fiber goes back.
struct Home {
    void* at;
    void* thread;
    const void* bottom;
    size_t size;
};
static Home home;

UNSEEN inline void go_to(Fiber& fiber)
{
#ifdef __SANITIZE_ADDRESS__
    void* fake;
    __sanitizer_start_switch_fiber(&fake, fiber.stack, STACK);
#endif
#ifdef __SANITIZE_THREAD__
    home.thread = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber.thread, 1);
#endif
    emulator_switch(&home.at, fiber.at);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

UNSEEN inline void go_home(Fiber& fiber, bool for_ever)
{
    (void)for_ever;
#ifdef __SANITIZE_ADDRESS__
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(for_ever ? nullptr : &fake, home.bottom, home.size);
#endif
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(home.thread, 1);
#endif
    emulator_switch(&fiber.at, home.at);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

inline void arrived()    // the first thing that a fiber does
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &home.bottom, &home.size);
#endif
}

}  // namespace emulator
