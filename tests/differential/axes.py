"""Reductions, and what goes along axes: softmax, normalisations, sorting."""

import numpy as np

from frame import (
    BF16,
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


def reduced(name: str, x, axes, keep: bool):
    """The reduction, and the magnitude of its terms."""
    along = {"axis": axes, "keepdims": keep}
    n = np.prod([x.shape[a] for a in axes]) if axes else 1
    sums = lambda v: np.sum(v, **along, dtype=v.dtype)
    size = sums(np.abs(x)) if is_wide(x) else 0.0
    match name:
        case "ReduceSum" | "ReduceSumTraining":
            return sums(x), size
        case "ReduceMean":
            return sums(x) / n, size / max(n, 1)
        case "ReduceL1":
            return sums(np.abs(x)), size
        case "ReduceL2":
            return np.sqrt(sums(x * x)), 0.0
        case "ReduceSumSquare":
            return sums(x * x), 0.0
        case "ReduceLogSum":
            return np.log(sums(x)), 1.0
        case "ReduceLogSumExp":
            return np.log(sums(np.exp(x))), np.abs(x).max(initial=1.0)
        case "ReduceProd":
            return np.prod(x, **along, dtype=x.dtype), 0.0
    f = np.max if name == "ReduceMax" else np.min
    if x.dtype == BOOL:
        return (np.any if name == "ReduceMax" else np.all)(x, **along), 0.0
    least = name == "ReduceMax"
    if is_wide(x):
        start = -np.inf if least else np.inf
    else:
        info = np.iinfo(x.dtype)
        start = info.min if least else info.max
    return f(x, **along, initial=start), 0.0


def is_wide(x) -> bool:
    return x.dtype == L


REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]
INTEGER = [I32, I64]


@row(*(f"Reduce{f}" for f in REDUCTIONS), "com.microsoft.ReduceSumTraining")
def reduce(d: Draw) -> Case:
    types = FLOATS + INTEGER
    if d.name in ("ReduceMax", "ReduceMin"):
        types = NUMBERS + [BOOL]
    if d.name in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSumTraining"):
        types = FLOATS
    dtype = d.dtype(types)
    positive = d.name == "ReduceLogSum"
    special = d.name in ("ReduceMax", "ReduceMin")
    x = d.tensor(
        d.shape(1 if d.name == "ReduceSumTraining" else 0),
        dtype,
        0.0 if positive else -3.0,
        special=special,
    )
    if x.size == 0 and d.name == "ReduceMean":
        # The mean of nothing is not defined.
        x = d.tensor((2, 3), dtype)
    given = d.axes(x.ndim) if d.chance(0.8) or d.name == "ReduceSumTraining" else None
    attributes = {"keepdims": d.int(0, 1)} if d.chance(0.8) else {}
    if d.chance(0.5):
        attributes["noop_with_empty_axes"] = d.int(0, 1)
    noop = attributes.get("noop_with_empty_axes", 0)
    if given:
        axes = tuple(a % x.ndim for a in given)
    else:
        axes = () if noop else tuple(range(x.ndim))
    y, magnitude = reduced(d.name, wide(x), axes, bool(attributes.get("keepdims", 1)))
    y = y if is_float(dtype) or dtype == BOOL else y.astype(dtype)
    exact = d.name in ("ReduceMax", "ReduceMin")
    inputs = [Operand(x)] + ([] if given is None else [fixed(given)])
    return Case(inputs, [Result(y, dtype, 0 if exact else 16, magnitude)], attributes)


@row("GlobalAveragePool", "GlobalMaxPool")
def global_pool(d: Draw) -> Case:
    x = d.floats(d.shape(3, 5, zero=False), d.dtype(FLOATS))
    axes = tuple(range(2, x.ndim))
    name = "ReduceMean" if "Average" in d.name else "ReduceMax"
    y, magnitude = reduced(name, wide(x), axes, True)
    return Case([Operand(x)], [Result(y, x.dtype, 16 if name == "ReduceMean" else 0, magnitude)])


@row("ArgMax", "ArgMin")
def arg_extremum(d: Draw) -> Case:
    x = d.tensor(d.shape(1, 4, zero=False), d.dtype(NUMBERS), special=False)
    axis, keep, last = d.axis(x.ndim), d.int(0, 1), d.int(0, 1)
    f = np.argmax if d.name == "ArgMax" else np.argmin
    v = wide(x)
    y = x.shape[axis] - 1 - f(np.flip(v, axis), axis) if last else f(v, axis)
    y = np.expand_dims(y, axis) if keep else y
    attributes = {"axis": axis, "keepdims": keep, "select_last_index": last}
    return Case([Operand(x)], [Result(np.asarray(y, np.int64), I64)], attributes)


