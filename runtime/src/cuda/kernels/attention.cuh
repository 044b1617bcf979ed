// Softmax attention: a block has ROWS queries, 16 for each of its warps, and meets the keys in
// tiles of COLUMNS; of gradients of keys and values it is the other way round. Scores are a
// warp's sums in registers. Every kernel computes a score as the same sum in the same order, so
// that gradients see the bits that maxima were taken of.
//
// In shared memory are the block's rows (two operands for gradients), where there is room, a tile
// of two operands, of gradients also the next one, which is copied meanwhile, and with `Fma` what a warp's probabilities go through on their way to be an
// operand; each row is filled up and 16 bytes longer, so that a warp meets every bank once.
#pragma once
#include "random.cuh"
#include "warp.cuh"

// Shared memory, from which 16 bytes can be loaded at once.
template <class T, u32 n>
struct alignas(16) Shared {
    T at[n];
};

// What is fixed of an attention: how it is multiplied, how it is shared out, and how queries meet
// keys. SHARED says that a block's rows are in shared memory, ALIGNED that 16 bytes of any operand
// can be loaded at once. GROUP matrices of queries share one of keys and one of values; these are
// QUERY_HEAD elements apart, and RESULT_HEAD those of results. Rows begin QUERY, KEY, VALUE and RESULT
// elements after the row before.
template <class P, class I, u32 ROWS_, u32 COLUMNS_, u32 DEPTH_, u32 WIDTH_, bool SHARED_,
          bool ALIGNED_, bool CAUSAL_, bool ZERO_, u32 GROUP_, u32 QUERY, u32 KEY, u32 VALUE,
          u32 RESULT, u64 QUERY_HEAD_, u64 RESULT_HEAD_>
struct Attention {
    typedef P Policy;
    typedef typename P::Sum T;
    typedef typename P::Tile Tile;
    static constexpr u32 ROWS = ROWS_, COLUMNS = COLUMNS_, DEPTH = DEPTH_, WIDTH = WIDTH_;
    static constexpr bool SHARED = SHARED_, ALIGNED = ALIGNED_, CAUSAL = CAUSAL_, ZERO = ZERO_;
    static constexpr u32 GROUP = GROUP_, RESULT_ROW = RESULT;
    static constexpr I QUERY_HEAD = QUERY_HEAD_, RESULT_HEAD = RESULT_HEAD_;
    static constexpr u32 THREADS = ROWS / WARP_ROWS * WARP;
    // Of a tile, and of a query, key or value.
    static constexpr u32 PIECES = COLUMNS / PIECE;
    static __device__ constexpr u32 filled(u32 n) {
        return (n + P::MULTIPLE - 1) / P::MULTIPLE * P::MULTIPLE;
    }
    static constexpr u32 DEEP = filled(DEPTH), WIDE = filled(WIDTH);
    // From one row to the next in shared memory.
    static __device__ constexpr u32 stride(u32 n) { return filled(n) + P::WIDE; }
    static constexpr u32 DEEP_STRIDE = stride(DEPTH), WIDE_STRIDE = stride(WIDTH);
    // Elements of shared memory: a row of the block's operands where they are there, and what a
    // warp needs besides.
    static __device__ constexpr u32 rows(u32 stride) { return SHARED ? ROWS * stride : P::WIDE; }
    static constexpr u32 STAGED = P::staged(COLUMNS);
    I queries, keys;

    __device__ bool counts(I row, I column) const {
        return row < queries && column < keys && (!CAUSAL || column <= row);
    }

    // True where all of a warp's rows count with all columns of a tile.
    __device__ bool all_count(I row0, I rows, I column0, I columns) const {
        return row0 + rows <= queries && column0 + columns <= keys &&
               (!CAUSAL || column0 + columns <= row0 + 1);
    }

    // The first key that no query of a block has to do with.
    __device__ I end_of_keys(I row0) const {
        return CAUSAL && row0 + ROWS < keys ? row0 + ROWS : keys;
    }

    // A probability from a score, the maximum of its row and the inverse of the row's sum.
    __device__ T probability(T score, T max, T inverse) const {
        return ZERO && max == -INFINITY ? T(0) : P::exp(score - max) * inverse;
    }

