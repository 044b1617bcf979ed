// Products by a warp: 16 rows by pieces of 8 columns, of operands in shared memory.
//
// Of a piece each thread has four sums, those that it has after the tensor cores' instruction
// m16n8: with g = lane / 4 and t = lane % 4 these are (g, 2t), (g, 2t + 1), (g + 8, 2t) and
// (g + 8, 2t + 1). Whoever multiplies keeps to that, so that what is done with sums is written
// once, and a row of all pieces is shared by four lanes.
//
// A policy says what elements are in shared memory, `Tile`, and multiplies:
//   nt: sums(r, c) += Σ_k a(r, k) · b(c, k), where rows of both lie along k;
//   nn: sums(r, c) += Σ_k p(r, k) · b(k, c), where `p` are sums of such a product.
// `exp` is the exponential function, as near as what is multiplied. AS_THEY_ARE says that elements in
// shared memory are those of the operand, so that they can be copied while threads compute.
// For each 4 n multiplications of its own a thread loads 2 + 2 n words in `Fma`, n pieces being
// multiplied at once; with tensor cores a piece takes 2 words, and 4 more for all of them, which of
// `bf16` a warp loads four at a time.
#pragma once
#include "product.cuh"
#include "tensor_core.cuh"

constexpr u32 WARP_ROWS = 16;
constexpr u32 PIECE = 8;

// The first of a lane's rows, the other being 8 below, and the first of its two columns.
__device__ inline u32 lane_row() { return threadIdx.x % WARP / 4; }
__device__ inline u32 lane_column() { return threadIdx.x % 4 * 2; }

