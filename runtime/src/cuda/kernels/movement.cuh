// Elements that change places.
#pragma once
#include "arenic.cuh"

// The widest word that a thread moves at once.
struct alignas(16) Quad {
    u64 halves[2];
};

constexpr u32 EXCHANGE_THREADS = 256;

// A tile of `A` by `B` elements of a matrix whose axes change places: `x` is contiguous along
// the axis of extent `a_extent`, `y` along the other, and so are neighbouring threads. The tile
// begins at (`a_first`, `b_first`). A row of padding keeps columns in different banks.
template <u32 A, u32 B, class T, class I>
__device__ inline void exchange(const T* x, T* y, I a_first, I b_first, I a_extent, I b_extent, I x_pitch, I y_pitch) {
    __shared__ T tile[B][A + 1];
#pragma unroll
    for (u32 e = threadIdx.x; e < A * B; e += EXCHANGE_THREADS) {
        const u32 a = e % A, b = e / A;
        if (a_first + a < a_extent && b_first + b < b_extent) {
            tile[b][a] = x[(b_first + b) * x_pitch + a_first + a];
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 e = threadIdx.x; e < A * B; e += EXCHANGE_THREADS) {
        const u32 a = e / B, b = e % B;
        if (a_first + a < a_extent && b_first + b < b_extent) {
            y[(a_first + a) * y_pitch + b_first + b] = tile[b][a];
        }
    }
}