    // The place of a warp's rows in a block's.
    static __device__ u32 warp_row() { return threadIdx.x / WARP * WARP_ROWS; }

    // Queries and keys, of DEPTH elements, values and results, or their gradients, of WIDTH.
    template <class X>
    using Queries = Matrix<P, X, I, DEPTH, QUERY>;
    template <class X>
    using Keys = Matrix<P, X, I, DEPTH, KEY>;
    template <class X>
    using Values = Matrix<P, X, I, WIDTH, VALUE>;
    template <class X>
    using Results = Matrix<P, X, I, WIDTH, RESULT>;

    template <u32 N, u32 PITCH, class X>
    static __device__ void load_tile(Tile* tile, Matrix<P, X, I, N, PITCH> x, I first) {
        load_rows<P, THREADS, COLUMNS, stride(N), ALIGNED>(tile, x, first);
    }

    // The warp's rows of a block's, which are loaded for all of it where they are shared.
    template <u32 N, u32 PITCH, class X>
    static __device__ auto block_rows(Tile* tile, Matrix<P, X, I, N, PITCH> x, I first) {
        if constexpr (SHARED) {
            load_rows<P, THREADS, ROWS, stride(N), ALIGNED>(tile, x, first);
            tile += warp_row() * stride(N);
        }
        typedef Matrix<P, X, I, N, PITCH> M;
        return WarpRows<P, M, I, stride(N), SHARED>{tile, x, first + warp_row()};
    }
};

// What is known when a kernel is compiled.
template <bool B>
struct Known {
    static constexpr bool value = B;
};

// Calls step(Known<true>) or step(Known<false>): tests of single elements are left out where none is needed.
template <class Step>
__device__ inline void known(bool is, Step step) {
    if (is) {
        step(Known<true>{});
    } else {
        step(Known<false>{});
    }
}

// Calls store(row, column, x) for those elements of a warp's rows that a matrix has.
template <u32 N, class T, class I, class Store>
__device__ inline void store_rows(const T (&sums)[N][4], I first, I rows, u32 columns,
                                  Store store) {
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            const I row = first + lane_row() + e / 2 * 8;
            const u32 column = n * PIECE + lane_column() + e % 2;
            if (row < rows && column < columns) store(row, column, sums[n][e]);
        }
}

