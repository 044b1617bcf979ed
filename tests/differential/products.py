"""Matrix products, convolutions, pools and their gradients."""

import numpy as np
import onnx

from frame import (
    F32,
    F64,
    FLOATS,
    I32,
    I64,
    Case,
    Draw,
    Operand,
    Result,
    is_float,
    row,
    untrained,
    wide,
)

L = np.longdouble


def both(f, *operands):
    """What a sum of products is, and the sum of its terms' magnitudes."""
    wides = [wide(x) for x in operands]
    return f(*wides), f(*(np.abs(x) for x in wides)) if is_float(operands[0].dtype) else 0.0


def swapped(x):
    return np.swapaxes(x, -1, -2)


@row("MatMul", "com.microsoft.FusedMatMul")
def mat_mul(d: Draw) -> Case:
    dtype = d.dtype(FLOATS + [I32, I64] if d.name == "MatMul" else [F32, F64])
    m, k, n = (d.pick([1, 2, 3, 5, 8, 17]) if not d.smooth else d.int(1, 3) for _ in range(3))
    if not d.smooth and d.chance(0.1):
        k = 0
    batch = d.shape(0, 2, zero=False)
    sa, sb = [*d.part(batch), m, k], [*d.part(batch), k, n]
    attributes, alpha, turn = {}, L(1), [False, False]
    if d.name == "FusedMatMul":
        turn = [d.chance(0.5), d.chance(0.5)]
        attributes = {"transA": int(turn[0]), "transB": int(turn[1])}
        if d.chance(0.5):
            attributes["alpha"] = d.pick([0.5, -2.0])
            alpha = L(attributes["alpha"])
    elif d.chance(0.2):
        sa = [k] if d.chance(0.5) else sa
        sb = [k] if d.chance(0.5) else sb
    a, b = (d.tensor(s, dtype) for s in (sa, sb))
    y, size = both(np.matmul, a, b)
    a, b = (np.ascontiguousarray(swapped(x)) if t else x for x, t in zip((a, b), turn))
    y = y * alpha if is_float(dtype) else y
    return Case([Operand(a), Operand(b)], [Result(y, dtype, 8, size)], attributes)


