"""Operators that work element by element, and casts."""

import math

import numpy as np
import onnx

from frame import (
    ALL,
    BF16,
    BOOL,
    F32,
    F64,
    FLOATS,
    I32,
    I64,
    INTEGERS,
    NUMBERS,
    SIGNED,
    UNSIGNED,
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
erf = np.vectorize(math.erf, otypes=[L])


def sigmoid(x):
    return np.where(
        x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))
    )


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def keep(x, y):
    """A result of the operand's type."""
    return y if is_float(x.dtype) else y.astype(x.dtype)


# Function, element types, least and greatest operand, and units of precision.
# Where a result is composed of several operators, terms of about 1 are rounded: `SUM` of them.
SUM = 1.0
FUNCTIONS = {
    "Abs": (np.abs, NUMBERS, -3, 3, 0, 0),
    "Acos": (np.arccos, FLOATS, -1, 1, 8, SUM),
    "Acosh": (np.arccosh, FLOATS, 1, 9, 8, SUM),
    "Asin": (np.arcsin, FLOATS, -1, 1, 8, 0),
    "Asinh": (np.arcsinh, FLOATS, -3, 3, 8, SUM),
    "Atan": (np.arctan, FLOATS, -3, 3, 8, 0),
    "Atanh": (np.arctanh, FLOATS, -0.99, 0.99, 8, SUM),
    "Ceil": (np.ceil, FLOATS, -3, 3, 0, 0),
    "Cos": (np.cos, FLOATS, -9, 9, 4, SUM),
    "Cosh": (np.cosh, FLOATS, -9, 9, 16, 0),
    "Erf": (erf, FLOATS, -4, 4, 4, 0),
    "Exp": (np.exp, FLOATS, -20, 20, 4, 0),
    "Floor": (np.floor, FLOATS, -3, 3, 0, 0),
    "HardSwish": (lambda x: x * np.clip(x / 6 + L(0.5), 0, 1), FLOATS, -5, 5, 4, 2),
    "Identity": (lambda x: x, ALL, -3, 3, 0, 0),
    "IsNaN": (np.isnan, FLOATS, -3, 3, 0, 0),
    "Log": (np.log, FLOATS, 0, 20, 4, 0),
    "Mish": (lambda x: x * np.tanh(softplus(x)), FLOATS, -9, 9, 8, 2),
    "Neg": (np.negative, FLOATS + SIGNED, -3, 3, 0, 0),
    "Not": (np.logical_not, [BOOL], 0, 1, 0, 0),
    "Reciprocal": (lambda x: 1 / x, FLOATS, -3, 3, 1, 0),
    "Relu": (lambda x: np.maximum(x, 0), FLOATS + SIGNED, -3, 3, 0, 0),
    "Round": (np.rint, FLOATS, -3, 3, 0, 0),
    "Sigmoid": (sigmoid, FLOATS, -20, 20, 8, 0),
    "Sign": (np.sign, NUMBERS, -3, 3, 0, 0),
    "Sin": (np.sin, FLOATS, -9, 9, 4, SUM),
    "Sinh": (np.sinh, FLOATS, -30, 30, 16, SUM),
    "Softplus": (softplus, FLOATS, -9, 20, 8, SUM),
    "Softsign": (lambda x: x / (1 + np.abs(x)), FLOATS, -9, 9, 8, 0),
    "Sqrt": (np.sqrt, FLOATS, 0, 20, 1, 0),
    "Tan": (np.tan, FLOATS, -1.5, 1.5, 32, 0),
    "Tanh": (np.tanh, FLOATS, -9, 9, 8, 0),
}
# What takes infinities, NaN, and very large and small numbers like any other operand.
ANY_NUMBER = {
    "Abs",
    "Ceil",
    "Exp",
    "Floor",
    "Identity",
    "IsNaN",
    "Log",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sqrt",
    "Tanh",
    "Erf",
    "Not",
}


