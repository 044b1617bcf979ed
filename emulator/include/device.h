// What a device has besides threads and barriers, whoever emulates these (`emulate.h`, `threads.h`): functions of a
// warp, tensor cores, intrinsics. Lanes that give each other words are not ordered otherwise: of memory, CUDA
// promises that of barriers alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
};

namespace emulate {

constexpr unsigned WARP_LANES = 32;

// What lanes give each other: one word each, for shuffles, or operands of a product of the warp.
struct Warp {
    uint64_t words[WARP_LANES];
    uint32_t left[WARP_LANES][4], right[WARP_LANES][2];
};

// This thread's warp, and its lane there.
inline Warp& my_warp(unsigned* my_lane);
// The lanes of a mask wait for one another.
inline void meet(unsigned mask);

template <class A>
inline A argument(uint64_t word) {
    if constexpr (std::is_pointer<A>::value) {
        return reinterpret_cast<A>(word);
    } else if constexpr (std::is_class<A>::value) {
        static_assert(sizeof(A) == sizeof word);
        A whole;
        memcpy(&whole, &word, sizeof word);
        return whole;
    } else {
        return A(word);
    }
}

template <class... A, size_t... I>
inline void call(void (*f)(A...), const uint64_t* words, std::index_sequence<I...>) {
    (void)words;
    f(argument<A>(words[I])...);
}


// A word that other lanes read.
template <class W>
inline void give(W& word, W x) { __atomic_store_n(&word, x, __ATOMIC_RELAXED); }
template <class W>
inline W taken(const W& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); }

// What another lane gives.
template <class T>
inline T exchange(unsigned mask, T x, unsigned (*source)(unsigned, unsigned), unsigned by) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    unsigned me;
    Warp& w = my_warp(&me);
    uint64_t word = 0;
    memcpy(&word, &x, sizeof(T));
    give(w.words[me], word);
    meet(mask);
    unsigned from = source(me, by);
    T y = x;
    if (from < WARP_LANES) {
        word = taken(w.words[from]);
        memcpy(&y, &word, sizeof(T));
    }
    meet(mask);
    return y;
}

// 16 × terms by terms × 8 added to 16 × 8, held as PTX has it for `mma.sync`: in words of `pack`
// elements, four lanes side by side have 4 · pack terms of a row or column. `element` takes one
// out of its word.
inline void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], unsigned pack,
                     float (*element)(uint32_t, unsigned)) {
    unsigned me;
    Warp& w = my_warp(&me);
    for (unsigned i = 0; i < 4; i++) give(w.left[me][i], a[i]);
    for (unsigned i = 0; i < 2; i++) give(w.right[me][i], b[i]);
    meet(0xffffffffu);
    for (unsigned e = 0; e < 4; e++) {
        unsigned row = me / 4, column = me % 4 * 2 + e % 2, lower = e / 2;
        for (unsigned k = 0; k < 8 * pack; k++) {
            unsigned later = k / (4 * pack), lane = k / pack % 4;
            float x = element(taken(w.left[row * 4 + lane][lower + 2 * later]), k % pack);
            float y = element(taken(w.right[column * 4 + lane][later]), k % pack);
            sums[e] += x * y;
        }
    }
    meet(0xffffffffu);
}

} // namespace emulate

inline void multiply_tf32(float (&sums)[4], const float (&a)[4], const float (&b)[2]) {
    uint32_t left[4], right[2];
    memcpy(left, a, sizeof left);
    memcpy(right, b, sizeof right);
    // The lower bits of a float are not looked at.
    auto element = [](uint32_t word, unsigned) {
        float x;
        word &= ~0x1fffu;
        memcpy(&x, &word, sizeof x);
        return x;
    };
    emulate::multiply(sums, left, right, 1, element);
}

inline void multiply_bf16(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    auto element = [](uint32_t word, unsigned half) {
        float x;
        word = half == 0 ? word << 16 : word & 0xffff0000u;
        memcpy(&x, &word, sizeof x);
        return x;
    };
    emulate::multiply(sums, a, b, 2, element);
}

inline uint32_t to_bf16s(float lower, float upper) {
    auto rounded = [](float x) {
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        return x != x ? (bits >> 16 | 0x40) : ((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    };
    return rounded(lower) | rounded(upper) << 16;
}

// At once, of copies that may be made later.
inline void copy_later(void* to, const void* from, bool is_copied) {
    if (is_copied) {
        memcpy(to, from, 16);
    } else {
        memset(to, 0, 16);
    }
}
inline void wait_for_copies() {}

inline float fast_exp2(float x) { return exp2f(x); }

inline float to_tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    // Infinity and NaN stay as they are.
    if (std::isfinite(x)) bits += 0x1000u;
    bits &= ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

template <class T>
inline T __shfl_sync(unsigned mask, T x, unsigned from) {
    return emulate::exchange(mask, x, +[](unsigned, unsigned by) { return by % emulate::WARP_LANES; }, from);
}

// Reads what other lanes name the rows of, for `ldmatrix`.
template <bool TRANSPOSED, class T>
inline void load_matrices(uint32_t (&words)[4], const T* row) {
    static_assert(sizeof(T) == sizeof(uint16_t));
    unsigned me;
    emulate::my_warp(&me);
    if (uintptr_t(row) % 16 != 0) {
        fprintf(stderr, "a row of ldmatrix is not at a multiple of 16 bytes\n");
        abort();
    }
    for (unsigned i = 0; i < 4; i++) {
        uint32_t word = 0;
        for (unsigned half = 0; half < 2; half++) {
            const unsigned along = me % 4 * 2 + half, across = me / 4;
            const T* from = __shfl_sync(0xffffffffu, row, 8 * i + (TRANSPOSED ? along : across));
            uint16_t bits;
            memcpy(&bits, from + (TRANSPOSED ? across : along), sizeof bits);
            word |= uint32_t(bits) << 16 * half;
        }
        words[i] = word;
    }
}

template <class T>
inline T __shfl_xor_sync(unsigned mask, T x, unsigned by) {
    return emulate::exchange(mask, x, +[](unsigned me, unsigned by) { return me ^ by; }, by);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T x, unsigned by) {
    return emulate::exchange(mask, x, +[](unsigned me, unsigned by) { return me + by; }, by);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T x, unsigned by) {
    return emulate::exchange(mask, x, +[](unsigned me, unsigned by) { return me < by ? me : me - by; }, by);
}

inline unsigned __ballot_sync(unsigned mask, bool holds) {
    unsigned me, votes = 0;
    emulate::Warp& w = emulate::my_warp(&me);
    emulate::give(w.words[me], uint64_t(holds));
    emulate::meet(mask);
    for (unsigned i = 0; i < emulate::WARP_LANES; i++)
        if (mask >> i & 1) votes |= unsigned(emulate::taken(w.words[i]) != 0) << i;
    emulate::meet(mask);
    return votes;
}

// The lanes of the mask with the same value.
template <class T>
inline unsigned __match_any_sync(unsigned mask, T x) {
    unsigned me, same = 0;
    emulate::Warp& w = emulate::my_warp(&me);
    emulate::give(w.words[me], uint64_t(x));
    emulate::meet(mask);
    for (unsigned i = 0; i < emulate::WARP_LANES; i++)
        if (mask >> i & 1) same |= unsigned(emulate::taken(w.words[i]) == uint64_t(x)) << i;
    emulate::meet(mask);
    return same;
}

inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline void __threadfence() {}

inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long expected, unsigned long long x) {
    __atomic_compare_exchange_n(at, &expected, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
