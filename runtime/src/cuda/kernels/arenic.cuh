// What every kernel uses: element types, their arithmetic, refusals, sums over a block.
//
// The text is CUDA C++ for NVRTC; `emulate.h` makes it plain C++. Operators mean what they mean
// on the CPU backend: integers wrap, NaN passes comparisons on, casts truncate and saturate.
#pragma once

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
// Threads of a block, or these and the blocks that a multiprocessor is to hold at once.
#define BOUNDS(threads, blocks) threads, blocks
#define KERNEL(name, threads, ...) \
    extern "C" __global__ void __launch_bounds__(threads) name(__VA_ARGS__)
#else
#include "emulate.h"
#endif

typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

// --- what a type is -----------------------------------------------------------------------

template <class T>
struct Number;

#define INTEGER(T, U, W, least, most)                                \
    template <>                                                      \
    struct Number<T> {                                               \
        typedef U Unsigned;                                          \
        typedef W Wide; /* what a mean is summed in */               \
        static constexpr bool is_float = false;                      \
        static constexpr bool is_signed = least < 0;                 \
        static __device__ constexpr T lowest() { return least; }     \
        static __device__ constexpr T highest() { return most; }     \
    };
INTEGER(uint8_t, uint8_t, uint64_t, 0, 0xff)
INTEGER(int8_t, uint8_t, int64_t, -0x7f - 1, 0x7f)
INTEGER(uint16_t, uint16_t, uint64_t, 0, 0xffff)
INTEGER(int16_t, uint16_t, int64_t, -0x7fff - 1, 0x7fff)
INTEGER(uint32_t, uint32_t, uint64_t, 0, 0xffffffffu)
INTEGER(int32_t, uint32_t, int64_t, -0x7fffffff - 1, 0x7fffffff)
INTEGER(uint64_t, uint64_t, uint64_t, 0, 0xffffffffffffffffull)
INTEGER(int64_t, uint64_t, int64_t, -0x7fffffffffffffffll - 1, 0x7fffffffffffffffll)
#undef INTEGER

template <>
struct Number<float> {
    typedef float Wide;
    static constexpr bool is_float = true;
    static constexpr bool is_signed = true;
    static __device__ float lowest() { return -INFINITY; }
    static __device__ float highest() { return INFINITY; }
};

template <>
struct Number<double> {
    typedef double Wide;
    static constexpr bool is_float = true;
    static constexpr bool is_signed = true;
    static __device__ double lowest() { return -INFINITY; }
    static __device__ double highest() { return INFINITY; }
};

// The upper half of a float. Arithmetic is on floats: what is stored is rounded to the nearest,
// of two as near to the one whose last bit is 0.
struct Bf16 {
    uint16_t bits;

    Bf16() = default;
    __device__ Bf16(float x) {
#ifdef __CUDACC_RTC__
        // NaN stays NaN, of another payload.
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
        const u32 all = bits_of(x);
        // NaN stays NaN: its payload's upper bits, quiet.
        bits = x != x ? uint16_t(all >> 16 | 0x40) : uint16_t((all + 0x7fffu + (all >> 16 & 1u)) >> 16);
#endif
    }
    __device__ operator float() const { return float_of(u32(bits) << 16); }

    static __device__ u32 bits_of(float x) {
        u32 bits;
        memcpy(&bits, &x, sizeof bits);
        return bits;
    }
    static __device__ float float_of(u32 bits) {
        float x;
        memcpy(&x, &bits, sizeof x);
        return x;
    }
};

// Elements of an operand, read as floats: a parameter that is passed as its address.
struct Narrow {
    const Bf16* first;

    template <class I>
    __device__ float operator[](I i) const {
        return first[i];
    }
    template <class I>
    __device__ Narrow operator+(I by) const {
        return {first + by};
    }
};

// --- several elements at once -------------------------------------------------------------