@row("TopK")
def top_k(d: Draw) -> Case:
    x = d.tensor(d.shape(1, 4, zero=False), d.dtype(NUMBERS))
    axis, largest = d.axis(x.ndim), d.int(0, 1)
    k = d.int(0 if not d.smooth else 1, x.shape[axis])
    v = wide(x) if is_float(x.dtype) else x.astype(object)
    order = np.argsort(-v if largest else v, axis, kind="stable")
    at = np.take(order, range(k), axis)
    y = np.take_along_axis(x, at, axis)
    results = [Result(wide(y), x.dtype, 0), Result(at.astype(np.int64), I64)]
    return Case([Operand(x), fixed([k])], results, {"axis": axis, "largest": largest, "sorted": 1})


def softmax_of(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True)) if x.size else x
    return e / e.sum(axis, keepdims=True) if x.size else x


@row("Softmax", "LogSoftmax")
def softmax(d: Draw) -> Case:
    x = d.floats(d.shape(1), d.dtype(FLOATS), -9, 9)
    attributes = {"axis": d.axis(x.ndim)} if d.chance(0.8) else {}
    y = softmax_of(wide(x), attributes.get("axis", -1))
    log = d.name == "LogSoftmax"
    return Case(
        [Operand(x)],
        [Result(np.log(y) if log else y, x.dtype, 16, 10.0 if log else 0.0)],
        attributes,
    )


@row("Hardmax")
def hardmax(d: Draw) -> Case:
    x = d.floats(d.shape(1, zero=False), d.dtype(FLOATS))
    axis = d.axis(x.ndim)
    y = np.zeros(x.shape)
    np.put_along_axis(y, np.expand_dims(np.argmax(wide(x), axis), axis), 1, axis)
    return Case([Operand(x)], [Result(y, x.dtype, 0)], {"axis": axis})


@row("com.microsoft.SoftmaxGrad_13", "com.microsoft.LogSoftmaxGrad_13")
def softmax_grad(d: Draw) -> Case:
    x = d.floats(d.shape(1), d.dtype([F32, F64]))
    axis = d.axis(x.ndim)
    log = "Log" in d.name
    y = softmax_of(wide(x), axis)
    y = (np.log(y) if log else y).astype(x.dtype)
    dy = d.floats(x.shape, x.dtype)
    v, w = wide(y), wide(dy)
    if log:
        dx = w - np.exp(v) * w.sum(axis, keepdims=True)
        size = np.abs(w) + np.exp(v) * np.abs(w).sum(axis, keepdims=True)
    else:
        dx = v * (w - (w * v).sum(axis, keepdims=True))
        size = v * (np.abs(w) + (np.abs(w) * v).sum(axis, keepdims=True))
    return Case([Operand(dy), untrained(y)], [Result(dx, x.dtype, 32, size)], {"axis": axis})


def normalised(x, axes, epsilon):
    """Zero mean and unit variance; with the mean and the inverse deviation."""
    mean = x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean, inverse


def per_channel(v, rank: int):
    return v.reshape(-1, *[1] * (rank - 2))


def epsilon(d: Draw) -> tuple[dict, np.longdouble]:
    attributes = {"epsilon": d.pick([1e-5, 1e-3, 0.1])} if d.chance(0.7) else {}
    return attributes, L(np.float32(attributes.get("epsilon", 1e-5)))


def spread(x: np.ndarray) -> np.ndarray:
    """Values that differ, so that no deviation is small and every digit of them counts."""
    return (x + np.linspace(-1, 1, x.size).reshape(x.shape)).astype(x.dtype)


# Statistics of numbers about 3 with a deviation that is not small.
NORM = 64


