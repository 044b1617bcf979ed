// Of a row its maximum and the sum of exp(x − maximum), in every thread of the row.
#pragma once
#include "rows.cuh"

template <class T>
struct Exponentials {
    T max, sum;
};

template <class T, class Index, u32 lanes, Index n, Index stride>
__device__ inline Exponentials<T> exponentials(const Held<T, Index, lanes, n, stride>& row) {
    T max = row.template combine<Largest<T>>([](T x) { return x; });
    max = combine_lanes<Largest<T>, lanes>(max);
    const T sum = row.template combine<Sum<T>>([=](T x) { return exp_of(x - max); });
    return {max, combine_lanes<Sum<T>, lanes>(sum)};
}

// In one pass: the sum so far is scaled when the maximum grows.
template <class T, class Index, u32 lanes, Index n, Index stride, class Row>
__device__ inline Exponentials<T> exponentials(const Reread<T, Index, lanes, n, stride, Row>& row) {
    const T none = Number<T>::lowest();
    T max = none, sum = 0;
    for (Index i = row.lane; i < row.end; i += 4 * lanes) {
        T x[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            const Index at = i + k * lanes;
            x[k] = at < row.end ? row.at(at) : none;
        }
        const T most = larger(larger(x[0], x[1]), larger(x[2], x[3]));
        if (!(most <= max)) {
            const T before = max;
            max = larger(max, most);
            sum *= exp_of(before - max);
        }
        // Of -inf alone there is nothing to sum yet.
        const T base = max == none ? T(0) : max;
        sum += (exp_of(x[0] - base) + exp_of(x[1] - base)) + (exp_of(x[2] - base) + exp_of(x[3] - base));
    }
    const T all = combine_lanes<Largest<T>, lanes>(max);
    // NaN where all are -inf, as exp(x − maximum) is.
    return {all, combine_lanes<Sum<T>, lanes>(sum * exp_of(max - all))};
}