// The result of the queries from row0 on: store(row, column, x) takes its elements, and
// store_row(row, max, sum) the numbers of each row. score(row, column, product) is the score, and
// drop(row, column, x) what a dropout of probabilities makes of one.
template <class A, class I, class X, class Score, class Drop, class Store, class StoreRow>
__device__ inline void attention_rows(A a, X q, X k, X v, I row0, Score score, Drop drop,
                                      Store store, StoreRow store_row) {
    typedef typename A::T T;
    typedef typename A::Tile Tile;
    typedef typename A::Policy P;
    typedef typename A::template Queries<X> Queries;
    typedef typename A::template Keys<X> Keys;
    typedef typename A::template Values<X> Values;
    __shared__ Shared<Tile, A::rows(A::DEEP_STRIDE)> qs;
    __shared__ Shared<Tile, A::COLUMNS * A::DEEP_STRIDE> ks;
    __shared__ Shared<Tile, A::COLUMNS * A::WIDE_STRIDE> vs;
    __shared__ Shared<Tile, A::ROWS / WARP_ROWS * A::STAGED> staged;
    Tile* const own = staged.at + threadIdx.x / WARP * A::STAGED;
    const auto rows = A::block_rows(qs.at, Queries{q, a.queries}, row0);
    const I first = row0 + A::warp_row(), row = first + lane_row();
    T sums[A::WIDE / PIECE][4], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    clear(sums);
    const I end = a.end_of_keys(row0);
    A::load_tile(ks.at, Keys{k, a.keys}, I(0));
    for (I column0 = 0; column0 < end; column0 += A::COLUMNS) {
        wait_for_copies();
        __syncthreads(); // the keys are there, and the values before are no longer read
        A::load_tile(vs.at, Values{v, a.keys}, column0);
        T p[A::PIECES][4], greatest[2] = {max[0], max[1]}, more[2] = {0, 0};
        clear(p);
        P::template nt<A::DEEP, A::DEEP_STRIDE>(p, rows, ks.at);
        wait_for_copies();
        __syncthreads(); // the values are there, and these keys are no longer read
        if (column0 + A::COLUMNS < end) A::load_tile(ks.at, Keys{k, a.keys}, column0 + A::COLUMNS);
        known(a.all_count(first, WARP_ROWS, column0, A::COLUMNS), [&](auto all) {
#pragma unroll
            for (u32 n = 0; n < A::PIECES; n++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    const I at = row + e / 2 * 8, column = column0 + n * PIECE + lane_column() + e % 2;
                    const bool counts = all.value || a.counts(at, column);
                    p[n][e] = counts ? score(at, column, p[n][e]) : T(-INFINITY);
                }
        });
#pragma unroll
        for (u32 n = 0; n < A::PIECES; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) greatest[e / 2] = larger(greatest[e / 2], p[n][e]);
        // Scores of -inf are nothing, also before the first one that is more.
        T factor[2], base[2];
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            greatest[h] = row_max(greatest[h]);
            // Before the first score above -inf there is nothing to scale.
            factor[h] = max[h] == greatest[h] ? T(1) : P::exp(max[h] - greatest[h]);
            max[h] = greatest[h];
            base[h] = max[h] == -INFINITY ? T(0) : max[h];
        }
#pragma unroll
        for (u32 n = 0; n < A::PIECES; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                const I at = row + e / 2 * 8, column = column0 + n * PIECE + lane_column() + e % 2;
                const T x = P::exp(p[n][e] - base[e / 2]);
                more[e / 2] += x;
                p[n][e] = drop(at, column, x);
            }
#pragma unroll
        for (u32 h = 0; h < 2; h++) sum[h] = sum[h] * factor[h] + row_sum(more[h]);
#pragma unroll
        for (u32 n = 0; n < A::WIDE / PIECE; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) sums[n][e] *= factor[e / 2];
        P::template nn<A::WIDE_STRIDE>(sums, p, vs.at, own);
    }
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        T inverse = T(1) / sum[h];
        if (max[h] == -INFINITY) {
            sum[h] = A::ZERO ? T(0) : T(NAN);
            inverse = sum[h];
        }
        const I at = row + h * 8;
        if (at < a.queries && lane_column() == 0) store_row(at, max[h], sum[h]);
#pragma unroll
        for (u32 n = 0; n < A::WIDE / PIECE; n++) {
            sums[n][2 * h] *= inverse;
            sums[n][2 * h + 1] *= inverse;
        }
    }
    store_rows(sums, first, a.queries, A::WIDTH, store);
}

// Of a thread's two rows the sums of results times their gradients, of the columns that it has.
template <class A, class I, class X, class T>
__device__ inline void attention_sums_of_rows(A a, X y, X dy, I row, T (&total)[2]) {
#pragma unroll
    for (u32 n = 0; n < A::WIDE / PIECE; n++)
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            const u32 column = n * PIECE + lane_column() + e % 2;
            const I at = row + e / 2 * 8, i = at * A::RESULT_ROW + column;
            if (at < a.queries && column < A::WIDTH) total[e / 2] += T(y[i]) * T(dy[i]);
        }
}

// Gradients of the queries from row0 on, and `delta`, of each row the sum of its probabilities
// times their gradients: from the result y where that is there, else in a pass of its own.
// slope(product) is the derivative of a score by the product that it is made of.
template <class A, class I, class X, class T, class Score, class Slope, class Drop, class Store,
          bool THERE>