// Neighbouring elements at an address that is a multiple of their bytes, at most 16.
template <class T, u32 n>
struct alignas(n * sizeof(T)) Pack {
    T at[n];
};

// As words, so that it is one instruction whatever elements are.
template <u32 n, class T>
__device__ inline Pack<T, n> load_pack(const T* from) {
    Pack<T, n> pack;
    if constexpr (sizeof(pack) % sizeof(u32) == 0) {
        typedef Pack<u32, sizeof(pack) / sizeof(u32)> Words;
        const Words words = *reinterpret_cast<const Words*>(from);
        memcpy(&pack, &words, sizeof pack);
    } else {
        pack = *reinterpret_cast<const Pack<T, n>*>(from);
    }
    return pack;
}

template <u32 n>
__device__ inline Pack<Bf16, n> load_pack(Narrow from) {
    return load_pack<n>(from.first);
}

// Where elements are, however they are read.
template <class T>
__device__ inline const T* address_of(const T* first) {
    return first;
}
__device__ inline const Bf16* address_of(Narrow x) { return x.first; }

template <class T, u32 n>
__device__ inline void store_pack(T* to, const Pack<T, n>& pack) {
    if constexpr (sizeof(pack) % sizeof(u32) == 0) {
        typedef Pack<u32, sizeof(pack) / sizeof(u32)> Words;
        Words words;
        memcpy(&words, &pack, sizeof pack);
        *reinterpret_cast<Words*>(to) = words;
    } else {
        *reinterpret_cast<Pack<T, n>*>(to) = pack;
    }
}

template <u32 n, class T>
__device__ inline Pack<T, n> pack_of(const T*) {
    return {};
}

// One element of a pack under the name and the index of the tensor that it is of.
template <class T>
struct Lane {
    T& element;

    template <class I>
    __device__ T& operator[](I) const {
        return element;
    }
};

// Read as a float.
template <>
struct Lane<const Bf16> {
    const Bf16& element;

    template <class I>
    __device__ float operator[](I) const {
        return element;
    }
};

template <class T, u32 n>
__device__ inline Lane<T> lane_of(Pack<T, n>& pack, u32 lane) {
    return {pack.at[lane]};
}

template <class T, u32 n>
__device__ inline Lane<const T> lane_of(const Pack<T, n>& pack, u32 lane) {
    return {pack.at[lane]};
}

// --- arithmetic ---------------------------------------------------------------------------

template <class T>
__device__ inline bool is_nan(T x) {
    return x != x;
}

// Signed integers wrap as their unsigned twins do.
#define WRAPPING(name, op)                                                \
    template <class T>                                                    \
    __device__ inline T name(T a, T b) {                                  \
        if constexpr (Number<T>::is_float) {                              \
            return a op b;                                                \
        } else {                                                          \
            return T(typename Number<T>::Unsigned(u64(a) op u64(b)));     \
        }                                                                 \
    }
WRAPPING(add, +)
WRAPPING(sub, -)
WRAPPING(mul, *)
#undef WRAPPING

// Integers divided by zero give zero; the kernel refuses such operands besides.
template <class T>
__device__ inline T divide(T a, T b) {
    if constexpr (Number<T>::is_float) {
        return a / b;
    } else {
        if (b == 0) return 0;
        if constexpr (Number<T>::is_signed) {
            if (b == T(-1)) return sub(T(0), a);
        }
        return a / b;
    }
}

__device__ inline float remainder_of(float a, float b) { return fmodf(a, b); }
__device__ inline double remainder_of(double a, double b) { return fmod(a, b); }

// What a truncated quotient leaves.
template <class T>
__device__ inline T remainder_of(T a, T b) {
    if (b == 0) return 0;
    if constexpr (Number<T>::is_signed) {
        if (b == T(-1)) return 0;
    }
    return a % b;
}

// By size, with NaN above all.
template <class T>
__device__ inline bool greater(T a, T b) {
    return a > b || (is_nan(a) && !is_nan(b));
}

