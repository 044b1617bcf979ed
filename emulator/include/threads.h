// Makes CUDA C++ plain C++ in which every thread of a block is one of the system's, so that ThreadSanitizer sees
// which accesses nothing orders. Barriers order memory, as CUDA says; shuffles, votes and tensor cores' products do
// not, and neither does waiting for them here: their words are relaxed atomics, and who waits sleeps by the
// system call that the sanitizer does not see.
//
// Each block is a process of its own, in shared memory, so that what is shared in a block is a plain static.
// Races between blocks do not show.
//
// A program: reads launches from the file that it is given, runs them in order, and writes what is in memory
// then back. Its exit code is 66 where the sanitizer reported something.
#pragma once

#include "device.h"

#include <algorithm>
#include <climits>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#define __shared__ static

namespace emulate {

inline void fail(const char* what) {
    fprintf(stderr, "%s\n", what);
    _exit(70);
}

// Where so many threads wait for one another.
class Meeting {
    // Behind `lock`.
    unsigned live = 0, waiting = 0;
    unsigned lock = 0, generation = 0;
    // What threads write before a meeting that orders memory, and read after it; one for each of a few meetings in
    // turn, since a thread that is late would be ordered behind the next one, too.
    unsigned order[4] = {};

    void acquire_lock() {
        while (__atomic_exchange_n(&lock, 1u, __ATOMIC_RELAXED) != 0) sched_yield();
    }
    void release_lock() { __atomic_exchange_n(&lock, 0u, __ATOMIC_RELAXED); }
    void wake() {
        __atomic_fetch_add(&generation, 1u, __ATOMIC_RELAXED);
        syscall(SYS_futex, &generation, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }
    unsigned get(unsigned& of) { return __atomic_load_n(&of, __ATOMIC_RELAXED); }
    void set(unsigned& of, unsigned to) { __atomic_store_n(&of, to, __ATOMIC_RELAXED); }

  public:
    void reset(unsigned threads) { set(live, threads); }

    void wait(bool orders) {
        const unsigned mine = get(generation);
        unsigned& at = order[mine % 4];
        if (orders) __atomic_fetch_add(&at, 1u, __ATOMIC_ACQ_REL);
        acquire_lock();
        set(waiting, get(waiting) + 1);
        const bool last = get(waiting) == get(live);
        if (last) set(waiting, 0);
        release_lock();
        if (last) {
            wake();
        } else {
            while (get(generation) == mine) syscall(SYS_futex, &generation, FUTEX_WAIT, mine, nullptr, nullptr, 0);
        }
        if (orders) __atomic_fetch_add(&at, 1u, __ATOMIC_ACQ_REL);
    }

    // A thread ends: nobody waits for it any more.
    void leave() {
        acquire_lock();
        set(live, get(live) - 1);
        const bool last = get(live) > 0 && get(waiting) == get(live);
        if (last) set(waiting, 0);
        release_lock();
        if (last) wake();
    }
};

struct Launch {
    std::string kernel;
    dim3 grid;
    unsigned threads;
    std::vector<uint64_t> words;
};

struct Block {
    Meeting all;
    std::vector<Meeting> warps;
    std::vector<Warp> words;
    dim3 grid, block, index;
};

inline Block*& block() {
    static Block* b = nullptr;
    return b;
}

inline dim3& thread() {
    static thread_local dim3 t;
    return t;
}

inline Warp& my_warp(unsigned* my_lane) {
    *my_lane = thread().x % WARP_LANES;
    return block()->words[thread().x / WARP_LANES];
}

inline void meet(unsigned mask) {
    if (mask != 0xffffffffu) fail("a part of a warp meets");
    block()->warps[thread().x / WARP_LANES].wait(false);
}

typedef void (*Kernel)(const uint64_t*);

struct Named {
    const char* name;
    Kernel run;
    Named* next;
    static Named*& first() {
        static Named* f = nullptr;
        return f;
    }
    Named(const char* name, Kernel run) : name(name), run(run), next(first()) { first() = this; }
};

template <class... A>
inline void call_all(void (*f)(A...), const uint64_t* words) {
    call(f, words, std::index_sequence_for<A...>{});
}

struct Started {
    Kernel kernel;
    const uint64_t* words;
    unsigned number;
};

inline void* start(void* p) {
    const Started* s = static_cast<Started*>(p);
    thread() = {s->number, 0, 0};
    s->kernel(s->words);
    block()->warps[s->number / WARP_LANES].leave();
    block()->all.leave();
    return nullptr;
}

// In a process of its own.
inline void run_block(const Launch& launch, Kernel kernel, dim3 index) {
    Block b;
    b.warps = std::vector<Meeting>((launch.threads + WARP_LANES - 1) / WARP_LANES);
    b.words.resize(b.warps.size());
    b.grid = launch.grid;
    b.block = {launch.threads, 1, 1};
    b.index = index;
    b.all.reset(launch.threads);
    for (unsigned w = 0; w < b.warps.size(); w++)
        b.warps[w].reset(std::min(WARP_LANES, launch.threads - w * WARP_LANES));
    block() = &b;
    std::vector<pthread_t> threads(launch.threads);
    std::vector<Started> started(launch.threads);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    for (unsigned t = 0; t < launch.threads; t++) {
        started[t] = {kernel, launch.words.data(), t};
        if (pthread_create(&threads[t], &attributes, start, &started[t]) != 0) fail("no thread");
    }
    for (pthread_t t : threads) pthread_join(t, nullptr);
}

// --- the program ---------------------------------------------------------------------------------

inline uint64_t number(FILE* from) {
    uint64_t x;
    if (fread(&x, sizeof x, 1, from) != 1) fail("the file of launches ends too early");
    return x;
}

// Where memory is, so that addresses can be in the file; the sanitizer lets programs have it.
constexpr uint64_t BASE = 0x1000000000;

inline int run_file(const char* path) {
    FILE* from = fopen(path, "rb");
    if (!from) fail("there is no file of launches");
    const uint64_t bytes = number(from);
    void* memory = mmap(reinterpret_cast<void*>(BASE), bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory != reinterpret_cast<void*>(BASE)) fail("the memory's place is taken");
    if (fread(memory, 1, bytes, from) != bytes) fail("the file of launches ends too early");
    std::vector<Launch> launches(number(from));
    for (Launch& launch : launches) {
        char name[16] = {};
        if (fread(name, 1, sizeof name, from) != sizeof name) fail("a kernel has no name");
        launch.kernel = name;
        launch.grid = {unsigned(number(from)), unsigned(number(from)), unsigned(number(from))};
        launch.threads = unsigned(number(from));
        launch.words.resize(number(from));
        for (uint64_t& word : launch.words) word = number(from);
    }
    fclose(from);
    int found = 0;
    for (const Launch& launch : launches) {
        const Named* named = Named::first();
        while (named && launch.kernel != named->name) named = named->next;
        if (!named) fail("there is no such kernel");
        dim3 at;
        for (at.z = 0; at.z < launch.grid.z; at.z++)
            for (at.y = 0; at.y < launch.grid.y; at.y++)
                for (at.x = 0; at.x < launch.grid.x; at.x++) {
                    const pid_t child = fork();
                    if (child == 0) {
                        // Nobody waits for ever at a barrier that others do not reach.
                        alarm(120);
                        run_block(launch, named->run, at);
                        exit(0);
                    }
                    int status;
                    if (child < 0 || waitpid(child, &status, 0) != child) fail("a block cannot be run");
                    if (!WIFEXITED(status)) fail("the threads of a block wait for each other for ever");
                    if (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 66) return WEXITSTATUS(status);
                    if (WEXITSTATUS(status) == 66) found = 66;
                }
    }
    FILE* to = fopen(path, "wb");
    if (!to || fwrite(memory, 1, bytes, to) != bytes || fclose(to) != 0) fail("results cannot be written");
    return found;
}

} // namespace emulate

#define threadIdx (emulate::thread())
#define blockIdx (emulate::block()->index)
#define blockDim (emulate::block()->block)
#define gridDim (emulate::block()->grid)

#define KERNEL(name, threads, ...)                                                                  \
    static void name(__VA_ARGS__);                                                                  \
    static void call_##name(const uint64_t* words) { emulate::call_all(&name, words); }             \
    static emulate::Named named_##name(#name, call_##name);                                         \
    static void name(__VA_ARGS__)

inline void __syncthreads() { emulate::block()->all.wait(true); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
    if (mask != 0xffffffffu) emulate::fail("a part of a warp meets");
    emulate::block()->warps[emulate::thread().x / emulate::WARP_LANES].wait(true);
}

int main(int count, char** arguments) {
    if (count != 2) emulate::fail("the file of launches is missing");
    return emulate::run_file(arguments[1]);
}