__device__ inline void attention_query_gradients(A a, X q, X k, X v, const T* max, const T* sum,
                                                 X dy, T* delta, X y, Known<THERE>, I row0,
                                                 Score score, Slope slope, Drop drop, Store store,
                                                 bool wanted) {
    typedef typename A::Tile Tile;
    typedef typename A::Policy P;
    typedef typename A::template Queries<X> Queries;
    typedef typename A::template Keys<X> Keys;
    typedef typename A::template Values<X> Values;
    typedef typename A::template Results<X> Results;
    __shared__ Shared<Tile, A::rows(A::DEEP_STRIDE)> qs;
    __shared__ Shared<Tile, A::rows(A::WIDE_STRIDE)> dys;
    __shared__ Shared<Tile, A::COLUMNS * A::DEEP_STRIDE> ks[2];
    __shared__ Shared<Tile, A::COLUMNS * A::WIDE_STRIDE> vs[2];
    __shared__ Shared<Tile, A::ROWS / WARP_ROWS * A::STAGED> staged;
    Tile* const own = staged.at + threadIdx.x / WARP * A::STAGED;
    const auto rows = A::block_rows(qs.at, Queries{q, a.queries}, row0);
    const auto outputs = A::block_rows(dys.at, Results{dy, a.queries}, row0);
    const I first = row0 + A::warp_row(), row = first + lane_row();
    T sums[A::DEEP / PIECE][4], greatest[2], inverse[2], total[2] = {0, 0};
    clear(sums);
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        const bool live = row + h * 8 < a.queries;
        greatest[h] = live ? max[row + h * 8] : T(0);
        inverse[h] = live ? T(1) / sum[row + h * 8] : T(0);
    }
    const I end = a.end_of_keys(row0);
    const auto load = [&](u32 to, I column0) {
        A::load_tile(ks[to].at, Keys{k, a.keys}, column0);
        A::load_tile(vs[to].at, Values{v, a.keys}, column0);
    };
    const auto note = [&] {
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            total[h] = row_sum(total[h]);
            const I at = row + h * 8;
            if (at < a.queries && lane_column() == 0) delta[at] = total[h];
        }
    };
    if constexpr (THERE) {
        attention_sums_of_rows(a, y, dy, row, total);
        note();
        if (!wanted) return;
    }
    u32 here = 0;
    load(here, 0);
#pragma unroll 1
    for (u32 pass = THERE; pass < 1 + u32(wanted); pass++) {
        for (I column0 = 0; column0 < end; column0 += A::COLUMNS, here ^= 1) {
            wait_for_copies();
            __syncthreads(); // this tile is there, and the one before is no longer read
            const bool is_last = column0 + A::COLUMNS >= end;
            // The tile after the last one is the first of the next pass.
            if (!is_last || pass < u32(wanted)) load(here ^ 1, is_last ? I(0) : column0 + A::COLUMNS);
            T s[A::PIECES][4], dp[A::PIECES][4];
            clear(s);
            clear(dp);
            P::template nt<A::DEEP, A::DEEP_STRIDE>(s, rows, ks[here].at);
            P::template nt<A::WIDE, A::WIDE_STRIDE>(dp, outputs, vs[here].at);
            known(a.all_count(first, WARP_ROWS, column0, A::COLUMNS), [&](auto all) {
#pragma unroll
                for (u32 n = 0; n < A::PIECES; n++)
#pragma unroll
                    for (u32 e = 0; e < 4; e++) {
                        const u32 h = e / 2;
                        const I at = row + h * 8, column = column0 + n * PIECE + lane_column() + e % 2;
                        T p = 0, d = 0;
                        if (all.value || a.counts(at, column)) {
                            p = a.probability(score(at, column, s[n][e]), greatest[h], inverse[h]);
                            d = drop(at, column, dp[n][e]);
                        }
                        if (pass == 0) {
                            total[h] += p * d;
                        } else {
                            s[n][e] = p * (d - total[h]) * slope(s[n][e]);
                        }
                    }
            });
            if (pass > 0) P::template nn<A::DEEP_STRIDE>(sums, s, ks[here].at, own);
        }
        if (pass == 0) note();
    }
    if (wanted) store_rows(sums, first, a.queries, A::DEPTH, store);
}

