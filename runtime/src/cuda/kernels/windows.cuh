// What pools and resizes need besides loops over taps.
#pragma once
#include "arenic.cuh"

// Taps of an axis that see its elements: tap `t` sees `origin + t * dilation`.
template <class S>
__device__ inline S taps_inside(S origin, S dilation, S taps, S extent) {
    const S first = origin < 0 ? (dilation - 1 - origin) / dilation : 0;
    const S end = origin < extent ? (extent - 1 - origin) / dilation + 1 : 0;
    const S last = end < taps ? end : taps;
    return last > first ? last - first : 0;
}

// The largest element so far and its place; negative where there is none. The first of equal
// ones, but the last NaN.
template <class T>
struct Best {
    T value;
    i64 place;

    // Places come in order.
    __device__ void see(T x, i64 at) {
        if (x > value || is_nan(x) || place < 0) {
            value = x;
            place = at;
        }
    }

    // What other taps of the window saw.
    __device__ void join(Best other) {
        if (other.place < 0) return;
        bool better = place < 0;
        if (is_nan(other.value)) {
            better = better || !is_nan(value) || other.place > place;
        } else {
            better = better || other.value > value || (other.value == value && other.place < place);
        }
        if (better) *this = other;
    }

    // What the lanes of a warp saw, in every lane.
    __device__ void join_warp() {
        for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
            join({shuffle_xor(value, mask), shuffle_xor(place, mask)});
        }
    }
};

enum class Interpolation { round_prefer_floor, round_prefer_ceil, floor, ceil, linear, cubic };

// An axis that is resized.
struct ResizeAxis {
    i64 last;
    // What distances are multiplied by where the axis shrinks.
    double stretch;
    // The cubic's coefficient.
    double a;
    Interpolation interpolation;
    bool exclude_outside;
    bool antialias;
};

// A place between elements: `whole + part / divisor`, the part below the divisor, which has no more
// than 62 bits.
struct Position {
    i64 whole;
    u64 part;
    u64 divisor;

    __device__ i64 ceil() const { return whole + (part > 0); }

    __device__ double distance(i64 element) const {
        return abs_of(double(element - whole) - double(part) / double(divisor));
    }
};

// Index `i` lies at `(i * step + start) / divisor`, where step and start are wholes of the divisor
// and what is left of them.
struct Positions {
    i64 step;
    u64 step_part;
    i64 start;
    u64 start_part;
    u64 divisor;

    // Long multiplication, bit by bit, as the product may have more than 64 bits.
    __device__ bool at(u64 index, Position& at) const {
        at = {0, 0, divisor};
        for (int bit = 31; bit >= 0; bit--) {
            at.whole *= 2;
            add(at, at.part);
            if (index >> bit & 1) add(at, step_part);
        }
        add(at, start_part);
        at.whole += step * i64(index) + start;
        return true;
    }

    __device__ void add(Position& at, u64 part) const {
        at.part += part;
        if (at.part >= divisor) {
            at.part -= divisor;
            at.whole++;
        }
    }
};

// Index `i` lies at `start * last + i * length * last / span`, or in the middle where it is the only
// one; false outside of the region of interest.
struct Crop {
    double start;
    double length;
    double last;
    double span;
    bool centred;
    u64 divisor;

    __device__ bool at(u64 index, Position& at) const {
        const double way = centred ? length * last / 2.0 : double(index) * length * last / span;
        const double x = start * last + way;
        if (!(x >= 0.0 && x <= last)) return false;
        const double whole = floor(x);
        at = {cast<i64>(whole), u64(ceil((x - whole) * double(divisor))), divisor};
        return true;
    }
};

// Keys' cubic.
__device__ inline double cubic_of(double x, double a) {
    if (x <= 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0) return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    return 0.0;
}

// The source elements that an index reads and their weights, in a table of `taps` for every
// index. The first source is negative outside of the region of interest.
template <class Places>
__device__ inline void resize_entry(const Places& places, const ResizeAxis& axis, u64 index, u32 taps, i64* sources, double* weights) {
    sources += index * taps;
    weights += index * taps;
    const i64 last = axis.last;
    Position at;
    if (!places.at(index, at)) {
        for (u32 t = 0; t < taps; t++) sources[t] = -1;
        return;
    }
    i64 source = at.whole;
    switch (axis.interpolation) {
    case Interpolation::round_prefer_floor: source += at.part > at.divisor - at.part; break;
    case Interpolation::round_prefer_ceil: source += at.part >= at.divisor - at.part; break;
    case Interpolation::floor: break;
    case Interpolation::ceil: source = at.ceil(); break;
    default: {
        const bool cubic = axis.interpolation == Interpolation::cubic;
        const i64 first = at.ceil() - taps / 2;
        double total = 0;
        for (u32 t = 0; t < taps; t++) {
            const i64 tap = first + t;
            const double distance = at.distance(tap) * axis.stretch;
            double weight = cubic ? cubic_of(distance, axis.a) : distance < 1.0 ? 1.0 - distance : 0.0;
            if (axis.exclude_outside && (tap < 0 || tap > last)) weight = 0;
            sources[t] = tap < 0 ? 0 : tap > last ? last : tap;
            weights[t] = weight;
            total += weight;
        }
        if ((axis.antialias || axis.exclude_outside) && total != 0) {
            for (u32 t = 0; t < taps; t++) weights[t] /= total;
        }
        return;
    }
    }
    sources[0] = source < 0 ? 0 : source > last ? last : source;
    weights[0] = 1;
}
