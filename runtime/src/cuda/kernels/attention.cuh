// Softmax attention: tiles of TILE queries and TILE keys in shared memory, a row of scores shared
// by a few threads. An `X` is read as a `const T*` is. Every kernel computes a score as the same sum in the same order, so that
// gradients see the bits that maxima were taken of.
#pragma once
#include "product.cuh"
#include "random.cuh"

// Threads that share a row.
constexpr u32 ATTENTION_LANES = 8;

// What is fixed of an attention: elements, and how queries meet keys.
template <class Element, class I, u32 TILE_, u32 DEPTH_, u32 WIDTH_, bool CAUSAL_, bool ZERO_,
          bool DROPS_>
struct Attention {
    typedef Element T;
    typedef I Index;
    static constexpr u32 TILE = TILE_, DEPTH = DEPTH_, WIDTH = WIDTH_;
    // Scores, elements of a query and elements of a value that one thread has.
    static constexpr u32 SCORES = (TILE + ATTENTION_LANES - 1) / ATTENTION_LANES;
    static constexpr u32 QUERY = (DEPTH + ATTENTION_LANES - 1) / ATTENTION_LANES;
    static constexpr u32 VALUE = (WIDTH + ATTENTION_LANES - 1) / ATTENTION_LANES;
    static constexpr bool CAUSAL = CAUSAL_, ZERO = ZERO_, DROPS = DROPS_;
    I queries, keys;

    __device__ bool counts(I row, I column) const {
        return row < queries && column < keys && (!CAUSAL || column <= row);
    }

    // The first key, or query, that no query of a tile, or key, has to do with.
    __device__ I end_of_keys(I row0) const {
        return CAUSAL && row0 + TILE < keys ? row0 + TILE : keys;
    }

    // A probability from a score, the maximum of its row and the inverse of the row's sum.
    __device__ T probability(T score, T max, T inverse) const {
        return ZERO && max == -INFINITY ? T(0) : exp_of(score - max) * inverse;
    }
};

// Rows from `first` on, zeros from `end` on.
template <class T, class X, class I, u32 ROWS, u32 WIDTH>
__device__ inline void load_rows(T (&tile)[ROWS][WIDTH], X x, I first, I end) {
    // A column more than is loaded keeps what a warp reads in different banks.
    constexpr u32 columns = WIDTH - 1;
#pragma unroll 2
    for (u32 e = threadIdx.x; e < ROWS * columns; e += ROWS * ATTENTION_LANES) {
        const u32 row = e / columns, column = e % columns;
        tile[row][column] = first + row < end ? x[(first + row) * columns + column] : T(0);
    }
}

template <class T, u32 WIDTH>
__device__ inline T dot_rows(const T (&a)[WIDTH], const T (&b)[WIDTH]) {
    T sum = 0;
#pragma unroll 4
    for (u32 i = 0; i < WIDTH - 1; i++) sum = multiply_add(a[i], b[i], sum);
    return sum;
}

// Adds to the thread's elements of a row the rows of a tile, each times its factor.
template <class T, u32 COUNT, u32 ROWS, u32 WIDTH, u32 N>
__device__ inline void add_rows(T (&sums)[COUNT], const T (&factors)[N],
                                const T (&rows)[ROWS][WIDTH], u32 lane) {
#pragma unroll 2
    for (u32 r = 0; r < ROWS; r++) {
        const T factor = factors[r];
#pragma unroll
        for (u32 j = 0; j < COUNT; j++) {
            const u32 e = lane + j * ATTENTION_LANES;
            if (e < WIDTH - 1) sums[j] = multiply_add(factor, rows[r][e], sums[j]);
        }
    }
}