@row("BatchNormalization", "com.microsoft.BatchNormInternal")
def batch_norm(d: Draw) -> Case:
    internal = d.name == "BatchNormInternal"
    dtype = d.dtype([F32, F64] if internal else FLOATS)
    x = spread(d.floats(d.shape(2, 5, zero=False), dtype))
    training = internal or d.chance(0.5)
    c = (x.shape[1],)
    statistic = d.pick([F32, BF16]) if dtype == BF16 else dtype
    scale, bias = d.floats(c, statistic), d.floats(c, statistic)
    mean, var = d.floats(c, statistic), d.floats(c, statistic, 0.2, 3)
    attributes, eps = epsilon(d)
    axes = (0, *range(2, x.ndim))
    v, s, b, m, u = map(wide, (x, scale, bias, mean, var))
    size = np.abs(per_channel(s, x.ndim)) * 4 + np.abs(per_channel(b, x.ndim))
    if training:
        attributes["training_mode"] = 1
        momentum = attributes["momentum"] = d.pick([0.9, 0.5])
        momentum = L(np.float32(momentum))
        n, batch, inverse = normalised(v, axes, eps)
        if x.size // c[0] == 1:
            # Of one element.
            n = np.zeros_like(v)
        y = n * per_channel(s, x.ndim) + per_channel(b, x.ndim)
        variance = ((v - batch) ** 2).mean(axes)
        next_ = m * momentum + batch.reshape(c) * (1 - momentum), u * momentum + variance * (
            1 - momentum
        )
        outputs = [Result(y, dtype, NORM, size)] + [Result(t, statistic, NORM, 3.0) for t in next_]
        if internal:
            outputs += [
                Result(batch.reshape(c), statistic, NORM, 3.0),
                Result(inverse.reshape(c), statistic, NORM),
            ]
        # What depends on statistics that are results has no gradient.
        outputs = outputs[:1] if d.smooth and d.chance(0.7) else outputs
    else:
        slope = per_channel(s / np.sqrt(u + eps), x.ndim)
        y = (v - per_channel(m, x.ndim)) * slope + per_channel(b, x.ndim)
        size = (np.abs(v) + np.abs(per_channel(m, x.ndim))) * np.abs(slope) + np.abs(
            per_channel(b, x.ndim)
        )
        outputs = [Result(y, dtype, NORM, size)]
    inputs = [Operand(x), Operand(scale), Operand(bias), untrained(mean), untrained(var)]
    return Case(inputs, outputs, attributes)