@row("Gemm")
def gemm(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    m, k, n = (d.pick([1, 2, 3, 5, 17]) if not d.smooth else d.int(1, 3) for _ in range(3))
    a, b = d.tensor((m, k), dtype), d.tensor((k, n), dtype)
    y, size = both(np.matmul, a, b)
    given = {n: d.pick([0.5, 2.0, -1.0]) for n in d.some(["alpha", "beta"])}
    alpha, beta = (L(given.get(n, 1.0)) for n in ("alpha", "beta"))
    y, size = alpha * y, abs(alpha) * size
    inputs = []
    if d.chance(0.7):
        c = d.tensor(d.pick([(), (n,), (1, n), (m, 1), (m, n), (1,)]), dtype)
        y, size = y + beta * wide(c), size + abs(beta) * np.abs(wide(c))
        inputs = [Operand(c)]
    for name, x in (("transA", a), ("transB", b)):
        if d.chance(0.5):
            given[name] = 1
            a, b = (np.ascontiguousarray(x.T) if t is x else t for t in (a, b))
    return Case([Operand(a), Operand(b), *inputs], [Result(y, dtype, 8, size)], given)


@row("Einsum")
def einsum(d: Draw) -> Case:
    dtype = d.dtype(FLOATS + [I64])
    letters = "abcde"
    extents = {c: d.pick([1, 2, 3]) for c in letters}
    terms = []
    for _ in range(d.int(1, 3)):
        terms.append("".join(d.r.permutation(d.some(letters[:4])[:3] or ["a"])))
    if d.chance(0.15):
        terms[0] = terms[0] + terms[0][0]
    used = sorted(set("".join(terms)))
    out = "".join(d.r.permutation(d.some(used)))
    equation = ",".join(terms)
    if d.chance(0.8):
        equation += "->" + out
    operands = [d.tensor([extents[c] for c in t], dtype) for t in terms]
    y, size = both(lambda *x: np.einsum(equation, *x), *operands)
    if d.chance(0.3):
        equation = equation.replace(",", " , ").replace("->", " -> ")
    return Case(
        [Operand(x) for x in operands],
        [Result(np.asarray(y), dtype, 16, size)],
        {"equation": equation},
    )


class Window:
    """A window that slides over spatial axes."""

    def __init__(self, d: Draw, pads: bool = True, least: int = 1):
        self.rank = d.pick([1, 2, 2, 3]) if not d.smooth else d.int(1, 2)
        self.kernel = [d.int(1, 3) for _ in range(self.rank)]
        self.strides = [d.int(1, 3) for _ in range(self.rank)]
        self.dilations = [d.int(1, 2) for _ in range(self.rank)]
        self.begin = [
            d.int(0, self.span(i) - 1) if pads and d.chance(0.6) else 0 for i in range(self.rank)
        ]
        self.end = [
            d.int(0, self.span(i) - 1) if pads and d.chance(0.6) else 0 for i in range(self.rank)
        ]
        self.least = least

    def span(self, i: int) -> int:
        return self.dilations[i] * (self.kernel[i] - 1) + 1

    def input(self, d: Draw) -> list[int]:
        """Extents that the window fits into."""
        most = 1 if d.smooth else 4
        return [
            max(self.least, self.span(i) - self.begin[i] - self.end[i]) + d.int(0, most)
            for i in range(self.rank)
        ]

    def output(self, extents) -> list[int]:
        return [
            (n + self.begin[i] + self.end[i] - self.span(i)) // self.strides[i] + 1
            for i, n in enumerate(extents)
        ]

    def attributes(self, d: Draw, kernel: bool = True) -> dict:
        """What is as ONNX takes it for granted may be left out."""
        given = {"kernel_shape": self.kernel} if kernel or d.chance(0.5) else {}
        for name, value, default in (
            ("strides", self.strides, 1),
            ("dilations", self.dilations, 1),
            ("pads", self.begin + self.end, 0),
        ):
            if any(v != default for v in value) or d.chance(0.5):
                given[name] = value
        return given

    def taps(self, extents, output):
        """Of every place of the result and every tap: both places, and that of the operand, where
        it is one."""
        for o in np.ndindex(*output):
            for k in np.ndindex(*self.kernel):
                at = tuple(
                    o[i] * self.strides[i] - self.begin[i] + k[i] * self.dilations[i]
                    for i in range(self.rank)
                )
                if all(0 <= a < n for a, n in zip(at, extents)):
                    yield o, k, at


def auto_padded(d: Draw, w: Window, extents: list[int]) -> dict:
    """Pads that follow from a word, where no dilation or stride is beyond the kernel."""
    word = d.pick(["VALID", "SAME_UPPER", "SAME_LOWER"])
    w.dilations = [1] * w.rank
    w.strides = [min(s, k) for s, k in zip(w.strides, w.kernel)]
    w.begin, w.end = [0] * w.rank, [0] * w.rank
    for i, n in enumerate(extents):
        extents[i] = n = max(n, w.kernel[i])
        if word != "VALID":
            total = max(0, (-(-n // w.strides[i]) - 1) * w.strides[i] + w.kernel[i] - n)
            less, more = total // 2, total - total // 2
            w.begin[i], w.end[i] = (less, more) if word == "SAME_UPPER" else (more, less)
    return {"auto_pad": word}


def convolve(w: Window, x, f, output, group: int):
    """`x[N,C,…], f[M,C/group,…] → y[N,M,…]`."""
    n, c, m = x.shape[0], x.shape[1], f.shape[0]
    y = np.zeros((n, m, *output), x.dtype)
    xs = x.reshape(n, group, c // group, *x.shape[2:])
    fs = f.reshape(group, m // group, c // group, *f.shape[2:])
    ys = y.reshape(n, group, m // group, *output)
    for o, k, at in w.taps(x.shape[2:], output):
        ys[(..., *o)] += np.einsum("ngc,gmc->ngm", xs[(..., *at)], fs[(..., *k)])
    return y


def spread_out(w: Window, dy, f, extents, group: int):
    """`dy[N,M,…], f[M,C/group,…] → dx[N,C,…]`: the transpose of `convolve` in `x`."""
    n, m, c = dy.shape[0], dy.shape[1], f.shape[1] * group
    dx = np.zeros((n, c, *extents), dy.dtype)
    dys = dy.reshape(n, group, m // group, *dy.shape[2:])
    fs = f.reshape(group, m // group, c // group, *f.shape[2:])
    dxs = dx.reshape(n, group, c // group, *extents)
    for o, k, at in w.taps(extents, dy.shape[2:]):
        dxs[(..., *at)] += np.einsum("ngm,gmc->ngc", dys[(..., *o)], fs[(..., *k)])
    return dx


def weight_grad(w: Window, x, dy, group: int):
    n, c, m = x.shape[0], x.shape[1], dy.shape[1]
    df = np.zeros((m, c // group, *w.kernel), x.dtype)
    xs = x.reshape(n, group, c // group, *x.shape[2:])
    dys = dy.reshape(n, group, m // group, *dy.shape[2:])
    dfs = df.reshape(group, m // group, c // group, *w.kernel)
    for o, k, at in w.taps(x.shape[2:], dy.shape[2:]):
        dfs[(..., *k)] += np.einsum("ngm,ngc->gmc", dys[(..., *o)], xs[(..., *at)])
    return df


def channels(d: Draw) -> tuple[int, int, int, int]:
    group = d.pick([1, 1, 2, 3]) if not d.smooth else d.int(1, 2)
    return d.int(1, 2), group * d.int(1, 2), group * d.int(1, 2), group


@row("Conv")
def conv(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    w = Window(d)
    n, c, m, group = channels(d)
    extents = w.input(d)
    word = auto_padded(d, w, extents) if d.chance(0.2) else {}
    attributes = w.attributes(d, kernel=False)
    if word:
        attributes.pop("pads", None)
    x = d.floats((n, c, *extents), dtype)
    f = d.floats((m, c // group, *w.kernel), dtype)
    y, size = both(lambda x, f: convolve(w, x, f, w.output(extents), group), x, f)
    inputs = [Operand(x), Operand(f)]
    if d.chance(0.5):
        b = d.floats((m,), dtype)
        y, size = y + wide(b).reshape(-1, *[1] * w.rank), size + np.abs(wide(b)).reshape(
            -1, *[1] * w.rank
        )
        inputs.append(Operand(b))
    if group > 1 or d.chance(0.5):
        attributes["group"] = group
    return Case(inputs, [Result(y, dtype, 8, size)], attributes | word)


@row("ConvTranspose")
def conv_transpose(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    w = Window(d)
    n, c, m, group = channels(d)
    extents = [d.int(1, 3) for _ in range(w.rank)]
    more = [d.int(0, max(s, t) - 1) if d.chance(0.4) else 0 for s, t in zip(w.strides, w.dilations)]
    out = [
        (e - 1) * w.strides[i] + w.span(i) - w.begin[i] - w.end[i] + more[i]
        for i, e in enumerate(extents)
    ]
    for i in range(w.rank):
        if out[i] < 1:
            out[i] += w.begin[i] + w.end[i]
            w.begin[i] = w.end[i] = 0
    x, f = d.floats((n, c, *extents), dtype), d.floats((c, m // group, *w.kernel), dtype)
    y, size = both(lambda x, f: spread_out(w, x, f, out, group), x, f)
    inputs = [Operand(x), Operand(f)]
    if d.chance(0.5):
        b = d.floats((m,), dtype)
        y, size = y + wide(b).reshape(-1, *[1] * w.rank), size + np.abs(wide(b)).reshape(
            -1, *[1] * w.rank
        )
        inputs.append(Operand(b))
    attributes = w.attributes(d, kernel=False)
    if any(more) or d.chance(0.3):
        attributes["output_padding"] = more
    if group > 1 or d.chance(0.5):
        attributes["group"] = group
    return Case(inputs, [Result(y, dtype, 8, size)], attributes)


@row("com.microsoft.ConvGrad", "com.microsoft.ConvTransposeGrad")
def conv_grad(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    w = Window(d)
    n, c, m, group = channels(d)
    extents = w.input(d)
    out = w.output(extents)
    transposed = "Transpose" in d.name
    # What goes through the convolution, and what comes of it.
    inner, outer = d.floats((n, c, *extents), dtype), d.floats((n, m, *out), dtype)
    f = d.floats((m, c // group, *w.kernel), dtype)
    if transposed:
        x, dy = outer, inner
        dx = both(lambda dy, f: convolve(w, dy, f, out, group), dy, f)
        df = both(lambda dy, x: weight_grad(w, dy, x, group), dy, x)
    else:
        x, dy = inner, outer
        dx = both(lambda dy, f: spread_out(w, dy, f, extents, group), dy, f)
        df = both(lambda x, dy: weight_grad(w, x, dy, group), x, dy)
    db = both(lambda dy: dy.sum((0, *range(2, dy.ndim))), dy)
    outputs = [Result(y, dtype, 16, size) for y, size in (dx, df, db)]
    if d.chance(0.4):
        outputs.pop()
    attributes = w.attributes(d, kernel=False) | {"group": group}
    return Case([Operand(dy), untrained(x), untrained(f)], outputs, attributes)


def pool_case(d: Draw) -> tuple[Window, list[int], list[int], dict]:
    w = Window(d)
    extents = w.input(d)
    word = auto_padded(d, w, extents) if d.chance(0.2) else {}
    out = w.output(extents)
    attributes = w.attributes(d) | word
    if word:
        attributes.pop("pads", None)
    elif d.chance(0.4):
        attributes["ceil_mode"] = 1
        for i, n in enumerate(extents):
            rounded = -(-(n + w.begin[i] + w.end[i] - w.span(i)) // w.strides[i]) + 1
            # A window that begins behind the operand and its pads at the begin is none.
            out[i] = rounded - (1 if (rounded - 1) * w.strides[i] >= n + w.begin[i] else 0)
    return w, extents, out, attributes


@row("AveragePool")
def average_pool(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    w, extents, out, attributes = pool_case(d)
    x = d.floats((d.int(1, 2), d.int(1, 2), *extents), dtype)
    with_pads = d.int(0, 1)
    if with_pads or d.chance(0.5):
        attributes["count_include_pad"] = with_pads
    y, size = both(lambda x: averages(w, x, out, with_pads), x)
    return Case([Operand(x)], [Result(y, dtype, 16, size)], attributes)


def divisor(w: Window, extents, o, with_pads: bool) -> int:
    """How many elements a mean is of; what is behind all pads never counts."""
    count = 1
    for i, n in enumerate(extents):
        first = o[i] * w.strides[i] - w.begin[i]
        places = [first + k * w.dilations[i] for k in range(w.kernel[i])]
        low, high = (-w.begin[i], n + w.end[i]) if with_pads else (0, n)
        count *= sum(low <= p < high for p in places)
    return count


def averages(w: Window, x, out, with_pads):
    y = np.zeros((*x.shape[:2], *out), x.dtype)
    for o, _, at in w.taps(x.shape[2:], out):
        y[(..., *o)] += x[(..., *at)]
    for o in np.ndindex(*out):
        y[(..., *o)] /= max(1, divisor(w, x.shape[2:], o, with_pads))
    return y


def rooted(sums, p: int):
    return sums ** (1 / L(p))


@row("LpPool")
def lp_pool(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    w, extents, out, attributes = pool_case(d)
    p = d.int(1, 3)
    x = d.floats((d.int(1, 2), d.int(1, 2), *extents), dtype)
    powers = np.abs(wide(x)) ** p
    sums = np.zeros((*x.shape[:2], *out), L)
    for o, _, at in w.taps(x.shape[2:], out):
        sums[(..., *o)] += powers[(..., *at)]
    return Case(
        [Operand(x)], [Result(rooted(sums, p), dtype, 64)], attributes | {"p": p}
    )


@row("GlobalLpPool")
def global_lp_pool(d: Draw) -> Case:
    dtype, p = d.dtype([F32, F64]), d.int(1, 3)
    x = d.floats(d.shape(3, 4, zero=False), dtype)
    sums = (np.abs(wide(x)) ** p).sum(tuple(range(2, x.ndim)), keepdims=True)
    return Case([Operand(x)], [Result(rooted(sums, p), dtype, 64)], {"p": p})


@row("AveragePoolGrad")
def average_pool_grad(d: Draw) -> Case:
    """Nothing says the operand's extents; windows fill it."""
    dtype = d.dtype([F32, F64])
    w = Window(d)
    out = [d.int(1, 3) for _ in range(w.rank)]
    extents = [
        (n - 1) * w.strides[i] + w.span(i) - w.begin[i] - w.end[i] for i, n in enumerate(out)
    ]
    for i in range(w.rank):
        if extents[i] < 1:
            extents[i] += w.begin[i] + w.end[i]
            w.begin[i] = w.end[i] = 0
    dy = d.floats((d.int(1, 2), d.int(1, 2), *out), dtype)
    with_pads = d.int(0, 1)

    def grad(dy):
        dx = np.zeros((*dy.shape[:2], *extents), dy.dtype)
        for o, _, at in w.taps(extents, out):
            dx[(..., *at)] += dy[(..., *o)] / divisor(w, extents, o, with_pads)
        return dx

    dx, size = both(grad, dy)
    return Case(
        [Operand(dy)],
        [Result(dx, dtype, 16, size)],
        w.attributes(d) | {"count_include_pad": with_pads},
    )


def maxima(w: Window, x, out, column_major: bool):
    """Largest elements, and their flat positions in the operand."""
    y, at_ = np.full((*x.shape[:2], *out), -np.inf, L), np.full((*x.shape[:2], *out), -1, np.int64)
    extents = x.shape[2:]
    order = "F" if column_major else "C"
    size = int(np.prod(extents))
    for n, c in np.ndindex(*x.shape[:2]):
        for o, _, at in w.taps(extents, out):
            if x[(n, c, *at)] > y[(n, c, *o)] or at_[(n, c, *o)] < 0:
                y[(n, c, *o)] = x[(n, c, *at)]
                at_[(n, c, *o)] = (n * x.shape[1] + c) * size + np.ravel_multi_index(
                    at, extents, order=order
                )
    return y, at_


@row("MaxPool")
def max_pool(d: Draw) -> Case:
    dtype = d.dtype(FLOATS + [np.dtype(np.int8), np.dtype(np.uint8)])
    w, extents, out, attributes = pool_case(d)
    x = d.tensor((d.int(1, 2), d.int(1, 2), *extents), dtype)
    order = d.int(0, 1)
    y, at = maxima(w, wide(x).astype(L), out, bool(order))
    # A window without elements is no case.
    if (at < 0).any():
        return max_pool(d)
    outputs = [Result(y if is_float(dtype) else y.astype(dtype), dtype, 0)]
    if d.chance(0.5):
        outputs.append(Result(at, I64))
    if order or d.chance(0.3):
        attributes["storage_order"] = order
    return Case([Operand(x)], outputs, attributes)


@row("MaxPoolGrad")
def max_pool_grad(d: Draw) -> Case:
    """Beside the pool whose indices it takes."""
    dtype = d.dtype([F32, F64])
    w = Window(d)
    extents = w.input(d)
    out = w.output(extents)
    x = d.floats((d.int(1, 2), d.int(1, 2), *extents), dtype)
    y, at = maxima(w, wide(x), out, False)
    if (at < 0).any():
        return max_pool_grad(d)
    dy = d.floats(y.shape, dtype)

    def grad(dy):
        dx = np.zeros(x.size, dy.dtype)
        np.add.at(dx, at.ravel(), dy.ravel())
        return dx.reshape(x.shape)

    dx, size = both(grad, dy)
    attributes = w.attributes(d)
    nodes = [
        onnx.helper.make_node("MaxPool", ["x1"], ["y1", "at"], **attributes),
        onnx.helper.make_node("MaxPoolGrad", ["x0", "at"], ["y0"], **attributes),
    ]
    return Case(
        [Operand(dy), Operand(x)], [Result(dx, dtype, 8, size), Result(y, dtype, 0)], nodes=nodes
    )
