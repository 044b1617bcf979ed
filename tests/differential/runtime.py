"""Operators of ONNX Runtime's domain that have no sibling in ONNX's, and ONNX's optimizers."""

import numpy as np
import onnx

from elementwise import gelu_of, sigmoid
from frame import (
    BOOL,
    F32,
    F64,
    I32,
    I64,
    Case,
    Draw,
    Operand,
    Result,
    fixed,
    row,
    untrained,
    wide,
)

L = np.longdouble
M = "com.microsoft."
TRAINING = "ai.onnx.preview.training."


@row(M + "Gelu", M + "BiasGelu", M + "FastGelu")
def gelu(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    x = d.floats(d.shape(1), dtype, -5, 5)
    inputs, v = [Operand(x)], wide(x)
    if d.name == "BiasGelu" or d.name == "FastGelu" and d.chance(0.5):
        inputs.append(Operand(d.floats(x.shape[-1:], dtype)))
        v = v + wide(inputs[1].array)
    return Case(inputs, [Result(gelu_of(v, d.name == "FastGelu"), dtype, 16, np.abs(v) + 1)])


def gelu_slope(x, tanh: bool):
    root = np.sqrt(2 / L(np.pi))
    if tanh:
        t = np.tanh(root * (x + L("0.044715") * x**3))
        return (1 + t) / 2 + x / 2 * (1 - t * t) * root * (1 + 3 * L("0.044715") * x * x)
    return (
        gelu_of(x, False) / np.where(x == 0, 1, x)
        + np.where(x == 0, L("0.5"), 0)
        + x * np.exp(-x * x / 2) / np.sqrt(2 * L(np.pi))
    )


@row(M + "GeluGrad", M + "FastGeluGrad", M + "BiasGeluGrad_dX", M + "BiasFastGeluGrad_dX")
def gelu_grad(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    x = d.floats(d.shape(1), dtype, -4, 4)
    dy = d.floats(x.shape, dtype)
    inputs, v = [Operand(dy), untrained(x)], wide(x)
    if "Bias" in d.name:
        inputs.append(untrained(d.floats(x.shape[-1:], dtype)))
        v = v + wide(inputs[2].array)
    dx = wide(dy) * gelu_slope(v, "Fast" in d.name)
    return Case(inputs, [Result(dx, dtype, 32, np.abs(wide(dy)) * (1 + v * v))])


@row(M + "QuickGelu", M + "QuickGeluGrad")
def quick_gelu(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    x = d.floats(d.shape(), dtype, -5, 5)
    given = {"alpha": d.pick([0.5, 2.0])} if d.chance(0.6) else {}
    a, v = L(np.float32(given.get("alpha", 1.702))), wide(x)
    s = sigmoid(a * v)
    if d.name == "QuickGelu":
        return Case(
            [Operand(x)], [Result(v * s, dtype, 16, np.abs(v) * s * (1 + np.abs(a * v)))], given
        )
    dy = d.floats(x.shape, dtype)
    dx = wide(dy) * (s + a * v * s * (1 - s))
    return Case([Operand(dy), untrained(x)], [Result(dx, dtype, 32, np.abs(wide(dy)) * 2)], given)


@row(M + "TanhGrad", M + "SigmoidGrad", M + "ReluGrad")
def slopes(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    dy = d.floats(d.shape(), dtype)
    y = d.floats(dy.shape, dtype, -1.0 if d.name != "SigmoidGrad" else 0.0, 1.0)
    v, w = wide(y), wide(dy)
    match d.name:
        case "TanhGrad":
            dx = w * (1 - v * v)
        case "SigmoidGrad":
            dx = w * v * (1 - v)
        case _:
            dx = np.where(v > 0, w, 0)
    return Case([Operand(dy), untrained(y)], [Result(dx, dtype, 8, np.abs(w))])


@row(M + "DropoutGrad")
def dropout_grad(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    dy = d.floats(d.shape(), dtype)
    mask = d.tensor(dy.shape, BOOL)
    inputs, ratio, training = [Operand(dy), Operand(mask)], L(0.5), True
    if d.chance(0.7):
        given = np.array(d.pick([0.0, 0.25, 0.7]), F32)
        ratio = wide(given)
        inputs.append(untrained(given))
        if d.chance(0.5):
            training = d.chance(0.7)
            inputs.append(fixed(training, np.bool_))
    dx = wide(dy) * mask / (1 - ratio) if training else wide(dy)
    return Case(inputs, [Result(dx, dtype, 4)])


def places(d: Draw, shape, extent: int):
    return d.r.integers(-extent, extent, shape).astype(d.pick([I32, I64]))


@row(M + "GatherGrad", M + "GatherElementsGrad")
def gather_grad(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    shape = d.shape(1, 3, zero=False)
    axis = d.axis(len(shape))
    at = axis % len(shape)
    if d.name == "GatherGrad":
        indices = places(d, d.shape(0, 2, zero=False), shape[at])
        taken = (*shape[:at], *indices.shape, *shape[at + 1 :])
    else:
        taken = tuple(d.int(1, 4) if i == at else d.int(1, n) for i, n in enumerate(shape))
        indices = places(d, taken, shape[at])
    dy = d.floats(taken, dtype)

    def grad(dy):
        dx = np.zeros(shape, dy.dtype)
        if d.name == "GatherElementsGrad":
            for i in np.ndindex(*taken):
                to = list(i)
                to[at] = indices[i]
                dx[tuple(to)] += dy[i]
        else:
            for i in np.ndindex(*indices.shape):
                whole = (slice(None),) * at
                dx[(*whole, indices[i])] += dy[(*whole, *i)]
        return dx

    dx, size = grad(wide(dy)), grad(np.abs(wide(dy)))
    of = fixed(shape)
    inputs = (
        [of, Operand(indices), Operand(dy)]
        if d.name == "GatherGrad"
        else [Operand(dy), of, Operand(indices)]
    )
    return Case(inputs, [Result(dx, dtype, 8, size)], {"axis": axis})


@row(M + "SliceGrad")
def slice_grad(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    shape = d.shape(1, 3, zero=False)
    on = d.axes(len(shape)) or [0]
    at, starts, ends = [slice(None)] * len(shape), [], []
    for a in on:
        n = shape[a]
        start = d.int(0, n - 1)
        end = d.int(start + 1, n)
        at[a] = slice(start, end)
        starts.append(start - n if d.chance(0.3) else start)
        ends.append(2**40 if end == n and d.chance(0.3) else end)
    dx = np.zeros(shape, L)
    dy = d.floats(dx[tuple(at)].shape, dtype)
    dx[tuple(at)] = wide(dy)
    inputs = [Operand(dy), fixed(shape), fixed(starts), fixed(ends), fixed(on)]
    if d.chance(0.3):
        inputs.append(fixed([1] * len(on)))
    return Case(inputs, [Result(dx, dtype, 0)])


@row(M + "Scale")
def scale(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    x, by = d.floats(d.shape(), dtype), np.array(d.pick([0.5, 3.0, -2.0]), d.pick([F32, F64, I64]))
    down = d.int(0, 1)
    by = np.array(2, by.dtype) if by == 0 else by
    y = wide(x) / by if down else wide(x) * by
    return Case([Operand(x), untrained(by)], [Result(y, dtype, 2)], {"scale_down": down})


@row(TRAINING + "Adam", TRAINING + "Adagrad", TRAINING + "Momentum")
def optimizer(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    count = d.int(1, 2)
    shapes = [d.shape(0, 3) for _ in range(count)]
    rate, t = np.array(0.1, d.pick([F32, F64])), np.array(d.int(0, 3), np.int64)
    x, g, v = ([d.floats(s, dtype) for s in shapes] for _ in range(3))
    h = [np.abs(d.floats(s, dtype)) for s in shapes]
    norm = d.pick([0.0, 0.01])
    r = wide(rate)
    results, slots = [], [v, h] if d.name == "Adam" else [h] if d.name == "Adagrad" else [v]
    match d.name:
        case "Adam":
            given = {
                "alpha": 0.9,
                "beta": 0.99,
                "epsilon": 1e-3,
                "norm_coefficient": norm,
                "norm_coefficient_post": d.pick([0.0, 0.02]),
            }
        case "Adagrad":
            given = {"decay_factor": d.pick([0.0, 0.1]), "epsilon": 1e-3, "norm_coefficient": norm}
        case _:
            given = {
                "alpha": 0.9,
                "beta": d.pick([1.0, 0.5]),
                "mode": d.pick(["standard", "nesterov"]),
                "norm_coefficient": norm,
            }
    a = {k: L(np.float32(n)) for k, n in given.items() if not isinstance(n, str)}
    for i in range(count):
        p, q = wide(x[i]), wide(g[i])
        q = q + a["norm_coefficient"] * p
        match d.name:
            case "Adam":
                m, s = (
                    a["alpha"] * wide(v[i]) + (1 - a["alpha"]) * q,
                    a["beta"] * wide(h[i]) + (1 - a["beta"]) * q * q,
                )
                by = (
                    r * np.sqrt(1 - a["beta"] ** int(t)) / (1 - a["alpha"] ** int(t))
                    if t > 0
                    else r
                )
                p = (1 - a["norm_coefficient_post"]) * (p - by * m / (np.sqrt(s) + a["epsilon"]))
                results.append([p, m, s])
            case "Adagrad":
                s = wide(h[i]) + q * q
                results.append(
                    [p - r / (1 + int(t) * a["decay_factor"]) * q / (np.sqrt(s) + a["epsilon"]), s]
                )
            case _:
                m = a["alpha"] * wide(v[i]) + (a["beta"] if t > 0 else 1) * q
                step = q + a["alpha"] * m if given["mode"] == "nesterov" else m
                results.append([p - r * step, m])
    inputs = [rate, t, *x, *g, *(s for slot in slots for s in slot)]
    outputs = [
        Result(results[i][k], dtype, 64, 10.0) for k in range(1 + len(slots)) for i in range(count)
    ]
    return Case([untrained(rate), untrained(t), *(Operand(v) for v in inputs[2:])], outputs, given)


@row(TRAINING + "Gradient")
def gradient(d: Draw) -> Case:
    """Of `sin(a · b) + c · a` by some of these, `c` an operand that is no variable."""
    dtype = d.dtype([F32, F64])
    shape = d.shape()
    a, b, c = (d.floats(shape, dtype) for _ in range(3))
    make = onnx.helper.make_node
    names = ["x0", "x1"] if d.chance(0.6) else ["x0"]
    others = ["x2"] if len(names) == 2 else ["x1", "x2"]
    nodes = [
        make("Mul", ["x0", "x1"], ["product"]),
        make("Sin", ["product"], ["sine"]),
        make("Mul", ["x2", "x0"], ["line"]),
        make("Add", ["sine", "line"], ["sum"]),
        make(
            "Gradient",
            names + others,
            [f"y{i}" for i in range(len(names))],
            domain="ai.onnx.preview.training",
            xs=names,
            zs=others,
            y="sum",
        ),
    ]
    p, q, s = map(wide, (a, b, c))
    results = [q * np.cos(p * q) + s, p * np.cos(p * q)][: len(names)]
    return Case(
        [Operand(v) for v in (a, b, c)], [Result(y, dtype, 64, 10.0) for y in results], nodes=nodes
    )