@row("LRN")
def local_response(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    x = d.floats(d.shape(2, 4, zero=False), dtype)
    alpha, beta, bias, size = (
        d.pick([1e-4, 0.5]),
        d.pick([0.75, 0.5, 1.0]),
        d.pick([1.0, 2.0]),
        d.int(1, 5),
    )
    sums = np.zeros(x.shape, L)
    for c in range(x.shape[1]):
        low, high = c - (size - 1) // 2, c + (size - 1) - (size - 1) // 2
        sums[:, c] = (wide(x)[:, max(0, low) : high + 1] ** 2).sum(1)
    y = wide(x) / (bias + L(np.float32(alpha)) / size * sums) ** L(beta)
    attributes = {"alpha": alpha, "beta": beta, "bias": bias, "size": size}
    return Case([Operand(x)], [Result(y, dtype, 64)], attributes)


@row("com.microsoft.BatchNormalizationGrad", "com.microsoft.LayerNormalizationGrad")
def norm_grad(d: Draw) -> Case:
    """Of `y = n · scale + bias`."""
    dtype = d.dtype([F32, F64])
    x = spread(d.floats(d.shape(2, 4, zero=False), dtype))
    dy = d.floats(x.shape, dtype)
    batch = "Batch" in d.name
    axis = d.int(0, x.ndim - 1)
    axes = (0, *range(2, x.ndim)) if batch else tuple(range(axis, x.ndim))
    if np.prod([x.shape[a] for a in axes]) == 1:
        x, dy = (np.concatenate([t, t[::-1] * 2 + 1], axes[0]) for t in (x, dy))
    scale = d.floats((x.shape[1],) if batch else x.shape[axis:], dtype)
    n, mean, inverse = normalised(wide(x), axes, L(1e-5))
    mean, inverse = mean.astype(dtype), inverse.astype(dtype)
    m, i = wide(mean), wide(inverse)
    n = (wide(x) - m) * i
    s = per_channel(wide(scale), x.ndim) if batch else wide(scale)
    g = wide(dy) * s
    dx = i * (g - g.mean(axes, keepdims=True) - n * (g * n).mean(axes, keepdims=True))
    size = i * 4 * np.abs(g).max() * (1 + np.abs(n)) * np.abs(n).max()
    sums = tuple(a for a in range(x.ndim) if (a in axes) == batch)
    dscale, dbias = (wide(dy) * n).sum(sums), wide(dy).sum(sums)
    like = scale.shape
    sized = np.abs(wide(dy)).sum(sums).reshape(like) * (1 + np.abs(n).max())
    shape = like if batch else mean.shape
    attributes = {"epsilon": 1e-5} if batch else {"axis": axis}
    outputs = [
        Result(dx, dtype, NORM, size),
        Result(dscale.reshape(like), dtype, NORM, sized),
        Result(dbias.reshape(like), dtype, NORM, sized),
    ]
    return Case(
        [
            Operand(dy),
            *(untrained(t) for t in (x, scale, mean.reshape(shape), inverse.reshape(shape))),
        ],
        outputs,
        attributes,
    )


@row("LayerNormalization")
def layer_norm(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    x = spread(d.floats(d.shape(1, 4, zero=False), dtype))
    given = {"axis": d.axis(x.ndim)} if d.chance(0.8) else {}
    first = given.get("axis", -1) % x.ndim
    attributes, eps = epsilon(d)
    own = x.shape[first:]
    scale = d.floats(own, dtype)
    bias = d.floats(own, dtype) if d.chance(0.6) else None
    axes = tuple(range(first, x.ndim))
    n, mean, inverse = normalised(wide(x), axes, eps)
    y, size = n * wide(scale), np.abs(wide(scale)) * 4
    if bias is not None:
        y, size = y + wide(bias), size + np.abs(wide(bias))
    outputs = [Result(y, dtype, NORM, size * np.maximum(inverse, 1))]
    if d.chance(0.4):
        outputs += [Result(mean, F32, NORM, 3.0), Result(inverse, F32, NORM, inverse**3)]
        if d.smooth:
            outputs = outputs[:1]
    attributes |= given
    return Case(
        [Operand(x), Operand(scale)] + ([] if bias is None else [Operand(bias)]),
        outputs,
        attributes,
    )


@row("InstanceNormalization", "GroupNormalization")
def group_norm(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    groups = d.int(1, 2)
    channels = groups * d.int(1, 3)
    x = spread(d.floats((d.int(1, 2), channels, *d.shape(1, 2, zero=False)), dtype))
    attributes, eps = epsilon(d)
    scale, bias = d.floats((channels,), dtype), d.floats((channels,), dtype)
    rows = wide(x).reshape(x.shape[0], channels if d.name.startswith("Inst") else groups, -1)
    n, _, inverse = normalised(rows, (2,), eps)
    y = n.reshape(x.shape) * per_channel(wide(scale), x.ndim) + per_channel(wide(bias), x.ndim)
    size = np.abs(per_channel(wide(scale), x.ndim)) * 4 * max(inverse.max(), 1) + np.abs(
        per_channel(wide(bias), x.ndim)
    )
    if d.name.startswith("Group"):
        attributes["num_groups"] = groups
    return Case(
        [Operand(x), Operand(scale), Operand(bias)], [Result(y, dtype, NORM, size)], attributes
    )


@row("MeanVarianceNormalization")
def mean_variance(d: Draw) -> Case:
    x = spread(d.floats([max(2, n) for n in d.shape(4, 4, zero=False)], d.dtype(FLOATS)))
    axes = d.some(range(4)) or [1]
    given = {"axes": axes} if d.chance(0.7) else {}
    _, mean, inverse = normalised(wide(x), tuple(given.get("axes", [0, 2, 3])), L(0))
    # As the function in ONNX has it.
    y = (wide(x) - mean) / (1 / inverse + L(np.float32(1e-9)))
    return Case([Operand(x)], [Result(y, x.dtype, NORM, 4 * np.maximum(inverse, 1) ** 2)], given)


@row("RMSNormalization")
def rms_norm(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    x = d.floats(d.shape(1, 4, zero=False), dtype)
    given = {"axis": d.axis(x.ndim)} if d.chance(0.8) else {}
    first = given.get("axis", -1) % x.ndim
    attributes, eps = epsilon(d)
    scale = d.floats(x.shape[first:], dtype)
    square = (wide(x) ** 2).mean(tuple(range(first, x.ndim)), keepdims=True)
    y = wide(x) / np.sqrt(square + eps) * wide(scale)
    attributes |= given
    return Case([Operand(x), Operand(scale)], [Result(y, dtype, NORM)], attributes)


@row("LpNormalization")
def lp_norm(d: Draw) -> Case:
    x = d.floats(d.shape(1, 4, zero=False), d.dtype(FLOATS))
    axis, p = d.axis(x.ndim), d.int(1, 2)
    v = wide(x)
    norm = (
        np.abs(v).sum(axis, keepdims=True) if p == 1 else np.sqrt((v * v).sum(axis, keepdims=True))
    )
    y = np.where(norm == 0, 0, v / np.where(norm == 0, 1, norm))
    attributes = {"p": p} if p == 1 or d.chance(0.5) else {}
    return Case([Operand(x)], [Result(y, x.dtype, 16)], attributes | {"axis": axis})
