// Of a row its maximum and the sum of exp(x − maximum), in every thread of the row.
#pragma once
#include "rows.cuh"

template <class T>
struct Exponentials {
    T max, sum;
};

template <class T, class Index, u32 lanes, Index n, Index stride, u32 width>
__device__ inline Exponentials<T> exponentials(const Held<T, Index, lanes, n, stride, width>& row) {
    T max = row.template combine<Largest<T>>([](T x) { return x; });
    max = combine_lanes<Largest<T>, lanes>(max);
    const T sum = row.template combine<Sum<T>>([=](T x) { return exp_of(x - max); });
    return {max, combine_lanes<Sum<T>, lanes>(sum)};
}

// Of some elements after others: the sum so far is scaled when the maximum grows.
template <class T>
struct RunningExponentials {
    T max = Number<T>::lowest(), sum = 0;

    template <u32 n>
    __device__ void see(const T (&x)[n]) {
        T most = x[0];
#pragma unroll
        for (u32 k = 1; k < n; k++) most = larger(most, x[k]);
        if (!(most <= max)) {
            const T before = max;
            max = larger(max, most);
            sum *= exp_of(before - max);
        }
        // Of -inf alone there is nothing to sum yet.
        const T base = max == Number<T>::lowest() ? T(0) : max;
#pragma unroll
        for (u32 k = 0; k < n; k += 4) {
            sum += (exp_of(x[k] - base) + exp_of(x[k + 1] - base)) + (exp_of(x[k + 2] - base) + exp_of(x[k + 3] - base));
        }
    }

    template <u32 lanes>
    __device__ Exponentials<T> joined() const {
        const T all = combine_lanes<Largest<T>, lanes>(max);
        // NaN where all are -inf, as exp(x − maximum) is.
        return {all, combine_lanes<Sum<T>, lanes>(sum * exp_of(max - all))};
    }
};

template <class T, class Index, u32 lanes, Index n, Index stride, class Row>
__device__ inline Exponentials<T> exponentials(const Reread<T, Index, lanes, n, stride, Row>& row) {
    RunningExponentials<T> e;
    for (Index i = row.lane; i < row.end; i += 4 * lanes) {
        T x[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            const Index at = i + k * lanes;
            x[k] = at < row.end ? row.at(at) : Number<T>::lowest();
        }
        e.see(x);
    }
    return e.template joined<lanes>();
}

template <class T, class Index, u32 lanes, Index n, u32 width, class Row>
__device__ inline Exponentials<T> exponentials(const Streamed<T, Index, lanes, n, width, Row>& row) {
    RunningExponentials<T> e;
    row.each_some(Number<T>::lowest(), [&](const auto& x) { e.see(x); });
    return e.template joined<lanes>();
}