@row(*FUNCTIONS)
def function(d: Draw) -> Case:
    f, types, low, high, units, terms = FUNCTIONS[d.name]
    dtype = d.dtype(types)
    if d.smooth and d.name in ("Acos", "Asin", "Atanh"):
        x = d.floats(d.shape(), dtype, low, high) / 2.5
    elif d.smooth and d.name == "Acosh":
        x = d.floats(d.shape(), dtype, low, high) + 1
    else:
        x = d.tensor(
            d.shape(),
            dtype,
            low,
            high,
            special=d.name in ANY_NUMBER,
            away=[1.0, math.pi / 2] if d.name == "Tan" else (),
        )
    if d.smooth and d.name == "Tan":
        x = x / 2
    y = f(wide(x))
    out = BOOL if d.name == "IsNaN" else dtype
    return Case([Operand(x)], [Result(keep(x, y) if out == dtype else y, out, units, terms)])


def f32(x: float) -> L:
    """An attribute's number, which ONNX keeps in single precision."""
    return L(np.float32(x))


@row("IsInf")
def is_inf(d: Draw) -> Case:
    negative, positive = d.int(0, 1), d.int(0, 1)
    x = d.floats(d.shape(), d.dtype(FLOATS), special=True)
    y = (np.isposinf(x.astype(F64)) & bool(positive)) | (
        np.isneginf(x.astype(F64)) & bool(negative)
    )
    return Case(
        [Operand(x)], [Result(y, BOOL)], {"detect_negative": negative, "detect_positive": positive}
    )


def rectified(name, x, alpha, beta):
    match name:
        case "Celu":
            return np.maximum(0, x) + np.minimum(0, alpha * np.expm1(x / alpha))
        case "Elu":
            return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))
        case "Selu":
            return beta * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))
        case "HardSigmoid":
            return np.clip(alpha * x + beta, 0, 1)
        case "LeakyRelu":
            return np.where(x < 0, alpha * x, x)
        case "Swish":
            return x * sigmoid(alpha * x)
        case "ThresholdedRelu":
            return np.where(x > alpha, x, 0)


@row("Celu", "Elu", "HardSigmoid", "LeakyRelu", "Selu", "Swish", "ThresholdedRelu")
def rectifier(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    default = {"HardSigmoid": 0.2, "LeakyRelu": 0.01, "Selu": 1.67326319217681884765625}.get(
        d.name, 1.0
    )
    names = {"HardSigmoid": ["alpha", "beta"], "Selu": ["alpha", "gamma"]}.get(d.name, ["alpha"])
    defaults = [default, 1.05070102214813232421875 if d.name == "Selu" else 0.5]
    given = {n: d.pick([0.25, 0.5, 1.5, 2.0, 0.3]) for n in d.some(names)}
    alpha, beta = (f32(given.get(n, v)) for n, v in zip([*names, "none"], defaults))
    x = d.floats(
        d.shape(),
        dtype,
        -9,
        # The exponential of some overflows, on the side that does not take it.
        100 if d.chance(0.3) else 9,
        away=[float(alpha), float((1 - beta) / alpha), float(-beta / alpha)],
    )
    y = rectified(d.name, wide(x), alpha, beta)
    return Case([Operand(x)], [Result(y, dtype, 8, np.abs(wide(x)) + beta + 1)], given)


@row("Gelu")
def gelu(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    x = d.floats(d.shape(), dtype, -5, 5)
    approximate = d.pick(["none", "tanh"])
    return Case(
        [Operand(x)],
        [Result(gelu_of(wide(x), approximate == "tanh"), dtype, 8, np.abs(wide(x)))],
        {"approximate": approximate},
    )


def gelu_of(x, tanh):
    if tanh:
        return x / 2 * (1 + np.tanh(np.sqrt(2 / L(np.pi)) * (x + L("0.044715") * x**3)))
    return x / 2 * (1 + erf(x / np.sqrt(L(2))))


def truncated(a, b):
    """The quotient of integers, towards zero and wrapping."""
    big = [[int(v) for v in x.ravel()] for x in np.broadcast_arrays(a, b)]
    quotients = [abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1) for p, q in zip(*big)]
    bits = a.dtype.itemsize * 8
    unsigned = np.array([q % 2**bits for q in quotients], np.dtype(f"uint{bits}"))
    return unsigned.view(a.dtype).reshape(np.broadcast_shapes(a.shape, b.shape))


def not_zero(x):
    return np.where(x == 0, np.ones_like(x), x)


ARITHMETIC = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}