// The result of the queries from row0 on: store(row, column, x) takes its elements, and
// store_row(row, max, sum) the numbers of each row. score(row, column, product) is the score, and
// drop(row, column, x) what a dropout of probabilities makes of one.
template <class A, class I, class X, class Score, class Drop, class Store, class StoreRow>
__device__ inline void attention_rows(A a, X q, X k, X v, I row0, Score score, Drop drop,
                                      Store store, StoreRow store_row) {
    typedef typename A::T T;
    __shared__ T qs[A::TILE][A::DEPTH + 1], ks[A::TILE][A::DEPTH + 1];
    __shared__ T vs[A::TILE][A::WIDTH + 1], ps[A::TILE][A::TILE + 1];
    const u32 r = threadIdx.x / ATTENTION_LANES, lane = threadIdx.x % ATTENTION_LANES;
    const I row = row0 + r;
    T sums[A::VALUE], s[A::SCORES], max = -INFINITY, sum = 0;
#pragma unroll
    for (u32 j = 0; j < A::VALUE; j++) sums[j] = 0;
    load_rows(qs, q, row0, a.queries);
    const I end = a.end_of_keys(row0);
    for (I column0 = 0; column0 < end; column0 += A::TILE) {
        __syncthreads(); // the tiles before may still be read
        load_rows(ks, k, column0, a.keys);
        load_rows(vs, v, column0, a.keys);
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < A::SCORES; i++) {
            const u32 c = lane + i * ATTENTION_LANES;
            if (c >= A::TILE) continue;
            const bool counts = a.counts(row, column0 + c);
            s[i] = counts ? score(row, column0 + c, dot_rows(qs[r], ks[c])) : T(-INFINITY);
            ps[r][c] = s[i];
        }
        __syncthreads();
        T greatest = max;
#pragma unroll 4
        for (u32 c = 0; c < A::TILE; c++) greatest = larger(greatest, ps[r][c]);
        __syncthreads();
        // Before the first score above -inf there is nothing to scale.
        const T factor = max == greatest ? T(1) : exp_of(max - greatest);
        max = greatest;
#pragma unroll
        for (u32 i = 0; i < A::SCORES; i++) {
            const u32 c = lane + i * ATTENTION_LANES;
            if (c < A::TILE) ps[r][c] = s[i] == -INFINITY ? T(0) : exp_of(s[i] - max);
        }
        __syncthreads();
        T more = 0;
#pragma unroll 4
        for (u32 c = 0; c < A::TILE; c++) more += ps[r][c];
        sum = sum * factor + more;
#pragma unroll
        for (u32 j = 0; j < A::VALUE; j++) sums[j] *= factor;
        if constexpr (A::DROPS) {
            __syncthreads(); // the sum is of all of them
#pragma unroll
            for (u32 i = 0; i < A::SCORES; i++) {
                const u32 c = lane + i * ATTENTION_LANES;
                if (c < A::TILE) ps[r][c] = drop(row, column0 + c, ps[r][c]);
            }
            __syncthreads();
        }
        add_rows(sums, ps[r], vs, lane);
    }
    if (row >= a.queries) return;
    T inverse = T(1) / sum;
    if (max == -INFINITY) {
        sum = A::ZERO ? T(0) : T(NAN);
        inverse = sum;
    }
    if (lane == 0) store_row(row, max, sum);
#pragma unroll
    for (u32 j = 0; j < A::VALUE; j++) {
        const u32 e = lane + j * ATTENTION_LANES;
        if (e < A::WIDTH) store(row, e, sums[j] * inverse);
    }
}

