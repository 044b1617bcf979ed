// Reductions: terms in strides, and values of neighbouring threads or of columns combined.
#pragma once
#include "arenic.cuh"

// What elements are combined in (`Acc`), how they get there and back.
template <class T, class Combiner>
struct Plain : Combiner {
    typedef T Acc;
    static __device__ T lift(T x) { return x; }
    static __device__ T finish(T acc, u64) { return acc; }
};

template <class T>
struct Mean : Sum<typename Number<T>::Wide> {
    typedef typename Number<T>::Wide Acc;
    static __device__ Acc lift(T x) { return Acc(x); }
    static __device__ T finish(Acc acc, u64 count) { return T(divide(acc, Acc(count))); }
};

// Two sums at once.
template <class T>
struct Pair {
    T first, second;
};

template <class T>
__device__ inline Pair<T> shuffle_xor(Pair<T> x, u32 mask) {
    return {shuffle_xor(x.first, mask), shuffle_xor(x.second, mask)};
}

template <class T>
struct Sums {
    static __device__ Pair<T> identity() { return {T(0), T(0)}; }
    static __device__ Pair<T> combine(Pair<T> a, Pair<T> b) {
        return {a.first + b.first, a.second + b.second};
    }
};

// Neighbouring results, each by itself.
template <class A, u32 n>
struct Many {
    A at[n];
};

template <class F, class A, u32 n>
struct ForMany {
    static __device__ Many<A, n> identity() {
        Many<A, n> all;
#pragma unroll
        for (u32 i = 0; i < n; i++) all.at[i] = F::identity();
        return all;
    }
    static __device__ Many<A, n> combine(const Many<A, n>& a, const Many<A, n>& b) {
        Many<A, n> all;
#pragma unroll
        for (u32 i = 0; i < n; i++) all.at[i] = F::combine(a.at[i], b.at[i]);
        return all;
    }
};

// The terms first, first + step, … below end: four at a time, so that as many are on their way
// from memory, and in blocks that are combined afterwards, so that errors of long sums are those
// of short ones.
template <class F, class A, class Index, class Term>
__device__ inline A strided(Index first, Index end, Index step, Term term) {
    constexpr u32 ROUNDS = 64;
    A total = F::identity();
    for (Index t = first; t < end;) {
        A a = F::identity(), b = a, c = a, d = a;
        u32 round = 0;
        for (; round < ROUNDS && t + 3 * step < end; round++, t += 4 * step) {
            const A w = term(t), x = term(t + step), y = term(t + 2 * step), z = term(t + 3 * step);
            a = F::combine(a, w);
            b = F::combine(b, x);
            c = F::combine(c, y);
            d = F::combine(d, z);
        }
        if (round < ROUNDS) {
            for (; t < end; t += step) a = F::combine(a, term(t));
        }
        total = F::combine(total, F::combine(F::combine(a, b), F::combine(c, d)));
    }
    return total;
}

// The values of `lanes` neighbouring threads combined, in each of them: a power of two up to a
// warp's, or all of a block. All threads of the block take part.
template <class F, u32 lanes, class T>
__device__ inline T combine_lanes(T x) {
    if constexpr (lanes > WARP) {
        return combine_block<F, lanes>(x);
    } else {
#pragma unroll
        for (u32 mask = lanes / 2; mask > 0; mask /= 2) {
            x = F::combine(x, shuffle_xor(x, mask));
        }
        return x;
    }
}

// The values of threads that are `width` apart combined, for the first `width` threads;
// `height` of them, a power of two. All threads of the block take part.
template <class F, u32 width, u32 height, class T>
__device__ inline T combine_columns(T x) {
    __shared__ T values[width * height];
    const u32 i = threadIdx.x;
    if (i < width * height) values[i] = x;
#pragma unroll
    for (u32 half = height / 2; half > 0; half /= 2) {
        __syncthreads();
        if (i < width * half) values[i] = x = F::combine(x, values[i + width * half]);
    }
    return x;
}