// Over the lanes that share a row.
template <class T>
__device__ inline T row_sum(T x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
template <class T>
__device__ inline T row_max(T x) {
    x = larger(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return larger(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

template <class T, u32 N>
__device__ inline void clear(T (&sums)[N][4]) {
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 e = 0; e < 4; e++) sums[n][e] = 0;
}

// --- by multiplications and additions -----------------------------------------------------------

template <class T>
struct Fma {
    typedef T Tile;
    typedef T Sum;
    // Elements that are loaded at once.
    static constexpr u32 WIDE = 16 / sizeof(T);
    // What rows are filled up to a multiple of.
    static constexpr u32 MULTIPLE = PIECE;
    // Elements of shared memory that `nn` needs for a warp.
    static __device__ constexpr u32 staged(u32 columns) { return WARP_ROWS * (columns + WIDE); }

    static constexpr bool AS_THEY_ARE = true;
    static __device__ T tile(T x) { return x; }
    static __device__ T exp(T x) { return exp_of(x); }

    template <u32 DEPTH, u32 STRIDE, u32 N, class Rows>
    static __device__ void nt(T (&sums)[N][4], Rows a, const T* b) {
        const u32 g = lane_row(), c = lane_column();
#pragma unroll 2
        for (u32 k = 0; k < DEPTH; k += WIDE) {
            const Pack<T, WIDE> upper = a.template pack<WIDE>(g, k);
            const Pack<T, WIDE> lower = a.template pack<WIDE>(g + 8, k);
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                const T* column = b + (n * PIECE + c) * STRIDE + k;
                const Pack<T, WIDE> left = load_pack<WIDE>(column);
                const Pack<T, WIDE> right = load_pack<WIDE>(column + STRIDE);
#pragma unroll
                for (u32 i = 0; i < WIDE; i++) {
                    sums[n][0] = multiply_add(upper.at[i], left.at[i], sums[n][0]);
                    sums[n][1] = multiply_add(upper.at[i], right.at[i], sums[n][1]);
                    sums[n][2] = multiply_add(lower.at[i], left.at[i], sums[n][2]);
                    sums[n][3] = multiply_add(lower.at[i], right.at[i], sums[n][3]);
                }
            }
        }
    }

    // A thread needs whole rows of `p`, which go through the warp's own shared memory.
    template <u32 STRIDE, u32 N, u32 M>
    static __device__ void nn(T (&sums)[N][4], const T (&p)[M][4], const T* b, T* staged) {
        constexpr u32 columns = M * PIECE, stride = columns + WIDE;
        const u32 g = lane_row(), c = lane_column();
        __syncwarp(); // rows may still be read
#pragma unroll
        for (u32 m = 0; m < M; m++)
#pragma unroll
            for (u32 e = 0; e < 4; e++)
                staged[(g + e / 2 * 8) * stride + m * PIECE + c + e % 2] = p[m][e];
        __syncwarp();
#pragma unroll 1
        for (u32 k = 0; k < columns; k += WIDE) {
            const Pack<T, WIDE> upper = load_pack<WIDE>(staged + g * stride + k);
            const Pack<T, WIDE> lower = load_pack<WIDE>(staged + (g + 8) * stride + k);
#pragma unroll
            for (u32 i = 0; i < WIDE; i++) {
                const T* row = b + (k + i) * STRIDE + c;
#pragma unroll
                for (u32 n = 0; n < N; n++) {
                    const Pack<T, 2> both = load_pack<2>(row + n * PIECE);
                    sums[n][0] = multiply_add(upper.at[i], both.at[0], sums[n][0]);
                    sums[n][1] = multiply_add(upper.at[i], both.at[1], sums[n][1]);
                    sums[n][2] = multiply_add(lower.at[i], both.at[0], sums[n][2]);
                    sums[n][3] = multiply_add(lower.at[i], both.at[1], sums[n][3]);
                }
            }
        }
    }
};

// --- by tensor cores ----------------------------------------------------------------------------

// The exponential function: the difference that it is taken of is exact to a bit of 2⁻²⁴, of which it
// loses no more than its argument is large.
__device__ inline float fast_exp(float x) { return fast_exp2(x * 1.44269504f); }

// Floats that are rounded to TF32 where they are put into shared memory, as `p` is here.
struct Tf32Core {
    typedef float Tile;
    typedef float Sum;
    static constexpr u32 WIDE = 4;
    static constexpr u32 MULTIPLE = 8;
    static __device__ constexpr u32 staged(u32) { return 1; }

    static constexpr bool AS_THEY_ARE = false;
    static __device__ float tile(float x) { return to_tf32(x); }
    static __device__ float exp(float x) { return fast_exp(x); }

    template <u32 DEPTH, u32 STRIDE, u32 N, class Rows>
    static __device__ void nt(float (&sums)[N][4], Rows a, const float* b) {
        const u32 g = lane_row(), t = lane_column() / 2;
#pragma unroll 2
        for (u32 k = 0; k < DEPTH; k += 8) {
            const float left[4] = {a.one(g, k + t), a.one(g + 8, k + t), a.one(g, k + t + 4),
                                   a.one(g + 8, k + t + 4)};
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                const float* column = b + (n * PIECE + g) * STRIDE + k + t;
                const float right[2] = {column[0], column[4]};
                multiply_tf32(sums[n], left, right);
            }
        }
    }

    // Terms may come in any order, if both operands agree: in place of columns t and t + 4 of `p`
    // a thread gives 2t and 2t + 1, which are its own.
    template <u32 STRIDE, u32 N, u32 M>
    static __device__ void nn(float (&sums)[N][4], const float (&p)[M][4], const float* b, float*) {
        const u32 g = lane_row(), c = lane_column();
#pragma unroll
        for (u32 m = 0; m < M; m++) {
            const float left[4] = {to_tf32(p[m][0]), to_tf32(p[m][2]), to_tf32(p[m][1]),
                                   to_tf32(p[m][3])};
            const float* row = b + (m * PIECE + c) * STRIDE + g;
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                const float right[2] = {row[n * PIECE], row[STRIDE + n * PIECE]};
                multiply_tf32(sums[n], left, right);
            }
        }
    }
};

// Elements of bf16, which `p` is rounded to.
struct Bf16Core {
    typedef Bf16 Tile;
    typedef float Sum;
    static constexpr u32 WIDE = 8;
    static constexpr u32 MULTIPLE = 16;
    static __device__ constexpr u32 staged(u32) { return 1; }

    static constexpr bool AS_THEY_ARE = true;
    static __device__ Bf16 tile(Bf16 x) { return x; }
    static __device__ float exp(float x) { return fast_exp(x); }

