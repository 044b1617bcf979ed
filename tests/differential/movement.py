"""Operators that move elements, count them, or make constants."""

import math
from fractions import Fraction

import numpy as np
import onnx

from frame import (
    ALL,
    BOOL,
    F32,
    F64,
    FLOATS,
    I32,
    I64,
    NUMBERS,
    Case,
    Draw,
    Operand,
    Result,
    fixed,
    is_float,
    row,
    untrained,
    wide,
)

L = np.longdouble


def moved(x: np.ndarray, y: np.ndarray) -> list[Result]:
    """What has the operand's very elements."""
    return [Result(wide(y), x.dtype, 0)]


@row("Concat", "com.microsoft.ConcatTraining")
def concat(d: Draw) -> Case:
    dtype = d.dtype(ALL if d.name == "Concat" else FLOATS)
    shape = d.shape(1)
    axis = d.axis(len(shape))
    parts = []
    for _ in range(d.int(1, 4)):
        part = list(shape)
        part[axis] = d.int(0 if not d.smooth else 1, 4)
        parts.append(d.tensor(part, dtype, special=True))
    outputs = moved(parts[0], np.concatenate(parts, axis))
    if d.name == "ConcatTraining" and d.chance(0.5):
        outputs.append(Result(np.array([p.shape[axis] for p in parts]), I64))
    return Case([Operand(p) for p in parts], outputs, {"axis": axis})


@row("Constant")
def constant(d: Draw) -> Case:
    kind = d.pick(["value", "value_float", "value_floats", "value_int", "value_ints"])
    match kind:
        case "value":
            x = d.tensor(d.shape(), d.dtype(ALL), special=True)
            return Case([], moved(x, x), {"value": onnx.numpy_helper.from_array(x)})
        case "value_float" | "value_floats":
            x = d.floats(() if kind == "value_float" else (d.int(1, 4),), F32)
        case _:
            x = d.tensor(() if kind == "value_int" else (d.int(1, 4),), I64, special=True)
    return Case([], moved(x, x), {kind: x.item() if x.ndim == 0 else x.tolist()})


@row("ConstantOfShape")
def constant_of_shape(d: Draw) -> Case:
    shape = d.shape()
    if d.chance(0.3):
        return Case([fixed(shape)], [Result(np.zeros(shape), F32, 0)])
    x = d.tensor((1,), d.dtype(ALL), special=True)
    return Case(
        [fixed(shape)],
        moved(x, np.full(shape, x[0], x.dtype)),
        {"value": onnx.numpy_helper.from_array(x)},
    )


@row("EyeLike")
def eye_like(d: Draw) -> Case:
    dtype = d.dtype([F32, F64, I32, I64])
    x = d.tensor(d.shape(2, 2), dtype)
    k = d.int(-3, 3)
    return Case([untrained(x)], moved(x, np.eye(*x.shape, k, dtype=dtype)), {"k": k})


