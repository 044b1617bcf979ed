// Rows that neighbouring threads share, element by element or by groups of neighbouring elements: group k is its
// thread's, k % lanes, from first to last, so a result may take the operand's place.
#pragma once
#include "reduce.cuh"

// A row of what a function gives for the places of its elements, which lie side by side.
template <class F>
struct RowOf {
    F f;

    template <class Index>
    __device__ auto operator[](Index i) const {
        return f(i);
    }
};

template <class F>
__device__ RowOf<F> row_of(F f) {
    return RowOf<F>{f};
}

// A row whose groups begin at multiples of their bytes, so that each is loaded at once.
template <class Row>
struct PackedRow {
    Row row;
};

template <class Row>
__device__ PackedRow<Row> packed(Row row) {
    return PackedRow<Row>{row};
}

// A row of groups that a function makes.
template <class F>
struct RowOfGroups {
    F f;
};

template <class F>
__device__ RowOfGroups<F> row_of_groups(F f) {
    return RowOfGroups<F>{f};
}

// The elements of a row from `first` on, `stride` apart.
template <u32 width, class T, class Row, class Index>
__device__ inline void load_group(T* x, const Row& row, Index first, Index stride) {
#pragma unroll
    for (u32 j = 0; j < width; j++) x[j] = row[(first + j) * stride];
}

template <u32 width, class T, class Row, class Index>
__device__ inline void load_group(T* x, const PackedRow<Row>& row, Index first, Index) {
    const auto pack = load_pack<width>(row.row + first);
#pragma unroll
    for (u32 j = 0; j < width; j++) x[j] = lane_of(pack, j)[0];
}

template <u32 width, class T, class F, class Index>
__device__ inline void load_group(T* x, const RowOfGroups<F>& row, Index first, Index) {
    row.f(first, x);
}

// A row in registers: each element is read once. Groups have `width` elements, of which rows have a multiple.
template <class T, class Index, u32 lanes, Index n, Index stride, u32 width = 1>
struct Held {
    static constexpr u32 COUNT = n > 0 ? u32((n + lanes * width - 1) / (lanes * width)) : 1;
    T x[COUNT * width];
    u32 lane, end;

    // Nothing is read for a row that is not there.
    template <class Row>
    __device__ Held(Row row, u32 lane, bool live) : lane(lane), end(live ? u32(n) : 0) {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) {
            const u32 first = (k * lanes + lane) * width;
            if (first < end) {
                load_group<width>(x + k * width, row, Index(first), stride);
            } else {
#pragma unroll
                for (u32 j = 0; j < width; j++) x[k * width + j] = T(0);
            }
        }
    }

    // For each group its first element's place in the row, and which one of the thread's it is.
    template <class Do>
    __device__ void each_group(Do f) const {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) {
            const u32 first = (k * lanes + lane) * width;
            if (first < end) f(Index(first), k * width);
        }
    }

    template <class Do>
    __device__ void each(Do f) const {
        each_group([&](Index first, u32 at) {
#pragma unroll
            for (u32 j = 0; j < width; j++) f(first + j, x[at + j]);
        });
    }

    // The thread's elements and those of another row.
    template <class Do>
    __device__ void each(const Held& other, Do f) const {
        each_group([&](Index first, u32 at) {
#pragma unroll
            for (u32 j = 0; j < width; j++) f(first + j, x[at + j], other.x[at + j]);
        });
    }

    // What `term` makes of the thread's elements, combined.
    template <class F, class Term>
    __device__ T combine(Term term) const {
        T acc = F::identity();
        each([&](Index, T x) { acc = F::combine(acc, term(x)); });
        return acc;
    }

    // What `term` makes of the thread's elements and those of another row, combined.
    template <class F, class Term>
    __device__ auto combine(const Held& other, Term term) const {
        auto acc = F::identity();
        each(other, [&](Index i, T x, T y) { acc = F::combine(acc, term(i, x, y)); });
        return acc;
    }
};

// A longer row, read again where it is needed again; four elements of a thread at a time.
template <class T, class Index, u32 lanes, Index n, Index stride, class Row = const T*>
struct Reread {
    Row row;
    u32 lane;
    Index end;

    __device__ Reread(Row row, u32 lane, bool live) : row(row), lane(lane), end(live ? n : 0) {}

    __device__ T at(Index i) const { return row[i * stride]; }

    template <class Do>
    __device__ void each(Do f) const {
        for (Index i = lane; i < end; i += 4 * lanes) {
            T x[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                if (i + k * lanes < end) x[k] = at(i + k * lanes);
            }
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                if (i + k * lanes < end) f(i + k * lanes, x[k]);
            }
        }
    }

    template <class Other, class Do>
    __device__ void each(const Other& other, Do f) const {
        for (Index i = lane; i < end; i += 4 * lanes) {
            T x[4], y[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                if (i + k * lanes < end) x[k] = at(i + k * lanes), y[k] = other.at(i + k * lanes);
            }
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                if (i + k * lanes < end) f(i + k * lanes, x[k], y[k]);
            }
        }
    }

    template <class F, class Term>
    __device__ T combine(Term term) const {
        return strided<F, T, Index>(lane, end, lanes, [=](Index i) { return term(at(i)); });
    }

    template <class F, class Other, class Term>
    __device__ auto combine(const Other& other, Term term) const {
        return strided<F, decltype(F::identity()), Index>(
            lane, end, lanes, [=](Index i) { return term(i, at(i), other.at(i)); });
    }
};

// A longer row of groups, read once from its first to its last; 16 elements of a thread are on their way at a time.
template <class T, class Index, u32 lanes, Index n, u32 width, class Row>
struct Streamed {
    static constexpr u32 AT_ONCE = 16;
    Row row;
    u32 lane;
    Index end;

    // `f` of so many elements, with `none` in the place of those that are not there.
    template <class Do>
    __device__ void each_some(T none, Do f) const {
        constexpr u32 groups = AT_ONCE / width, step = lanes * width;
        for (Index i = lane * width; i < end; i += groups * step) {
            T x[AT_ONCE];
#pragma unroll
            for (u32 g = 0; g < groups; g++) {
                const Index first = i + g * step;
                if (first < end) {
                    load_group<width>(x + g * width, row, first, Index(1));
                } else {
#pragma unroll
                    for (u32 j = 0; j < width; j++) x[g * width + j] = none;
                }
            }
            f(x);
        }
    }
};

template <class T, class Index, u32 lanes, Index n, u32 width, class Row>
__device__ Streamed<T, Index, lanes, n, width, Row> streamed(Row row, u32 lane, bool live) {
    return {row, lane, live ? n : 0};
}