@row(*ARITHMETIC)
def arithmetic(d: Draw) -> Case:
    dtype = d.dtype(INTEGERS if "Bitwise" in d.name else NUMBERS)
    a, b = (d.tensor(s, dtype, special=True) for s in d.broadcast(2))
    if d.name == "Div" and not is_float(dtype):
        b = not_zero(b)
        return Case([Operand(a), Operand(b)], [Result(truncated(a, b), dtype)])
    if d.smooth and d.chance(0.2):
        b = a
    return Case([Operand(a), Operand(b)], [Result(ARITHMETIC[d.name](wide(a), wide(b)), dtype, 1)])


@row("BitwiseNot")
def bitwise_not(d: Draw) -> Case:
    x = d.tensor(d.shape(), d.dtype(INTEGERS), special=True)
    return Case([Operand(x)], [Result(~x, x.dtype)])


@row("BitShift")
def bit_shift(d: Draw) -> Case:
    dtype = d.dtype(UNSIGNED)
    sa, sb = d.broadcast(2)
    a = d.tensor(sa, dtype, special=True)
    b = d.r.integers(0, dtype.itemsize * 8, sb, dtype)
    direction = d.pick(["LEFT", "RIGHT"])
    y = a << b if direction == "LEFT" else a >> b
    return Case([Operand(a), Operand(b)], [Result(y, dtype)], {"direction": direction})


COMPARISONS = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}


@row(*COMPARISONS)
def comparison(d: Draw) -> Case:
    types = [BOOL] if d.name in ("And", "Or", "Xor") else ALL if d.name == "Equal" else NUMBERS
    dtype = d.dtype(types)
    a, b = (d.tensor(s, dtype, special=True) for s in d.broadcast(2))
    return Case([Operand(a), Operand(b)], [Result(COMPARISONS[d.name](wide(a), wide(b)), BOOL)])


@row("Max", "Mean", "Min", "Sum")
def variadic(d: Draw) -> Case:
    dtype = d.dtype(NUMBERS if d.name in ("Max", "Min") else FLOATS)
    all_ = [d.tensor(s, dtype, special=d.name in ("Max", "Min")) for s in d.broadcast(d.int(1, 4))]
    y, magnitude = wide(all_[0]), np.abs(wide(all_[0]))
    for x in all_[1:]:
        match d.name:
            case "Max":
                y = np.maximum(y, wide(x))
            case "Min":
                y = np.minimum(y, wide(x))
            case _:
                y = y + wide(x)
                magnitude = magnitude + np.abs(wide(x))
    if d.name == "Mean":
        y, magnitude = y / len(all_), magnitude / len(all_)
    exact = d.name in ("Max", "Min")
    return Case(
        [Operand(x) for x in all_],
        [Result(y, dtype, 0 if exact else 4, 0.0 if exact else magnitude)],
    )


@row("Mod")
def modulo(d: Draw) -> Case:
    dtype = d.dtype(NUMBERS)
    fmod = 1 if is_float(dtype) else d.int(0, 1)
    a, b = (d.tensor(s, dtype, special=not is_float(dtype)) for s in d.broadcast(2))
    b = not_zero(b)
    if d.smooth:
        # No quotient is near an integer.
        a, b = np.broadcast_arrays(a, b)
        near = np.abs(a / b - np.rint(a / b)) < 0.01
        a = np.where(near, b * 0.5, a)
    if is_float(dtype):
        y = np.fmod(wide(a), wide(b))
    elif fmod:
        with np.errstate(all="ignore"):
            y = (a - truncated(a, b) * b).astype(dtype)
    else:
        # A divisor of -1 leaves nothing, of the least integer, too.
        y = np.where(
            b == -1 if dtype in SIGNED else False,
            0,
            np.mod(a, np.where(b == -1, 1, b) if dtype in SIGNED else b),
        ).astype(dtype)
    return Case([Operand(np.array(a)), Operand(np.array(b))], [Result(y, dtype, 0)], {"fmod": fmod})