@row("DepthToSpace")
def depth_to_space(d: Draw) -> Case:
    b, mode = d.int(1, 3), d.pick(["DCR", "CRD"])
    n, c, h, w = d.extent(), d.int(1, 2), d.extent(), d.extent()
    x = d.tensor((n, c * b * b, h, w) if not d.smooth else (1, c * b * b, 1, 2), d.dtype(ALL))
    n, _, h, w = x.shape
    if mode == "DCR":
        y = x.reshape(n, b, b, c, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return Case(
        [Operand(x)], moved(x, y.reshape(n, c, h * b, w * b)), {"blocksize": b, "mode": mode}
    )


@row("SpaceToDepth")
def space_to_depth(d: Draw) -> Case:
    b = d.int(1, 3)
    n, c, h, w = d.int(1, 2), d.int(1, 3), d.int(1, 2), d.int(1, 2)
    x = d.tensor((n, c, h * b, w * b), d.dtype(ALL))
    y = x.reshape(n, c, h, b, w, b).transpose(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h, w)
    return Case([Operand(x)], moved(x, y), {"blocksize": b})


@row("Expand")
def expand(d: Draw) -> Case:
    part, target = d.broadcast(2)
    x = d.tensor(part, d.dtype(ALL), special=True)
    return Case(
        [Operand(x), fixed(target)], moved(x, np.broadcast_to(x, np.broadcast_shapes(part, target)))
    )


@row("Flatten")
def flatten(d: Draw) -> Case:
    x = d.tensor(d.shape(), d.dtype(ALL))
    axis = d.int(-x.ndim, x.ndim)
    attributes = {} if x.ndim >= 1 and d.chance(0.2) else {"axis": axis}
    axis = attributes.get("axis", 1)
    at = axis + x.ndim if axis < 0 else axis
    rows = int(np.prod(x.shape[:at]))
    return Case([Operand(x)], moved(x, x.reshape(rows, int(np.prod(x.shape[at:])))), attributes)


def indices(d: Draw, shape, extent: int) -> np.ndarray:
    """Some count from the end."""
    return d.r.integers(-extent, extent, shape).astype(d.pick([I32, I64]))


@row("Gather")
def gather(d: Draw) -> Case:
    x = d.tensor(d.shape(1, 3, zero=False), d.dtype(ALL), special=True)
    axis = d.axis(x.ndim)
    at = indices(d, d.shape(0, 2), x.shape[axis])
    return Case([Operand(x), Operand(at)], moved(x, np.take(x, at, axis)), {"axis": axis})


@row("GatherElements")
def gather_elements(d: Draw) -> Case:
    x = d.tensor(d.shape(1, 3, zero=False), d.dtype(ALL), special=True)
    axis = d.axis(x.ndim)
    shape = [d.int(1, n) for n in x.shape]
    shape[axis] = d.int(0 if not d.smooth else 1, 5)
    at = indices(d, shape, x.shape[axis])
    part = x[tuple(slice(None) if i == axis % x.ndim else slice(n) for i, n in enumerate(shape))]
    y = np.take_along_axis(part, at % x.shape[axis], axis)
    return Case([Operand(x), Operand(at)], moved(x, y), {"axis": axis})


@row("GatherND")
def gather_nd(d: Draw) -> Case:
    x = d.tensor(d.shape(2, 4, zero=False), d.dtype(ALL), special=True)
    batch = d.int(0, x.ndim - 1)
    length = d.int(1, x.ndim - batch)
    middle = d.shape(0, 1, zero=False)
    at = np.stack(
        [indices(d, x.shape[:batch] + middle, n) for n in x.shape[batch : batch + length]], -1
    )
    at = at.astype(I64)
    y = np.empty(x.shape[:batch] + middle + x.shape[batch + length :], x.dtype)
    for i in np.ndindex(*x.shape[:batch], *middle):
        y[i] = x[i[:batch] + tuple(at[i])]
    return Case(
        [Operand(x), Operand(at)],
        moved(x, y),
        {"batch_dims": batch} if batch or d.chance(0.5) else {},
    )


@row("OneHot")
def one_hot(d: Draw) -> Case:
    at = d.tensor(d.shape(0, 3), d.dtype([I32, I64, F32]), -4, 9)
    if at.dtype == F32:
        at = np.rint(at)
    depth, values = d.int(1, 5), d.tensor((2,), d.dtype(ALL))
    axis = d.int(-at.ndim - 1, at.ndim)
    # What is out of range has no hot element.
    hot = np.expand_dims(np.where((at >= -depth) & (at < depth), at % depth, -1), axis)
    shape = [1] * (at.ndim + 1)
    shape[axis] = depth
    y = np.where(hot == np.arange(depth).reshape(shape), values[1], values[0])
    return Case(
        [Operand(at, trained=False), fixed(depth), Operand(values)],
        moved(values, y),
        {"axis": axis},
    )


@row("Pad")
def pad(d: Draw) -> Case:
    dtype = d.dtype([t for t in ALL if t != BOOL])
    x = d.tensor(d.shape(1, 4, zero=False), dtype)
    mode = d.pick(["constant", "constant", "edge", "reflect", "wrap"])
    given = d.chance(0.4)
    on = d.axes(x.ndim) if given else list(range(x.ndim))
    if not on:
        on = [0]
    pads = {}
    for a in on:
        n = x.shape[a]
        least = -((n - 1) // 2) if mode == "constant" else 0
        most = n - 1 if mode == "reflect" else n if mode == "wrap" else 3
        pads[a % x.ndim] = (d.int(least, most), d.int(least, most))
    value = d.tensor((), dtype, -2, 2) if mode == "constant" and d.chance(0.6) else None
    cut = x[
        tuple(
            slice(max(0, -pads.get(i, (0, 0))[0]), n - max(0, -pads.get(i, (0, 0))[1]))
            for i, n in enumerate(x.shape)
        )
    ]
    added = [tuple(max(0, p) for p in pads.get(i, (0, 0))) for i in range(x.ndim)]
    if mode == "constant":
        y = np.pad(cut, added, mode, constant_values=0 if value is None else value)
    else:
        y = np.pad(cut, added, mode)
    flat = [pads[a % x.ndim][k] for k in (0, 1) for a in on]
    inputs = [Operand(x), fixed(flat)]
    if value is not None or given:
        inputs.append(None if value is None else Operand(value, fixed=True, trained=False))
    if given:
        inputs.append(fixed(on, d.pick([np.int32, np.int64])))
    return Case(inputs, moved(x, y), {"mode": mode})


@row("Range")
def range_(d: Draw) -> Case:
    dtype = d.dtype([F32, F64, np.dtype(np.int16), I32, I64])
    start, delta = d.int(-5, 5), d.pick([-2, -1, 1, 2, 3])
    limit = start + d.int(-1, 8) * delta + d.int(0, 1)
    if is_float(dtype):
        start, delta, limit = start / 2, delta / 4, limit / 4
    y = np.arange(start, limit, delta)
    y = y.astype(np.longdouble) if is_float(dtype) else y.astype(dtype)
    return Case([fixed(v, dtype) for v in (start, limit, delta)], [Result(y, dtype, 1)])


@row("Reshape")
def reshape(d: Draw) -> Case:
    x = d.tensor(d.shape(), d.dtype(ALL))
    target = list(x.shape)
    d.r.shuffle(target)
    if d.chance(0.5) and len(target) > 1:
        target = [target[0] * target[1], *target[2:]]
    target += [1] * d.int(0, 2)
    y = x.reshape(target)
    allow_zero = int(x.size == 0)
    if not allow_zero:
        target = [
            0 if i < x.ndim and n == x.shape[i] and d.chance(0.3) else n
            for i, n in enumerate(target)
        ]
        if target and d.chance(0.4):
            target[d.int(0, len(target) - 1)] = -1
    return Case([Operand(x), fixed(target)], moved(x, y), {"allowzero": allow_zero})


def combine(reduction: str, a, b):
    match reduction:
        case "add":
            return a + b
        case "mul":
            return a * b
        case "max":
            return np.maximum(a, b)
        case "min":
            return np.minimum(a, b)
        case _:
            return b


def reduction(d: Draw) -> str:
    return d.pick(["none", "add"] if d.smooth else ["none", "add", "mul", "max", "min"])


@row("ScatterElements")
def scatter_elements(d: Draw) -> Case:
    how = reduction(d)
    x = d.tensor(d.shape(1, 3, zero=False), d.dtype(ALL if how == "none" else NUMBERS))
    axis = d.axis(x.ndim)
    shape = [d.int(1, n) for n in x.shape]
    # Where one place is written twice, the order of writes is not defined.
    order = np.argsort(d.r.random((*x.shape,)), axis)
    at = order[tuple(slice(n) for n in shape)].astype(d.pick([I32, I64]))
    if how != "none":
        at = d.r.integers(0, x.shape[axis], shape).astype(at.dtype)
    at = np.where(d.r.random(shape) < 0.3, at - x.shape[axis], at).astype(at.dtype)
    updates = d.tensor(shape, x.dtype)
    y, magnitude = wide(x).copy(), np.abs(wide(x)) if is_float(x.dtype) else None
    for i in np.ndindex(*shape):
        to = list(i)
        to[axis] = int(at[i])
        y[tuple(to)] = combine(how, y[tuple(to)], wide(updates)[i])
        if magnitude is not None:
            magnitude[tuple(to)] = (
                magnitude[tuple(to)] + np.abs(wide(updates)[i]) if how == "add" else 0
            )
    attributes = {"axis": axis} | ({"reduction": how} if how != "none" or d.chance(0.5) else {})
    units = 8 if how in ("add", "mul") else 0
    return Case(
        [Operand(x), Operand(at), Operand(updates)],
        [Result(y, x.dtype, units, 0.0 if magnitude is None else magnitude)],
        attributes,
    )


@row("ScatterND")
def scatter_nd(d: Draw) -> Case:
    how = reduction(d)
    x = d.tensor(d.shape(1, 3, zero=False), d.dtype(ALL if how == "none" else NUMBERS))
    length = d.int(1, x.ndim)
    places = list(np.ndindex(*x.shape[:length]))
    count = d.int(0 if not d.smooth else 1, min(4, len(places)))
    if how == "none":
        chosen = [places[i] for i in d.r.permutation(len(places))[:count]]
    else:
        chosen = [d.pick(places) for _ in range(count)]
    at = np.array(chosen, np.int64).reshape(count, length)
    at = np.where(d.r.random(at.shape) < 0.3, at - np.array(x.shape[:length]), at)
    updates = d.tensor((count, *x.shape[length:]), x.dtype)
    y, magnitude = wide(x).copy(), np.abs(wide(x)) if is_float(x.dtype) else None
    for i, to in enumerate(chosen):
        y[to] = combine(how, y[to], wide(updates)[i])
        if magnitude is not None:
            magnitude[to] = magnitude[to] + np.abs(wide(updates)[i])
    units = 8 if how in ("add", "mul") else 0
    return Case(
        [Operand(x), Operand(at), Operand(updates)],
        [Result(y, x.dtype, units, magnitude if how == "add" and magnitude is not None else 0.0)],
        {"reduction": how} if how != "none" or d.chance(0.5) else {},
    )


@row("Shape")
def shape_(d: Draw) -> Case:
    x = d.tensor(d.shape(), d.dtype(ALL))
    given = {name: d.int(-6, 6) for name in d.some(["start", "end"])}
    return Case(
        [Operand(x, trained=False)],
        [Result(np.array(x.shape[given.get("start") : given.get("end")], np.int64), I64)],
        given,
    )


@row("Size")
def size(d: Draw) -> Case:
    x = d.tensor(d.shape(), d.dtype(ALL))
    return Case([Operand(x, trained=False)], [Result(np.array(x.size), I64)])


@row("Slice")
def slice_(d: Draw) -> Case:
    x = d.tensor(d.shape(1, 4), d.dtype(ALL), special=True)
    on = d.axes(x.ndim) if d.chance(0.7) else list(range(x.ndim))
    steps = [d.pick([1, 1, 2, 3, -1, -2]) for _ in on] if d.chance(0.6) else [1] * len(on)
    starts, ends = (
        [d.pick([d.int(-9, 9), d.int(-2, 2), 2**63 - 1, -(2**62)]) for _ in on] for _ in range(2)
    )
    if d.smooth:
        starts, ends = [0 if s > 0 else -1 for s in steps], [
            2**63 - 1 if s > 0 else -(2**63 - 1) for s in steps
        ]
    at = [slice(None)] * x.ndim
    for a, start, end, step in zip(on, starts, ends, steps):
        at[a] = slice(*ends_of(start, end, step, x.shape[a]), step)
    # NumPy has no word for an end before the first element.
    y = x[
        tuple(
            slice(
                s.start,
                None if s.step is not None and s.step < 0 and s.stop == -1 else s.stop,
                s.step,
            )
            for s in at
        )
    ]
    kind = d.pick([np.int32, np.int64]) if max(map(abs, [0, *starts, *ends])) < 2**31 else np.int64
    inputs = [Operand(x), fixed(starts, kind), fixed(ends, kind)]
    if on != list(range(x.ndim)) or any(s != 1 for s in steps) or d.chance(0.5):
        inputs.append(fixed(on, kind))
        if any(s != 1 for s in steps) or d.chance(0.5):
            inputs.append(fixed(steps, kind))
    return Case(inputs, moved(x, y))


def ends_of(start: int, end: int, step: int, n: int) -> tuple[int, int]:
    """As ONNX clamps them."""
    start, end = (v + n if v < 0 else v for v in (start, end))
    if step > 0:
        return min(max(start, 0), n), min(max(end, 0), n)
    start, end = min(max(start, 0), n - 1), min(max(end, -1), n - 1)
    # An axis without elements has none to begin at.
    return (start, end) if n else (0, 0)


@row("Split", "com.microsoft.SplitTraining")
def split(d: Draw) -> Case:
    x = d.tensor(d.shape(1, 3), d.dtype(ALL if d.name == "Split" else FLOATS))
    axis = d.axis(x.ndim)
    n = x.shape[axis]
    count = d.int(1, 3)
    if d.name == "Split" and n > 0 and d.chance(0.4):
        size = -(-n // count)
        count = -(-n // size)
        sizes = [size] * (count - 1) + [n - size * (count - 1)]
        inputs, attributes = [Operand(x)], {"num_outputs": count}
    else:
        cuts = sorted(d.int(0, n) for _ in range(count - 1))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, n])]
        inputs, attributes = [Operand(x), fixed(sizes)], {}
    parts = np.split(x, np.cumsum(sizes)[:-1], axis)
    return Case(inputs, [r for p in parts for r in moved(x, p)], attributes | {"axis": axis})


@row("Squeeze")
def squeeze(d: Draw) -> Case:
    x = d.tensor([1 if d.chance(0.4) else n for n in d.shape()], d.dtype(ALL))
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    if d.chance(0.3):
        return Case([Operand(x)], moved(x, np.squeeze(x)))
    on = [i - x.ndim if d.chance(0.3) else i for i in d.some(ones)]
    return Case([Operand(x), fixed(on)], moved(x, np.squeeze(x, tuple(on))))


@row("Unsqueeze")
def unsqueeze(d: Draw) -> Case:
    x = d.tensor(d.shape(0, 3), d.dtype(ALL))
    rank = x.ndim + d.int(1, 2)
    on = list(d.r.permutation(rank)[: rank - x.ndim])
    on = [int(i) - rank if d.chance(0.3) else int(i) for i in on]
    return Case([Operand(x), fixed(on)], moved(x, np.expand_dims(x, tuple(on))))


@row("Tile")
def tile(d: Draw) -> Case:
    x = d.tensor(d.shape(1, 3), d.dtype(ALL))
    repeats = [d.int(0 if not d.smooth else 1, 3) for _ in x.shape]
    return Case([Operand(x), fixed(repeats)], moved(x, np.tile(x, repeats)))


@row("Transpose")
def transpose(d: Draw) -> Case:
    x = d.tensor(d.shape(), d.dtype(ALL), special=True)
    perm = [int(i) for i in d.r.permutation(x.ndim)]
    if not perm or d.chance(0.2):
        return Case([Operand(x)], moved(x, x.T))
    return Case([Operand(x)], moved(x, x.transpose(perm)), {"perm": perm})


@row("Trilu")
def trilu(d: Draw) -> Case:
    x = d.tensor(d.shape(2), d.dtype(ALL))
    k, upper = d.int(-6, 6), d.int(0, 1)
    inputs = [Operand(x)] + ([fixed(k)] if d.chance(0.7) else [])
    k = k if len(inputs) > 1 else 0
    rows, columns = np.indices(x.shape[-2:])
    stays = columns - rows >= k if upper else columns - rows <= k
    return Case(inputs, moved(x, np.where(stays, x, np.zeros((), x.dtype))), {"upper": upper})


def rounded(x: Fraction, mode: str) -> int:
    half = Fraction(1, 2)
    match mode:
        case "floor":
            return math.floor(x)
        case "ceil":
            return math.ceil(x)
        case "round_prefer_ceil":
            return math.floor(x + half)
    return math.ceil(x - half)


def source(i: int, n: int, size: int, how: str) -> Fraction:
    """Where element `i` of `size` lies among `n`, exactly."""
    match how:
        case "align_corners":
            return Fraction(i * (n - 1), size - 1) if size > 1 else Fraction(0)
        case "asymmetric":
            return Fraction(i * n, size)
        case "pytorch_half_pixel" if size == 1:
            return Fraction(0)
    return Fraction((2 * i + 1) * n, 2 * size) - Fraction(1, 2)


@row("Resize")
def resize(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    x = d.floats([d.int(1, 7) for _ in range(d.int(1, 3 if d.smooth else 4))], dtype)
    by_sizes = d.chance(0.7)
    # A scale is an f32, which not every ratio is.
    sizes = [d.int(1, 9) if by_sizes else n * d.pick([1, 2, 4]) for n in x.shape]
    mode = d.pick(["nearest", "linear"])
    how = d.pick(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    nearest = d.pick(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    y, magnitude = wide(x), np.abs(wide(x))
    for axis, (n, size) in enumerate(zip(x.shape, sizes)):
        at = [source(i, n, size, how) for i in range(size)]
        if n == size:
            at = [Fraction(i) for i in range(size)]
        if mode == "nearest":
            taken = [min(max(rounded(a, nearest), 0), n - 1) for a in at]
            y, magnitude = np.take(y, taken, axis), np.take(magnitude, taken, axis)
        else:
            low = [math.floor(a) for a in at]
            part = np.array([L((a - l).numerator) / (a - l).denominator for a, l in zip(at, low)])
            part = part.reshape([size if i == axis else 1 for i in range(x.ndim)])
            a, b = (np.clip(np.array(low) + k, 0, n - 1) for k in (0, 1))
            y = np.take(y, a, axis) * (1 - part) + np.take(y, b, axis) * part
            magnitude = np.take(magnitude, a, axis) + np.take(magnitude, b, axis)
    scales = [s / n for s, n in zip(sizes, x.shape)]
    given = [None, None, fixed(sizes)] if by_sizes else [None, fixed(scales, np.float32)]
    attributes = {"mode": mode, "coordinate_transformation_mode": how}
    if mode == "nearest":
        attributes["nearest_mode"] = nearest
    return Case([Operand(x), *given], [Result(y, dtype, 8, magnitude)], attributes)


@row("CenterCropPad")
def center_crop_pad(d: Draw) -> Case:
    dtype = d.dtype(ALL)
    x = d.tensor(d.shape(1, 4, zero=False), dtype)
    axes = list(range(x.ndim))
    attributes = {}
    if d.chance(0.5):
        d.r.shuffle(axes)
        axes = axes[: d.int(1, x.ndim)]
        attributes["axes"] = [a - x.ndim if d.chance(0.3) else a for a in axes]
    wanted = [d.int(1, 7) for _ in axes]
    y = wide(x)
    for a, n in zip(axes, wanted):
        extent = y.shape[a]
        if n <= extent:
            y = np.take(y, range((extent - n) // 2, (extent - n) // 2 + n), a)
        else:
            around = [(0, 0)] * y.ndim
            around[a] = ((n - extent) // 2, n - extent - (n - extent) // 2)
            y = np.pad(y, around)
    return Case([Operand(x), fixed(wanted)], [Result(y, dtype, 0)], attributes)


@row("Compress")
def compress(d: Draw) -> Case:
    dtype = d.dtype(ALL)
    x = d.tensor(d.shape(1, 3, zero=False), dtype)
    axis = d.axis(x.ndim) if d.chance(0.6) else None
    extent = x.size if axis is None else x.shape[axis]
    holds = d.r.random(d.int(1, extent)) < 0.7
    holds[0] |= d.smooth
    y = np.compress(holds, wide(x), axis)
    attributes = {} if axis is None else {"axis": axis}
    return Case([Operand(x), fixed(holds, BOOL)], [Result(y, dtype, 0)], attributes)
