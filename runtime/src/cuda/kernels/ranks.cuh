// Sums of what ranks have sent.
#pragma once
#include "arenic.cuh"

// A run of `len` elements of this rank's part of a tensor, from `within` on, added by rank. Parts begin `part`
// elements apart, 0 where every rank sums all; the tensor has `whole` elements. The other ranks' terms are in slots,
// each `slot` elements apart. The result is the whole tensor, or the part, with zeros where the tensor has ended.
template <u32 RANKS, bool IS_WHOLE, class W, class T>
__device__ inline void sum_of_ranks(const T* x, const T* terms, u64 rank, u64 part, u64 within, u64 slot, u64 whole,
                                    u64 len, T* y) {
    const u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= len) return;
    const u64 e = rank * part + within + i;
    if (e >= whole) {
        if (!IS_WHOLE) y[within + i] = T(W(0));
        return;
    }
    const auto term = [&](u64 r) { return W(r == rank ? x[e] : terms[r * slot + i]); };
    W sum = term(0);
    for (u64 r = 1; r < RANKS; ++r) sum = sum + term(r);
    y[IS_WHOLE ? e : within + i] = T(sum);
}
