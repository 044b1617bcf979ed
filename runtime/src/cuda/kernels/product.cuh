// Matrix products, also those that convolutions are: one tile of results per block.
#pragma once
#include "arenic.cuh"

// Extents of a tile of results, and how many terms of its sums are loaded at a time.
constexpr u32 PRODUCT_TILE = 64;
constexpr u32 PRODUCT_DEPTH = 16;
// Rows, and columns, of results of one thread.
constexpr u32 PRODUCT_EACH = 4;
constexpr u32 PRODUCT_THREADS = 256;

__device__ inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }
template <class T>
__device__ inline T multiply_add(T a, T b, T c) {
    return add(mul(a, b), c);
}

// Sums of a(row, k) · b(k, column) over k from `first` to `last`, for the tile of results that
// begins at row0 and column0; store(row, column, sum) takes those within m × n. Each sum runs
// in the order of k. K_INNER says of an operand that elements of neighbouring k lie together,
// so that neighbouring threads load them.
template <class T, bool A_K_INNER, bool B_K_INNER, class I, class A, class B, class Store>
__device__ inline void product_tile(I m, I n, I first, I last, I row0, I column0, A a, B b,
                                    Store store) {
    // A column more keeps the elements that a warp writes in different banks.
    __shared__ T left[PRODUCT_DEPTH][PRODUCT_TILE + 1];
    __shared__ T right[PRODUCT_DEPTH][PRODUCT_TILE + 1];
    constexpr u32 across = PRODUCT_TILE / PRODUCT_EACH;
    const u32 tx = threadIdx.x % across, ty = threadIdx.x / across;
    T sums[PRODUCT_EACH][PRODUCT_EACH];
#pragma unroll
    for (u32 i = 0; i < PRODUCT_EACH; i++)
#pragma unroll
        for (u32 j = 0; j < PRODUCT_EACH; j++) sums[i][j] = 0;
    for (I k0 = first; k0 < last; k0 += PRODUCT_DEPTH) {
#pragma unroll
        for (u32 e = threadIdx.x; e < PRODUCT_TILE * PRODUCT_DEPTH; e += PRODUCT_THREADS) {
            const u32 r = A_K_INNER ? e / PRODUCT_DEPTH : e % PRODUCT_TILE;
            const u32 k = A_K_INNER ? e % PRODUCT_DEPTH : e / PRODUCT_TILE;
            left[k][r] = row0 + r < m && k0 + k < last ? a(row0 + r, k0 + k) : T(0);
        }
#pragma unroll
        for (u32 e = threadIdx.x; e < PRODUCT_TILE * PRODUCT_DEPTH; e += PRODUCT_THREADS) {
            const u32 c = B_K_INNER ? e / PRODUCT_DEPTH : e % PRODUCT_TILE;
            const u32 k = B_K_INNER ? e % PRODUCT_DEPTH : e / PRODUCT_TILE;
            right[k][c] = column0 + c < n && k0 + k < last ? b(k0 + k, column0 + c) : T(0);
        }
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < PRODUCT_DEPTH; k++) {
            T x[PRODUCT_EACH], y[PRODUCT_EACH];
#pragma unroll
            for (u32 i = 0; i < PRODUCT_EACH; i++) x[i] = left[k][ty + i * across];
#pragma unroll
            for (u32 j = 0; j < PRODUCT_EACH; j++) y[j] = right[k][tx + j * across];
#pragma unroll
            for (u32 i = 0; i < PRODUCT_EACH; i++)
#pragma unroll
                for (u32 j = 0; j < PRODUCT_EACH; j++)
                    sums[i][j] = multiply_add(x[i], y[j], sums[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < PRODUCT_EACH; i++)
#pragma unroll
        for (u32 j = 0; j < PRODUCT_EACH; j++) {
            const I row = row0 + ty + i * across, column = column0 + tx + j * across;
            if (row < m && column < n) store(row, column, sums[i][j]);
        }
}