// NaN where either is.
template <class T>
__device__ inline T larger(T a, T b) {
    return a > b || is_nan(a) ? a : b;
}

template <class T>
__device__ inline T smaller(T a, T b) {
    return a < b || is_nan(a) ? a : b;
}

__device__ inline float power(float a, float b) { return powf(a, b); }
__device__ inline double power(double a, double b) { return pow(a, b); }

// By squaring; a negative exponent gives the reciprocal, truncated and saturated.
template <class T>
__device__ inline T power(T a, T b) {
    if (b < 0) {
        if (a == 0) return Number<T>::highest();
        if (a == 1) return 1;
        if (add(a, T(1)) == 0) return b % 2 == 0 ? T(1) : a;
        return 0;
    }
    T y = 1;
    for (u64 exponent = u64(b); exponent > 0; exponent >>= 1) {
        if (exponent & 1) y = mul(y, a);
        a = mul(a, a);
    }
    return y;
}

// --- functions of one operand -------------------------------------------------------------

#define FLOAT_FUNCTION(name, f, d)                               \
    __device__ inline float name##_of(float x) { return f(x); } \
    __device__ inline double name##_of(double x) { return d(x); }
FLOAT_FUNCTION(atan, atanf, atan)
FLOAT_FUNCTION(atanh, atanhf, atanh)
FLOAT_FUNCTION(ceil, ceilf, ceil)
FLOAT_FUNCTION(cos, cosf, cos)
FLOAT_FUNCTION(erf, erff, erf)
FLOAT_FUNCTION(exp, expf, exp)
FLOAT_FUNCTION(floor, floorf, floor)
FLOAT_FUNCTION(log, logf, log)
FLOAT_FUNCTION(sin, sinf, sin)
FLOAT_FUNCTION(sqrt, sqrtf, sqrt)
FLOAT_FUNCTION(tanh, tanhf, tanh)
#undef FLOAT_FUNCTION

template <class T>
__device__ inline T abs_of(T x) {
    if constexpr (Number<T>::is_float) {
        return x < 0 ? -x : x == 0 ? T(0) : x;
    } else {
        return x < 0 ? sub(T(0), x) : x;
    }
}

template <class T>
__device__ inline T neg_of(T x) {
    if constexpr (Number<T>::is_float) {
        return -x;
    } else {
        return sub(T(0), x);
    }
}

__device__ inline uint8_t not_of(uint8_t x) { return x == 0; }

template <class T>
__device__ inline T reciprocal_of(T x) {
    return T(1) / x;
}

template <class T>
__device__ inline T relu_of(T x) {
    return x < 0 ? T(0) : x;
}

// Without overflow on either side.
template <class T>
__device__ inline T sigmoid_of(T x) {
    if (x >= 0) return T(1) / (T(1) + exp_of(-x));
    T e = exp_of(x);
    return e / (T(1) + e);
}

// tanh(scale (z + cubic z³)), of which GELU is made.
template <class T>
__device__ inline T gelu_tanh(T z, T scale, T cubic) {
    return tanh_of(mul(mul(z, add(mul(mul(z, z), cubic), T(1))), scale));
}

// ½ z (1 + t) of that.
template <class T>
__device__ inline T gelu_of(T z, T scale, T cubic) {
    return mul(mul(z, T(0.5)), add(gelu_tanh(z, scale, cubic), T(1)));
}

// ½ (1 + t) + ½ z (1 − t²) scale (1 + slope z²), where slope is three times cubic.
template <class T>
__device__ inline T gelu_slope(T z, T scale, T cubic, T slope) {
    const T t = gelu_tanh(z, scale, cubic);
    const T inner = mul(add(mul(mul(z, z), slope), T(1)), scale);
    return mul(add(add(t, T(1)), mul(mul(sub(T(1), mul(t, t)), inner), z)), T(0.5));
}

