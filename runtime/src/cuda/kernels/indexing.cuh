// Updates that combine with what is there, in their order.
//
// Every update has a place, and every place an owner: one of `shares` warps, by the place's
// lowest bits. Each warp walks all updates in order and takes those of its own places, so no two
// warps meet at one, and no order is left to chance.
#pragma once
#include "arenic.cuh"

template <class T>
struct Replacement {
    static __device__ T combine(T, T update) { return update; }
};

// As truth values are added.
struct Either {
    static __device__ uint8_t combine(uint8_t a, uint8_t b) { return a | b; }
};

// Updates of a warp's lane that are looked up at once.
constexpr u32 LOOKED_UP = 4;

// What another lane holds; types narrower than a word are shuffled as one.
template <class T>
__device__ inline T shuffle_from(T x, u32 lane) {
    if constexpr (sizeof(T) < 4) {
        return T(__shfl_sync(ALL_LANES, int(x), lane));
    } else {
        return __shfl_sync(ALL_LANES, x, lane);
    }
}

// Calls `f(update, place)` in every lane of a warp for 32 updates at a time, in order; the place
// is negative where it is not the warp's own. `place(update)` may be negative, too.
template <u32 shares, class I, class Place, class F>
__device__ inline void for_own(I count, u32 share, const Place& place, const F& f) {
    const u32 lane = threadIdx.x % WARP;
    for (I first = 0; first < count; first += LOOKED_UP * WARP) {
        i64 own[LOOKED_UP];
#pragma unroll
        for (u32 k = 0; k < LOOKED_UP; k++) {
            const I update = first + k * WARP + lane;
            own[k] = update < count ? place(update) : -1;
            if (u32(own[k]) % shares != share) own[k] = -1;
        }
#pragma unroll
        for (u32 k = 0; k < LOOKED_UP; k++) {
            if (__ballot_sync(ALL_LANES, own[k] >= 0) == 0) continue;
            f(first + k * WARP + lane, own[k]);
        }
    }
}

// One warp's share of updates of single elements. Those of 32 that meet at one place combine in
// registers, in the order of their lanes.
template <class Combine, u32 shares, class T, class I, class Place>
__device__ inline void scatter_elements(T* y, I pitch, const T* updates, I stride, I count, u32 share, const Place& place) {
    for_own<shares>(count, share, place, [=](I update, i64 own) {
        const u32 lane = threadIdx.x % WARP;
        const T mine = own >= 0 ? updates[update * stride] : T(0);
        T* const to = y + I(own) * pitch;
        const u32 together = __match_any_sync(ALL_LANES, (unsigned long long)own);
        u32 rest = own >= 0 ? together : 0;
        // One lane reads the place and writes it; a vote does not order what others read.
        const bool leads = own >= 0 && __ffs(together) - 1 == int(lane);
        T sum = leads ? *to : T(0);
        while (__ballot_sync(ALL_LANES, rest != 0) != 0) {
            const T next = shuffle_from(mine, rest != 0 ? __ffs(rest) - 1 : lane);
            if (rest != 0) sum = Combine::combine(sum, next);
            rest &= rest - 1;
        }
        if (leads) *to = sum;
        // The next 32 see it.
        __syncwarp();
    });
}

// One warp's share of updates of rows of `width` elements, `pitch` apart on either side. A column
// stays with one lane.
template <class Combine, u32 shares, class T, class I, class Place>
__device__ inline void scatter_rows(T* y, const T* updates, I pitch, I width, I count, u32 share, const Place& place) {
    for_own<shares>(count, share, place, [=](I update, i64 own) {
        const u32 lane = threadIdx.x % WARP;
        for (u32 rest = __ballot_sync(ALL_LANES, own >= 0); rest != 0; rest &= rest - 1) {
            const u32 source = __ffs(rest) - 1;
            T* const to = y + I(shuffle_from(own, source)) * pitch;
            const T* const from = updates + (update - lane + source) * pitch;
            for (I column = lane; column < width; column += WARP) {
                to[column] = Combine::combine(to[column], from[column]);
            }
        }
    });
}
