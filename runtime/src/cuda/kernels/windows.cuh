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

enum class Coordinates { half_pixel, half_pixel_symmetric, pytorch_half_pixel, align_corners, asymmetric, tf_crop_and_resize };
enum class Interpolation { round_prefer_floor, round_prefer_ceil, floor, ceil, linear, cubic };

// An axis that is resized.
struct ResizeAxis {
    double input;
    double output;
    double scale;
    // The region of interest.
    double start;
    double end;
    // The cubic's coefficient.
    double a;
    Coordinates coordinates;
    Interpolation interpolation;
    bool exclude_outside;
    bool antialias;
};

// The source coordinate of an index; false outside of the region of interest.
__device__ inline bool source_of(const ResizeAxis& axis, double index, double& at) {
    // The output's extent before rounding.
    const double exact = axis.scale * axis.input;
    const double half_pixel = (index + 0.5) / axis.scale - 0.5;
    switch (axis.coordinates) {
    case Coordinates::half_pixel: at = half_pixel; break;
    case Coordinates::half_pixel_symmetric:
        at = axis.input / 2.0 * (1.0 - axis.output / exact) + half_pixel;
        break;
    case Coordinates::pytorch_half_pixel: at = axis.output == 1.0 ? -0.5 : half_pixel; break;
    case Coordinates::align_corners:
        at = axis.output == 1.0 ? 0.0 : index * (axis.input - 1.0) / (exact - 1.0);
        break;
    case Coordinates::asymmetric: at = index / axis.scale; break;
    case Coordinates::tf_crop_and_resize: {
        const double length = axis.end - axis.start;
        at = axis.start * (axis.input - 1.0) + (axis.output == 1.0
            ? length * (axis.input - 1.0) / 2.0
            : index * length * (axis.input - 1.0) / (exact - 1.0));
        return at >= 0.0 && at <= axis.input - 1.0;
    }
    }
    return true;
}

// Keys' cubic.
__device__ inline double cubic_of(double x, double a) {
    if (x <= 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0) return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    return 0.0;
}

// The source elements that an index reads and their weights, in a table of `taps` for every
// index. The first source is negative outside of the region of interest.
__device__ inline void resize_entry(const ResizeAxis& axis, u64 index, u32 taps, i64* sources, double* weights) {
    sources += index * taps;
    weights += index * taps;
    const i64 last = i64(axis.input) - 1;
    double at;
    if (!source_of(axis, double(index), at)) {
        for (u32 t = 0; t < taps; t++) sources[t] = -1;
        return;
    }
    double nearest = 0;
    switch (axis.interpolation) {
    case Interpolation::round_prefer_floor: nearest = ceil(at - 0.5); break;
    case Interpolation::round_prefer_ceil: nearest = floor(at + 0.5); break;
    case Interpolation::floor: nearest = floor(at); break;
    case Interpolation::ceil: nearest = ceil(at); break;
    default: {
        const bool cubic = axis.interpolation == Interpolation::cubic;
        // A shrinking axis stretches the antialiasing kernel.
        const double stretch = axis.antialias && axis.scale < 1.0 ? axis.scale : 1.0;
        const i64 first = cast<i64>(ceil(at)) - cast<i64>(ceil((cubic ? 2.0 : 1.0) / stretch));
        double total = 0;
        for (u32 t = 0; t < taps; t++) {
            const i64 tap = first + t;
            const double distance = abs_of((double(tap) - at) * stretch);
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
    const i64 source = cast<i64>(nearest);
    sources[0] = source < 0 ? 0 : source > last ? last : source;
    weights[0] = 1;
}
