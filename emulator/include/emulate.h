// Makes CUDA C++ plain C++: a block is run thread by thread, each a fiber of its own that hands
// over at barriers and shuffles. Between barriers threads run one after another, in an order that
// a seed decides, so what a missing barrier does can show; nothing runs at the same time, so data
// races within a warp or between blocks do not (`threads.h` shows those). Blocks run one after another.
#pragma once

#include "device.h"

#include <algorithm>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __shared__ static thread_local

// As the host passes it.
struct EmulatedLaunch {
    dim3 grid, block;
    uint64_t seed;
    // What went wrong; empty where nothing did.
    char* message;
    uint64_t message_bytes;
};

namespace emulate {

constexpr size_t STACK = 64 << 10;

enum class State { ready, at_block_barrier, at_warp_barrier, done };

#if defined(__x86_64__)
typedef void* Context;

// Saves the callee-saved registers and the stack pointer in `from`, and goes on with `to`.
extern "C" void emulate_switch(Context* from, Context to);
asm(R"(
.text
.weak emulate_switch
.type emulate_switch, @function
emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulate_switch, .-emulate_switch
)");

inline Context prepare(char* stack, void (*entry)()) {
    void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + STACK) & ~uintptr_t(15));
    *--top = nullptr; // where the entry would return to; keeps the stack aligned as a call does
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    return top;
}

inline void go(Context* from, Context* to) { emulate_switch(from, *to); }
#else
typedef ucontext_t Context;
inline void go(Context* from, Context* to) { swapcontext(from, to); }
#endif

struct Fiber {
    Context context;
    State state;
    unsigned mask; // of lanes, at a warp barrier
    dim3 thread;
};

struct Block {
    Context scheduler;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char> stacks;
    Fiber* running = nullptr;
    dim3 grid, block, index;
    void (*body)(void*);
    void* arguments;
};

inline Block& block() {
    static thread_local Block b;
    return b;
}

inline void hand_over(State state) {
    Block& b = block();
    Fiber* self = b.running;
    self->state = state;
    go(&self->context, &b.scheduler);
}

inline void enter() {
    Block& b = block();
    b.body(b.arguments);
    b.running->state = State::done;
    go(&b.running->context, &b.scheduler);
}

inline unsigned lane(size_t fiber) { return unsigned(fiber % WARP_LANES); }

// Lets fibers past the barriers that all of theirs have reached. False where none may go on.
inline bool release(Block& b) {
    bool any = false;
    size_t n = b.fibers.size(), waiting = 0, live = 0;
    for (const Fiber& f : b.fibers) {
        live += f.state != State::done;
        waiting += f.state == State::at_block_barrier;
    }
    if (live > 0 && waiting == live) {
        for (Fiber& f : b.fibers)
            if (f.state == State::at_block_barrier) f.state = State::ready;
        return true;
    }
    for (size_t first = 0; first < n; first += WARP_LANES) {
        size_t end = std::min(n, first + WARP_LANES);
        for (size_t i = first; i < end; i++) {
            if (b.fibers[i].state != State::at_warp_barrier) continue;
            unsigned mask = b.fibers[i].mask;
            bool all = true;
            for (size_t j = first; j < first + WARP_LANES; j++) {
                if (!(mask >> lane(j) & 1)) continue;
                all = all && j < end && b.fibers[j].state == State::at_warp_barrier && b.fibers[j].mask == mask;
            }
            if (!all) continue;
            for (size_t j = first; j < end; j++)
                if (mask >> lane(j) & 1) b.fibers[j].state = State::ready;
            any = true;
        }
    }
    return any;
}

// Runs one block; false where its threads wait for each other for ever.
inline bool run_block(Block& b, uint64_t seed) {
    size_t n = b.fibers.size();
    for (size_t i = 0; i < n; i++) {
        Fiber& f = b.fibers[i];
        f.state = State::ready;
        unsigned t = unsigned(i);
        f.thread = {t % b.block.x, t / b.block.x % b.block.y, t / b.block.x / b.block.y};
        char* stack = b.stacks.data() + i * STACK;
#if defined(__x86_64__)
        f.context = prepare(stack, enter);
#else
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = stack;
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = nullptr;
        makecontext(&f.context, enter, 0);
#endif
    }
    while (true) {
        bool all_done = true;
        // Seed 0 takes threads as they come, 1 the last one first, others begin anywhere.
        for (size_t k = 0; k < n; k++) {
            size_t i = seed == 1 ? n - 1 - k : (k + size_t(seed)) % n;
            Fiber& f = b.fibers[i];
            if (f.state == State::ready) {
                b.running = &f;
                go(&b.scheduler, &f.context);
            }
            all_done = all_done && f.state == State::done;
        }
        if (all_done) return true;
        bool ready = false;
        for (const Fiber& f : b.fibers) ready = ready || f.state == State::ready;
        if (!ready && !release(b)) return false;
    }
}

template <class... A>
inline void run(EmulatedLaunch* launch, const uint64_t* words, void (*f)(A...)) {
    Block& b = block();
    b.grid = launch->grid;
    b.block = launch->block;
    size_t threads = size_t(b.block.x) * b.block.y * b.block.z;
    b.fibers.resize(threads);
    b.warps.resize((threads + WARP_LANES - 1) / WARP_LANES);
    if (b.stacks.size() < threads * STACK) b.stacks.resize(threads * STACK);
    struct Arguments {
        void (*f)(A...);
        const uint64_t* words;
    } arguments{f, words};
    b.arguments = &arguments;
    b.body = [](void* p) {
        Arguments* a = static_cast<Arguments*>(p);
        call(a->f, a->words, std::index_sequence_for<A...>{});
    };
    for (b.index.z = 0; b.index.z < b.grid.z; b.index.z++)
        for (b.index.y = 0; b.index.y < b.grid.y; b.index.y++)
            for (b.index.x = 0; b.index.x < b.grid.x; b.index.x++)
                if (!run_block(b, launch->seed)) {
                    snprintf(launch->message, launch->message_bytes,
                             "block (%u, %u, %u): some threads wait at a barrier that others never reach",
                             b.index.x, b.index.y, b.index.z);
                    return;
                }
}

// This lane's place in its warp.
inline Warp& my_warp(unsigned* my_lane) {
    Block& b = block();
    size_t i = size_t(b.running - b.fibers.data());
    *my_lane = lane(i);
    return b.warps[i / WARP_LANES];
}

inline void meet(unsigned mask) {
    block().running->mask = mask;
    hand_over(State::at_warp_barrier);
}

} // namespace emulate

#define threadIdx (emulate::block().running->thread)
#define blockIdx (emulate::block().index)
#define blockDim (emulate::block().block)
#define gridDim (emulate::block().grid)

#define KERNEL(name, threads, ...)                                                     \
    static void name(__VA_ARGS__);                                                     \
    extern "C" void emulated_##name(EmulatedLaunch* launch, const uint64_t* words) {   \
        emulate::run(launch, words, &name);                                            \
    }                                                                                  \
    static void name(__VA_ARGS__)

inline void __syncthreads() { emulate::hand_over(emulate::State::at_block_barrier); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulate::meet(mask); }