// Adds to `sums` the gradients of scores, before their scale and bound, of the queries from row0 on with the keys
// from column0 on: what these of one batch give to the gradient of a mask.
template <class A, class I, class X, class T, class Score, class Drop>
__device__ inline void attention_mask_gradients(A a, X q, X k, X v, const T* max, const T* sum,
                                                X dy, const T* delta, I row0, I column0,
                                                Score score, Drop drop, T (&sums)[A::PIECES][4]) {
    typedef typename A::Tile Tile;
    typedef typename A::Policy P;
    typedef typename A::template Queries<X> Queries;
    typedef typename A::template Keys<X> Keys;
    typedef typename A::template Values<X> Values;
    typedef typename A::template Results<X> Results;
    __shared__ Shared<Tile, A::rows(A::DEEP_STRIDE)> qs;
    __shared__ Shared<Tile, A::rows(A::WIDE_STRIDE)> dys;
    __shared__ Shared<Tile, A::COLUMNS * A::DEEP_STRIDE> ks;
    __shared__ Shared<Tile, A::COLUMNS * A::WIDE_STRIDE> vs;
    if (A::CAUSAL && column0 >= row0 + A::ROWS) return;
    __syncthreads(); // the operands of the batch before are no longer read
    const auto rows = A::block_rows(qs.at, Queries{q, a.queries}, row0);
    const auto outputs = A::block_rows(dys.at, Results{dy, a.queries}, row0);
    A::load_tile(ks.at, Keys{k, a.keys}, column0);
    A::load_tile(vs.at, Values{v, a.keys}, column0);
    wait_for_copies();
    __syncthreads(); // the operands are there
    const I row = row0 + A::warp_row() + lane_row();
    T s[A::PIECES][4], dp[A::PIECES][4];
    clear(s);
    clear(dp);
    P::template nt<A::DEEP, A::DEEP_STRIDE>(s, rows, ks.at);
    P::template nt<A::WIDE, A::WIDE_STRIDE>(dp, outputs, vs.at);
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        const I at = row + h * 8;
        const bool live = at < a.queries;
        const T greatest = live ? max[at] : T(0), inverse = live ? T(1) / sum[at] : T(0);
        const T total = live ? delta[at] : T(0);
#pragma unroll
        for (u32 n = 0; n < A::PIECES; n++)
#pragma unroll
            for (u32 e = 2 * h; e < 2 * h + 2; e++) {
                const I column = column0 + n * PIECE + lane_column() + e % 2;
                if (!a.counts(at, column)) continue;
                const T p = a.probability(score(at, column, s[n][e]), greatest, inverse);
                sums[n][e] += p * (drop(at, column, dp[n][e]) - total);
            }
    }
}

// Gradients of the keys and values from column0 on: store_key and store_value take elements. They
// are sums over the GROUP matrices of queries that share these, whose rows are counted on from
// matrix to matrix, for score and drop, too.
template <class A, class I, class X, class T, class Score, class Slope, class Drop, class StoreKey,
          class StoreValue>