@row("Pow")
def power(d: Draw) -> Case:
    dtype = d.dtype([F32, F64, BF16, I32, I64])
    other = dtype if d.smooth else d.dtype([F32, F64, dtype, I32, I64])
    sa, sb = d.broadcast(2)
    if not is_float(dtype):
        a = d.r.integers(-4, 5, sa, dtype)
        b = d.r.integers(0, 5, sb).astype(other)
        y = (
            np.vectorize(lambda p, q: int(p) ** int(q), otypes=[object])(a, b.astype(np.int64))
            if a.size and b.size
            else np.empty(np.broadcast_shapes(sa, sb))
        )
        return Case([Operand(a), Operand(b)], [Result(np.asarray(y).astype(dtype), dtype)])
    whole = not d.smooth and d.chance(0.4)
    a = d.floats(sa, dtype, -3.0 if whole else 0.0, 3.0)
    b = (
        d.r.integers(-3, 5, sb).astype(other)
        if whole or not is_float(other)
        else d.floats(sb, other)
    )
    a = not_zero(a) if whole or not is_float(other) else a
    return Case([Operand(a), Operand(b)], [Result(np.power(wide(a), wide(b).astype(L)), dtype, 8)])


@row("PRelu")
def p_relu(d: Draw) -> Case:
    dtype = d.dtype(FLOATS + [I32, I64])
    shape = d.shape()
    x, slope = d.tensor(shape, dtype), d.tensor(d.part(shape), dtype)
    y = np.where(wide(x) < 0, wide(x) * wide(slope), wide(x))
    return Case([Operand(x), Operand(slope)], [Result(y, dtype, 1)])


@row("Where")
def select(d: Draw) -> Case:
    dtype = d.dtype(ALL)
    sa, sb, sc = d.broadcast(3)
    c, a, b = (
        d.tensor(sc, BOOL),
        d.tensor(sa, dtype, special=True),
        d.tensor(sb, dtype, special=True),
    )
    return Case(
        [Operand(c), Operand(a), Operand(b)], [Result(np.where(c, wide(a), wide(b)), dtype, 0)]
    )


@row("Clip")
def clip(d: Draw) -> Case:
    dtype = d.dtype(NUMBERS)
    bounds = [d.tensor((), dtype, -2, 2) if d.chance(0.7) else None for _ in range(2)]
    if d.smooth:
        bounds = [
            None if b is None else np.array(v, dtype) for b, v in zip(bounds, (-0.91234, 0.91234))
        ]
    x = d.tensor(d.shape(), dtype, away=[-0.91234, 0.91234], special=not is_float(dtype))
    y = wide(x)
    if bounds[0] is not None:
        y = np.maximum(y, wide(bounds[0]))
    if bounds[1] is not None:
        y = np.minimum(y, wide(bounds[1]))
    inputs = [Operand(x)] + [None if b is None else Operand(b) for b in bounds]
    while inputs[-1] is None:
        inputs.pop()
    return Case(inputs, [Result(y, dtype, 0)])


def code(dtype: np.dtype) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(dtype)


@row("Cast", "CastLike")
def cast(d: Draw) -> Case:
    source, to = d.dtype(ALL), d.dtype(FLOATS if d.smooth else ALL)
    if d.smooth:
        source = to = F64
    if is_float(source) and not is_float(to) and to != BOOL:
        # What does not fit is not defined.
        low = 0.0 if to in UNSIGNED else -100.0
        x = d.floats(d.shape(), source, low, 100.0)
        y = np.trunc(wide(x)).astype(np.int64).astype(to)
    else:
        x = d.tensor(d.shape(), source, special=True)
        y = wide(x) != 0 if to == BOOL else wide(x).astype(L) if is_float(to) else x.astype(to)
    result = Result(y, to, 0.5)
    if d.name == "Cast":
        return Case([Operand(x)], [result], {"to": code(to)})
    return Case([Operand(x), untrained(d.tensor(d.shape(), to))], [result])


