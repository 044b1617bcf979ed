"""Regions of images, caches, pools that are undone, determinants, triangles over a spectrum."""

import itertools

import numpy as np
from frame import ALL, F32, F64, FLOATS, I64, Case, Draw, Operand, Result, fixed, row, untrained, wide

L = np.longdouble


@row("Det")
def determinant(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    n, batch = d.int(1, 3 if d.smooth else 5), d.shape(0, 2, zero=False)
    x = d.floats((*batch, n, n), dtype)
    y, size = np.zeros(batch, L), np.zeros(batch, L)
    for order in itertools.permutations(range(n)):
        swaps = sum(a > b for i, a in enumerate(order) for b in order[i + 1 :])
        term = np.prod([wide(x)[..., i, j] for i, j in enumerate(order)], 0)
        y, size = y + (-1) ** swaps * term, size + abs(term)
    return Case([Operand(x)], [Result(y, dtype, 8 * n, size)])


@row("MaxUnpool")
def max_unpool(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    n = d.int(1, 3)
    kernel = [d.int(1, 3) for _ in range(n)]
    strides = [d.int(1, 3) for _ in range(n)]
    inside = [d.int(1, 2 if d.smooth else 3) for _ in range(n)]
    image = [(i - 1) * s + k for i, s, k in zip(inside, strides, kernel)]
    pads = [d.int(0, (k - 1) // 2) for k in kernel]
    image = [max(1, i - 2 * p) for i, p in zip(image, pads)]
    if any((i - 1) * s + k - 2 * p < 1 for i, s, k, p in zip(inside, strides, kernel, pads)):
        pads, image = [0] * n, [(i - 1) * s + k for i, s, k in zip(inside, strides, kernel)]
    whole = [d.int(1, 2), d.int(1, 2), *image]
    x = d.floats((*whole[:2], *inside), dtype)
    # Each place once, as of pools that do not overlap.
    count = int(np.prod(whole))
    if x.size > count:
        x = d.floats((*whole[:2], *[1] * n), dtype)
        image = [k - 2 * p for k, p in zip(kernel, pads)]
        whole = [*whole[:2], *image]
        count = int(np.prod(whole))
    places = d.r.permutation(count)[: x.size].reshape(x.shape)
    y = np.zeros(count, L)
    y[places.ravel()] = wide(x).ravel()
    y = y.reshape(whole)
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads * 2}
    operands = [Operand(x), untrained(places.astype(np.int64))]
    if d.chance(0.4):
        more = [*whole[:2], *(i + d.int(0, 2) for i in image)]
        y = np.pad(y, [(0, m - w) for m, w in zip(more, whole)])
        operands.append(fixed(more))
    return Case(operands, [Result(y, dtype, 0)], attributes)


@row("TensorScatter")
def tensor_scatter(d: Draw) -> Case:
    dtype = d.dtype(FLOATS if d.smooth else ALL)
    shape = d.shape(2, 4, zero=False)
    axis = d.int(1, len(shape) - 1)
    x = d.tensor(shape, dtype)
    steps = d.int(1, shape[axis])
    update = d.tensor([steps if i == axis else e for i, e in enumerate(shape)], dtype)
    circular = d.chance(0.5)
    first = d.r.integers(0, shape[axis] if circular else shape[axis] - steps + 1, shape[0])
    given = d.chance(0.8)
    y = wide(x).copy()
    for b in range(shape[0]):
        for i in range(steps):
            to = (int(first[b]) if given else 0) + i
            np.moveaxis(y[b], axis - 1, 0)[to % shape[axis]] = np.moveaxis(wide(update)[b], axis - 1, 0)[i]
    attributes = {"mode": "circular"} if circular else {}
    attributes |= {} if axis == len(shape) - 2 and d.chance(0.5) else {"axis": axis - d.pick([0, len(shape)])}
    operands = [Operand(x), Operand(update), *([untrained(first.astype(I64))] if given else [])]
    return Case(operands, [Result(y, dtype, 0)], attributes)


@row("RoiAlign")
def roi_align(d: Draw) -> Case:
    """Samples away from elements, where others are around them."""
    dtype = d.dtype([F32, F64])
    images, channels, height, width = d.int(1, 2), d.int(1, 2), d.int(2, 4), d.int(2, 4)
    x = d.floats((images, channels, height, width), dtype)
    count, ratio, scale = d.int(1, 2), d.int(1, 2), d.pick([1.0, 0.5])
    cells = [d.int(1, 2), d.int(1, 2)]
    half = d.chance(0.5)
    # In a smooth case no maximum changes hands, and regions are as they are: samples may lie on edges.
    mode = "avg" if d.smooth else d.pick(["avg", "max"])
    corners = d.r.uniform(-1.0, [width, height], (count, 2))
    sizes = d.r.uniform(1.2, 4.0, (count, 2))
    regions = (np.concatenate([corners, corners + sizes], 1) / scale).astype(dtype)
    batches = d.r.integers(0, images, count)
    y, size = (np.zeros((count, channels, *cells), L) for _ in range(2))
    v = wide(x)
    for r in range(count):
        box = wide(regions)[r] * L(scale) - (L(0.5) if half else 0)
        extent = box[2:] - box[:2]
        if not half:
            extent = np.maximum(extent, 1)
        for cell in np.ndindex(*cells):
            terms = []
            for at in np.ndindex(ratio, ratio):
                down, right = (
                    box[1 - i] + (cell[i] + (at[i] + L(0.5)) / ratio) * extent[1 - i] / cells[i] for i in range(2)
                )
                inside = -1 <= down <= height and -1 <= right <= width
                for axis_corner in np.ndindex(2, 2):
                    weight, index = L(inside), []
                    for place, after, e in zip((down, right), axis_corner, (height, width)):
                        place = min(max(place, L(0)), L(e - 1))
                        before = int(np.floor(place))
                        weight *= place - before if after else 1 - (place - before)
                        index.append(min(before + after, e - 1))
                    terms.append(weight * v[batches[r], :, index[0], index[1]])
            to = (r, slice(None), *cell)
            y[to] = sum(terms) / ratio**2 if mode == "avg" else np.max(terms, 0)
            size[to] = np.sum(np.abs(terms), 0) + 8
    attributes = {
        "output_height": cells[0], "output_width": cells[1], "sampling_ratio": ratio, "spatial_scale": scale, "mode": mode,
        "coordinate_transformation_mode": "half_pixel" if half else "output_half_pixel",
    }  # fmt: skip
    operands = [Operand(x), untrained(regions), untrained(batches.astype(np.int64))]
    return Case(operands, [Result(y, dtype, 512, size)], attributes)


@row("MelWeightMatrix")
def mel_weights(d: Draw) -> Case:
    triangles, length, rate = d.int(1, 6), d.int(8, 40), d.pick([8000, 16000])
    low = float(d.r.uniform(0, rate / 8))
    high = float(d.r.uniform(low + 100, rate / 2 * 0.9))
    low, high = (float(np.float32(x)) for x in (low, high))
    step = np.linspace(0, triangles + 1, triangles + 2) / (triangles + 2)
    mel = [2595 * np.log10(1 + hertz / 700) for hertz in (low, high)]
    corners = 700 * (10 ** ((mel[0] + step * (mel[1] - mel[0])) / 2595) - 1)
    corners = np.floor((length + 1) * corners / rate).astype(int)
    y = np.zeros((length // 2 + 1, triangles), L)
    for i, (first, top, last) in enumerate(zip(corners, corners[1:], corners[2:])):
        for bin in range(first, top):
            y[bin, i] = L(int(bin - first)) / int(top - first)
        for bin in range(top, last):
            y[bin, i] = L(int(last - bin)) / int(last - top)
        y[top, i] = 1
    operands = [fixed(triangles), fixed(length), fixed(rate), fixed(low, np.float32), fixed(high, np.float32)]
    return Case(operands, [Result(y, F32, 4)])