__device__ inline void attention_key_gradients(A a, X q, X k, X v, const T* max, const T* sum, X dy,
                                               const T* delta, I column0, Score score, Slope slope,
                                               Drop drop, StoreKey store_key,
                                               StoreValue store_value) {
    typedef typename A::Tile Tile;
    typedef typename A::Policy P;
    typedef typename A::template Queries<X> Queries;
    typedef typename A::template Keys<X> Keys;
    typedef typename A::template Values<X> Values;
    typedef typename A::template Results<X> Results;
    __shared__ Shared<Tile, A::rows(A::DEEP_STRIDE)> ks;
    __shared__ Shared<Tile, A::rows(A::WIDE_STRIDE)> vs;
    __shared__ Shared<Tile, A::COLUMNS * A::DEEP_STRIDE> qs[2];
    __shared__ Shared<Tile, A::COLUMNS * A::WIDE_STRIDE> dys[2];
    __shared__ Shared<Tile, A::ROWS / WARP_ROWS * A::STAGED> staged;
    // Of each row of a tile its maximum, the inverse of its sum, and `delta`.
    __shared__ T numbers[2][3][A::COLUMNS];
    Tile* const own = staged.at + threadIdx.x / WARP * A::STAGED;
    const auto keys = A::block_rows(ks.at, Keys{k, a.keys}, column0);
    const auto values = A::block_rows(vs.at, Values{v, a.keys}, column0);
    const I first = column0 + A::warp_row(), column = first + lane_row();
    T of_key[A::DEEP / PIECE][4], of_value[A::WIDE / PIECE][4];
    clear(of_key);
    clear(of_value);
    const auto load = [&](u32 to, u32 head, I row0) {
        A::load_tile(qs[to].at, Queries{q + head * A::QUERY_HEAD, a.queries}, row0);
        A::load_tile(dys[to].at, Results{dy + head * A::RESULT_HEAD, a.queries}, row0);
    };
    // A thread's row of the next tile, where it has one: its numbers are on their way from memory meanwhile.
    static_assert(A::COLUMNS <= A::THREADS);
    T ahead[3];
    const auto look = [&](u32 head, I row0) {
        const I row = row0 + threadIdx.x, at = head * a.queries + row;
        const bool live = threadIdx.x < A::COLUMNS && row < a.queries;
        ahead[0] = live ? max[at] : T(0);
        ahead[1] = live ? sum[at] : T(1);
        ahead[2] = live ? delta[at] : T(0);
    };
    const auto note = [&](u32 to) {
        if (threadIdx.x >= A::COLUMNS) return;
        numbers[to][0][threadIdx.x] = ahead[0];
        numbers[to][1][threadIdx.x] = T(1) / ahead[1];
        numbers[to][2][threadIdx.x] = ahead[2];
    };
    const I begin = A::CAUSAL ? column0 : I(0);
    u32 here = 0;
    if (begin < a.queries) {
        load(here, 0, begin);
        look(0, begin);
        note(here);
    }
#pragma unroll 1
    for (u32 head = 0; head < A::GROUP; head++) {
        const I above = head * a.queries;
        for (I row0 = begin; row0 < a.queries; row0 += A::COLUMNS, here ^= 1) {
            wait_for_copies();
            __syncthreads(); // this tile is there, and the one before is no longer read
            const bool is_last = row0 + A::COLUMNS >= a.queries;
            const u32 next_head = head + u32(is_last);
            const I next_row = is_last ? begin : row0 + A::COLUMNS;
            const bool goes_on = next_head < A::GROUP;
            if (goes_on) {
                load(here ^ 1, next_head, next_row);
                look(next_head, next_row);
            }
            // Transposed: a key's scores with queries, and their gradients.
            T p[A::PIECES][4], ds[A::PIECES][4];
            clear(p);
            clear(ds);
            P::template nt<A::DEEP, A::DEEP_STRIDE>(p, keys, qs[here].at);
            P::template nt<A::WIDE, A::WIDE_STRIDE>(ds, values, dys[here].at);
            known(a.all_count(row0, A::COLUMNS, first, WARP_ROWS), [&](auto all) {
#pragma unroll
                for (u32 n = 0; n < A::PIECES; n++)
#pragma unroll
                    for (u32 j = 0; j < 2; j++) {
                        const u32 i = n * PIECE + lane_column() + j;
                        const I row = row0 + i;
                        const auto& of = numbers[here];
                        const T greatest = of[0][i], inverse = of[1][i], total = of[2][i];
#pragma unroll
                        for (u32 e = j; e < 4; e += 2) {
                            const I at = column + e / 2 * 8;
                            T of_p = 0, of_score = 0;
                            if (all.value || a.counts(row, at)) {
                                const T x = a.probability(score(above + row, at, p[n][e]), greatest, inverse);
                                of_score = x * (drop(above + row, at, ds[n][e]) - total) * slope(p[n][e]);
                                of_p = drop(above + row, at, x);
                            }
                            p[n][e] = of_p;
                            ds[n][e] = of_score;
                        }
                    }
            });
            P::template nn<A::WIDE_STRIDE>(of_value, p, dys[here].at, own);
            P::template nn<A::DEEP_STRIDE>(of_key, ds, qs[here].at, own);
            if (goes_on) note(here ^ 1);
        }
    }
    store_rows(of_key, first, a.keys, A::DEPTH, store_key);
    store_rows(of_value, first, a.keys, A::WIDTH, store_value);
}