@row("CumProd")
def cum_prod(d: Draw) -> Case:
    dtype = d.dtype([F32, F64, BF16, I32, I64])
    x = d.tensor(d.shape(1, 3), dtype, -2, 2)
    axis, exclusive, reverse = d.axis(x.ndim), d.int(0, 1), d.int(0, 1)
    if d.smooth and x.shape[axis] == 1:
        # Of one element there is nothing in an exclusive product.
        exclusive = 0
    v = np.flip(wide(x), axis) if reverse else wide(x)
    if exclusive:
        ones = np.ones_like(np.take(v, [0] if v.shape[axis] else [], axis))
        v = np.concatenate([ones, np.take(v, range(max(v.shape[axis] - 1, 0)), axis)], axis)
    y = np.cumprod(v, axis, dtype=v.dtype)
    y = np.flip(y, axis) if reverse else y
    return Case(
        [Operand(x), fixed(axis)],
        [Result(y, dtype, 16)],
        {"exclusive": exclusive, "reverse": reverse},
    )


@row("Shrink")
def shrink(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    bias, lambd = d.pick([0.0, 0.25, 1.5]), d.pick([0.5, 1.0, 1.5])
    x = d.floats(d.shape(), dtype, away=[lambd, -lambd])
    v = wide(x)
    y = np.where(v < -lambd, v + bias, np.where(v > lambd, v - bias, 0))
    return Case([Operand(x)], [Result(y, dtype, 4, np.abs(v) + 2)], {"bias": bias, "lambd": lambd})


@row("SwiGLU")
def swi_glu(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    shape, alpha = d.shape(), d.pick([1.0, 0.5, 1.5])
    a, b = d.floats(shape, dtype, -9, 9), d.floats(shape, dtype)
    y = wide(a) * sigmoid(wide(a) * alpha) * wide(b)
    size = np.abs(wide(a) * wide(b)) + 1
    return Case([Operand(a), Operand(b)], [Result(y, dtype, 16, size)], {"alpha": alpha})


@row("CumSum")
def cum_sum(d: Draw) -> Case:
    dtype = d.dtype([F32, F64, BF16, I32, I64, np.dtype(np.uint32), np.dtype(np.uint64)])
    x = d.tensor(d.shape(1), dtype)
    axis, exclusive, reverse = d.axis(x.ndim), d.int(0, 1), d.int(0, 1)
    if d.smooth and x.shape[axis] == 1:
        # Of one element there is nothing in an exclusive sum.
        exclusive = 0

    def sums(x):
        x = np.flip(x, axis) if reverse else x
        y = np.cumsum(x, axis, dtype=x.dtype)
        y = y - x if exclusive else y
        return np.flip(y, axis) if reverse else y

    result = Result(sums(wide(x)), dtype, 8, sums(np.abs(wide(x))) if is_float(dtype) else 0.0)
    return Case(
        [Operand(x), fixed(axis, d.pick([np.int32, np.int64]))],
        [result],
        {"exclusive": exclusive, "reverse": reverse},
    )


@row("Dropout")
def dropout_left_out(d: Draw) -> Case:
    """Outside of training, where it changes nothing."""
    dtype = d.dtype(FLOATS)
    x = d.floats(d.shape(), dtype)
    inputs = [Operand(x)]
    if d.chance(0.6):
        ratio = d.dtype(FLOATS)
        inputs.append(
            untrained(np.array(d.pick([0.0, 0.25, 0.5]), ratio)) if d.chance(0.7) else None
        )
        if inputs[-1] is None or d.chance(0.5):
            inputs.append(fixed(False, np.bool_))
    outputs = [Result(wide(x), dtype, 0)]
    if d.chance(0.5) and not d.smooth:
        outputs.append(Result(np.ones(x.shape, bool), BOOL))
    return Case(inputs, outputs, {"seed": 7} if d.chance(0.3) else {})