// Gradients of the queries from row0 on, and `delta`, of each row the sum of its probabilities
// times their gradients, which takes a pass of its own.
template <class A, class I, class X, class T, class Score, class Drop, class Store>
__device__ inline void attention_query_gradients(A a, X q, X k, X v, const T* max, const T* sum,
                                                 X dy, T* delta, T scale, I row0, Score score,
                                                 Drop drop, Store store, bool wanted) {
    __shared__ T qs[A::TILE][A::DEPTH + 1], ks[A::TILE][A::DEPTH + 1];
    __shared__ T dys[A::TILE][A::WIDTH + 1], vs[A::TILE][A::WIDTH + 1];
    __shared__ T ds[A::TILE][A::TILE + 1], shares[A::TILE][ATTENTION_LANES + 1];
    const u32 r = threadIdx.x / ATTENTION_LANES, lane = threadIdx.x % ATTENTION_LANES;
    const I row = row0 + r;
    const bool live = row < a.queries;
    const T greatest = live ? max[row] : T(0), inverse = live ? T(1) / sum[row] : T(0);
    T sums[A::QUERY], total = 0;
#pragma unroll
    for (u32 j = 0; j < A::QUERY; j++) sums[j] = 0;
    load_rows(qs, q, row0, a.queries);
    load_rows(dys, dy, row0, a.queries);
    const I end = a.end_of_keys(row0);
#pragma unroll 1
    for (u32 pass = 0; pass < 1 + u32(wanted); pass++) {
        for (I column0 = 0; column0 < end; column0 += A::TILE) {
            __syncthreads(); // the tiles before may still be read
            load_rows(ks, k, column0, a.keys);
            load_rows(vs, v, column0, a.keys);
            __syncthreads();
#pragma unroll
            for (u32 i = 0; i < A::SCORES; i++) {
                const u32 c = lane + i * ATTENTION_LANES;
                if (c >= A::TILE) continue;
                T p = 0, dp = 0;
                if (a.counts(row, column0 + c)) {
                    const T s = score(row, column0 + c, dot_rows(qs[r], ks[c]));
                    p = a.probability(s, greatest, inverse);
                    dp = drop(row, column0 + c, dot_rows(dys[r], vs[c]));
                }
                if (pass == 0) {
                    total += p * dp;
                } else {
                    ds[r][c] = p * (dp - total) * scale;
                }
            }
            if (pass == 0) continue;
            __syncthreads();
            add_rows(sums, ds[r], ks, lane);
        }
        if (pass > 0) break;
        shares[r][lane] = total;
        __syncthreads();
        total = 0;
        for (u32 i = 0; i < ATTENTION_LANES; i++) total += shares[r][i];
        if (live && lane == 0) delta[row] = total;
    }
    if (!live || !wanted) return;
#pragma unroll
    for (u32 j = 0; j < A::QUERY; j++) {
        const u32 e = lane + j * ATTENTION_LANES;
        if (e < A::DEPTH) store(row, e, sums[j]);
    }
}

// Gradients of the keys and values from column0 on: store_key and store_value take elements.
template <class A, class I, class X, class T, class Score, class Drop, class StoreKey,
          class StoreValue>
__device__ inline void attention_key_gradients(A a, X q, X k, X v, const T* max, const T* sum, X dy,
                                               const T* delta, T scale, I column0, Score score,
                                               Drop drop, StoreKey store_key,
                                               StoreValue store_value) {
    __shared__ T qs[A::TILE][A::DEPTH + 1], ks[A::TILE][A::DEPTH + 1];
    __shared__ T dys[A::TILE][A::WIDTH + 1], vs[A::TILE][A::WIDTH + 1];
    __shared__ T ps[A::TILE][A::TILE + 1], ds[A::TILE][A::TILE + 1];
    const u32 c = threadIdx.x / ATTENTION_LANES, lane = threadIdx.x % ATTENTION_LANES;
    const I column = column0 + c;
    T of_key[A::QUERY], of_value[A::VALUE];
#pragma unroll
    for (u32 j = 0; j < A::QUERY; j++) of_key[j] = 0;
#pragma unroll
    for (u32 j = 0; j < A::VALUE; j++) of_value[j] = 0;
    load_rows(ks, k, column0, a.keys);
    load_rows(vs, v, column0, a.keys);
    for (I row0 = A::CAUSAL ? column0 : I(0); row0 < a.queries; row0 += A::TILE) {
        __syncthreads(); // the tiles before may still be read
        load_rows(qs, q, row0, a.queries);
        load_rows(dys, dy, row0, a.queries);
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < A::SCORES; i++) {
            const u32 r = lane + i * ATTENTION_LANES;
            const I row = row0 + r;
            if (r >= A::TILE) continue;
            T p = 0, of_score = 0;
            if (a.counts(row, column)) {
                const T s = score(row, column, dot_rows(qs[r], ks[c]));
                p = a.probability(s, max[row], T(1) / sum[row]);
                const T dp = drop(row, column, dot_rows(dys[r], vs[c]));
                of_score = p * (dp - delta[row]) * scale;
                p = drop(row, column, p);
            }
            ps[c][r] = p;
            ds[c][r] = of_score;
        }
        __syncthreads();
        add_rows(of_value, ps[c], dys, lane);
        add_rows(of_key, ds[c], qs, lane);
    }
    if (column >= a.keys) return;
#pragma unroll
    for (u32 j = 0; j < A::QUERY; j++) {
        const u32 e = lane + j * ATTENTION_LANES;
        if (e < A::DEPTH) store_key(column, e, of_key[j]);
    }
#pragma unroll
    for (u32 j = 0; j < A::VALUE; j++) {
        const u32 e = lane + j * ATTENTION_LANES;
        if (e < A::WIDTH) store_value(column, e, of_value[j]);
    }
}