// Zeros and NaN stay as they are.
template <class T>
__device__ inline T sign_of(T x) {
    if (x > 0) return T(1);
    if constexpr (Number<T>::is_signed) {
        if (x < 0) return T(-1);
    }
    return x;
}

// Float to integer truncates and saturates, NaN gives 0; integers wrap.
template <class To, class From>
__device__ inline To cast(From x) {
    if constexpr (Number<From>::is_float && !Number<To>::is_float) {
        if (is_nan(x)) return 0;
        // The bounds as floats may lie one beyond the integers': compared so that none slips.
        if (x <= From(Number<To>::lowest())) return Number<To>::lowest();
        if (x >= From(Number<To>::highest())) return Number<To>::highest();
        return To(x);
    } else {
        return To(x);
    }
}

// --- what a kernel knows besides its operands ---------------------------------------------

// Seed, number of the step and which part of the batch; what random operators draw from besides
// their own key.
struct Draw {
    u64 seed;
    u64 step;
    u64 round;

    // The first counter of this round for an operator that draws for so many elements.
    __device__ u64 first_counter(u64 elements) const { return round * ((elements + 3) / 4); }
};

// Why the operands of a node do not fit. The first one stays.
struct Refusal {
    u64 node_plus_one;
    u64 code;
    i64 value;
    i64 extent;
};

enum Code : u64 { INDEX_OUT_OF_RANGE = 1, DIVISION_BY_ZERO = 2, DROPOUT_RATIO = 3 };

__device__ inline void refuse(Refusal* refusal, u64 node, Code code, i64 value, i64 extent) {
    unsigned long long* first = reinterpret_cast<unsigned long long*>(&refusal->node_plus_one);
    if (atomicCAS(first, 0ull, (unsigned long long)(node + 1)) == 0) {
        refusal->code = code;
        refusal->value = value;
        refusal->extent = extent;
    }
}

// An index counts from the end where it is negative. False, and a refusal, where it is out of
// range.
__device__ inline bool resolve(i64& index, i64 extent, Refusal* refusal, u64 node) {
    const i64 given = index;
    if (index < 0) index += extent;
    if (index >= 0 && index < extent) return true;
    refuse(refusal, node, INDEX_OUT_OF_RANGE, given, extent);
    return false;
}

// --- combining values of a block ----------------------------------------------------------

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

template <class T>
struct Sum {
    static __device__ T identity() { return T(0); }
    static __device__ T combine(T a, T b) { return add(a, b); }
};

template <class T>
struct Product {
    static __device__ T identity() { return T(1); }
    static __device__ T combine(T a, T b) { return mul(a, b); }
};

template <class T>
struct Largest {
    static __device__ T identity() { return Number<T>::lowest(); }
    static __device__ T combine(T a, T b) { return larger(a, b); }
};

template <class T>
struct Smallest {
    static __device__ T identity() { return Number<T>::highest(); }
    static __device__ T combine(T a, T b) { return smaller(a, b); }
};

// Types narrower than a word are shuffled as one.
template <class T>
__device__ inline T shuffle_xor(T x, u32 mask) {
    if constexpr (sizeof(T) < 4) {
        return T(__shfl_xor_sync(ALL_LANES, int(x), mask));
    } else {
        return __shfl_xor_sync(ALL_LANES, x, mask);
    }
}

// The values of a warp combined, in every lane.
template <class F, class T>
__device__ inline T combine_warp(T x) {
#pragma unroll
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        x = F::combine(x, shuffle_xor(x, mask));
    }
    return x;
}

// The values of a block of `threads` (a multiple of 32) combined, in every thread, always in the
// same order. All threads of the block take part.
template <class F, u32 threads, class T>
__device__ inline T combine_block(T x) {
    __shared__ T partial[threads / WARP];
    x = combine_warp<F>(x);
    if (threads == WARP) return x;
    __syncthreads(); // the one before may still be read
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    T y = partial[0];
    for (u32 i = 1; i < threads / WARP; i++) y = F::combine(y, partial[i]);
    return y;
}
