// The counter-based generator of random operators, Philox4x32-10: the key is made of seed and
// stream, the counter of step and element, and the words are those of the CPU backend.
#pragma once
#include "arenic.cuh"

// The finaliser of SplitMix64.
__device__ inline u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// The words of elements 4 · counter to 4 · counter + 3.
struct Philox {
    u32 word[4];

    __device__ Philox(u64 seed, u64 stream, u64 step, u64 counter) {
        const u64 key = mix(mix(seed + 0x9e3779b97f4a7c15ull) ^ mix(stream));
        u32 k0 = u32(key), k1 = u32(key >> 32);
        u32 a = u32(counter), b = u32(counter >> 32), c = u32(step), d = u32(step >> 32);
#pragma unroll
        for (u32 round = 0; round < 10; round++) {
            const u64 p = u64(a) * 0xd2511f53u, q = u64(c) * 0xcd9e8d57u;
            a = u32(q >> 32) ^ b ^ k0;
            b = u32(q);
            c = u32(p >> 32) ^ d ^ k1;
            d = u32(p);
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        word[0] = a;
        word[1] = b;
        word[2] = c;
        word[3] = d;
    }

    // The word of an element, which no address is taken for.
    __device__ u32 of(u32 element) const {
        const u32 low = element % 2 == 0 ? word[0] : word[1];
        const u32 high = element % 2 == 0 ? word[2] : word[3];
        return element % 4 < 2 ? low : high;
    }
};

// A dropout that is drawn where its operand is made; `origin` is the counter of the operand's first
// elements.
template <class T>
struct Dropped {
    u64 seed, stream, step, origin, threshold;
    T scale;

    // What becomes of element `at` of the operand, which is `x`.
    __device__ T of(u64 at, T x) const {
        const Philox philox(seed, stream, step, origin + at / 4);
        return philox.of(u32(at % 4)) >= threshold ? x * scale : T(0);
    }
};

// Four elements that are moved as one.
template <class T>
struct alignas(4 * sizeof(T)) Four {
    T at[4];
};

// Elements 4 · quad to 4 · quad + 3 of `n`; fewer at the end. An operand may begin at any
// element, since it may be a part of another tensor.
template <u64 n, class T>
__device__ inline Four<T> read_four(const T* x, u64 quad) {
    Four<T> four = {};
    if constexpr (n % 4 != 0) {
        if (quad == n / 4) {
#pragma unroll
            for (u32 k = 0; k < n % 4; k++) four.at[k] = x[4 * quad + k];
            return four;
        }
    }
    if (reinterpret_cast<u64>(x) % alignof(Four<T>) == 0) {
        return reinterpret_cast<const Four<T>*>(x)[quad];
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++) four.at[k] = x[4 * quad + k];
    return four;
}

// The same of a result, which begins where its allocation does.
template <u64 n, class T>
__device__ inline void write_four(T* y, u64 quad, const Four<T>& four) {
    if constexpr (n % 4 != 0) {
        if (quad == n / 4) {
#pragma unroll
            for (u32 k = 0; k < n % 4; k++) y[4 * quad + k] = four.at[k];
            return;
        }
    }
    reinterpret_cast<Four<T>*>(y)[quad] = four;
}

template <u64 n>
__device__ inline Four<float> read_four(Narrow x, u64 quad) {
    Four<float> four = {};
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        if (4 * quad + k < n) four.at[k] = x[4 * quad + k];
    }
    return four;
}

template <u64 n>
__device__ inline void write_four(Bf16* y, u64 quad, const Four<float>& four) {
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        if (4 * quad + k < n) y[4 * quad + k] = four.at[k];
    }
}

// Uniform from `low` on, a word times the scale added, in double; rounding never reaches the
// upper end.
template <class T>
__device__ inline T uniform(u32 word, double low, double scale, T last) {
    const T v = T(low + double(word) * scale);
    return v > last ? last : v;
}

// What a ratio of dropped elements makes of them.
template <class T>
struct Ratio {
    double ratio, scale;

    __device__ explicit Ratio(T given) : ratio(given), scale(T(1) / (T(1) - given)) {}

    __device__ bool fits() const { return ratio >= 0 && ratio < 1; }

    // A word below it drops: exactly the words below ratio · 2³².
    __device__ u64 threshold() const { return u64(ceil(ratio * 4294967296.0)); }
};