    // Two pieces at a time, of which a lane names the row of one matrix of four: those of 8 terms, the
    // next 8, and the same of the second piece.
    template <u32 DEPTH, u32 STRIDE, u32 N, class Rows>
    static __device__ void nt(float (&sums)[N][4], Rows a, const Bf16* b) {
        static_assert(N % 2 == 0);
        const u32 lane = threadIdx.x % WARP;
        const Bf16* column = b + (lane / 16 * PIECE + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll 4
        for (u32 k = 0; k < DEPTH; k += 16) {
            u32 left[4];
            a.operand(left, k);
#pragma unroll
            for (u32 n = 0; n < N; n += 2) {
                u32 right[4];
                load_matrices<false>(right, column + n * PIECE * STRIDE + k);
                multiply_bf16(sums[n], left, {right[0], right[1]});
                multiply_bf16(sums[n + 1], left, {right[2], right[3]});
            }
        }
    }

    // Two pieces of `p` are an operand as they are; rows of `b` are columns of the other.
    template <u32 STRIDE, u32 N, u32 M>
    static __device__ void nn(float (&sums)[N][4], const float (&p)[M][4], const Bf16* b, Bf16*) {
        static_assert(M % 2 == 0 && N % 2 == 0);
        const u32 lane = threadIdx.x % WARP;
        const Bf16* row = b + lane % 16 * STRIDE + lane / 16 * PIECE;
#pragma unroll
        for (u32 m = 0; m < M; m += 2) {
            u32 left[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                left[i] = to_bf16s(p[m + i / 2][i % 2 * 2], p[m + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (u32 n = 0; n < N; n += 2) {
                u32 right[4];
                load_matrices<true>(right, row + m * PIECE * STRIDE + n * PIECE);
                multiply_bf16(sums[n], left, {right[0], right[1]});
                multiply_bf16(sums[n + 1], left, {right[2], right[3]});
            }
        }
    }

    static __device__ u32 word(Pack<Bf16, 2> pair) {
        u32 bits;
        memcpy(&bits, &pair, sizeof bits);
        return bits;
    }
};

// --- operands -----------------------------------------------------------------------------------

// Rows of a matrix in memory: WIDTH elements each, which begin PITCH elements after those of the row before.
// Rows from `end` on are zero.
template <class P, class X, class I, u32 WIDTH, u32 PITCH>
struct Matrix {
    X elements;
    I end;

    __device__ typename P::Tile at(I row, u32 column) const {
        typedef typename P::Tile Tile;
        return row < end && column < WIDTH ? P::tile(elements[row * PITCH + column]) : Tile{};
    }
};

// What a warp multiplies: rows in shared memory, or where that has no room for them, in memory.
template <class P, class M, class I, u32 STRIDE, bool SHARED>
struct WarpRows {
    typedef typename P::Tile Tile;
    const Tile* tile;
    M matrix;
    // The warp's first row, in the matrix.
    I first;

    __device__ Tile one(u32 row, u32 k) const {
        if constexpr (SHARED) {
            return tile[row * STRIDE + k];
        } else {
            return matrix.at(first + row, k);
        }
    }

    // The terms from k to k + 16 of all rows as an operand of `multiply_bf16`.
    __device__ void operand(u32 (&words)[4], u32 k) const {
        if constexpr (SHARED) {
            const u32 lane = threadIdx.x % WARP;
            load_matrices<false>(words, tile + lane % 16 * STRIDE + k + lane / 16 * 8);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                words[i] = P::word(pack<2>(lane_row() + i % 2 * 8, k + lane_column() + i / 2 * 8));
        }
    }

    template <u32 n>
    __device__ Pack<Tile, n> pack(u32 row, u32 k) const {
        if constexpr (SHARED) {
            return load_pack<n>(tile + row * STRIDE + k);
        } else {
            Pack<Tile, n> pack;
#pragma unroll
            for (u32 i = 0; i < n; i++) pack.at[i] = matrix.at(first + row, k + i);
            return pack;
        }
    }
};

// Loads rows of a matrix from `first` on, filled up with zeros; they are there after
// `wait_for_copies` and a barrier.
template <class P, u32 THREADS, u32 ROWS, u32 STRIDE, bool ALIGNED, class X, class I, u32 WIDTH,
          u32 PITCH>
__device__ inline void load_rows(typename P::Tile* tile, Matrix<P, X, I, WIDTH, PITCH> from,
                                 I first) {
    typedef typename P::Tile Tile;
    constexpr u32 wide = ALIGNED ? P::WIDE : 1;
    constexpr u32 packs = (STRIDE - P::WIDE) / wide;
    static_assert(!ALIGNED || WIDTH % P::WIDE == 0);
#pragma unroll 4
    for (u32 e = threadIdx.x; e < ROWS * packs; e += THREADS) {
        const u32 row = e / packs, column = e % packs * wide;
        Tile* const to = tile + row * STRIDE + column;
        if constexpr (ALIGNED) {
            const bool is_there = first + row < from.end && column < WIDTH;
            const X x = from.elements + (is_there ? (first + row) * PITCH + column : I(0));
            if constexpr (P::AS_THEY_ARE) {
                copy_later(to, address_of(x), is_there);
            } else {
                Pack<Tile, wide> pack = load_pack<wide>(x);
#pragma unroll
                for (u32 i = 0; i < wide; i++) pack.at[i] = is_there ? P::tile(pack.at[i]) : Tile{};
                store_pack(to, pack);
            }
        } else {
            *to = from.at(first + row, column);
        }
    }
}
