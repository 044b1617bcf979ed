"""Images of patches and of points, transforms, rotations, reversals, attention, states."""

import numpy as np
import onnx
from frame import (
    BOOL,
    F32,
    F64,
    FLOATS,
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


@row("Col2Im")
def col2im(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    n = d.int(1, 2)
    block = [d.int(1, 2 if d.smooth else 3) for _ in range(n)]
    dilations, strides = ([d.int(1, 2) for _ in range(n)] for _ in range(2))
    pads = [d.int(0, 1) for _ in range(2 * n)]
    spans = [k * (b - 1) + 1 for k, b in zip(dilations, block)]
    image = [max(1, s - a - b + d.int(0, 3)) for s, a, b in zip(spans, pads, pads[n:])]
    padded = [i + a + b for i, a, b in zip(image, pads, pads[n:])]
    counts = [(p - s) // t + 1 for p, s, t in zip(padded, spans, strides)]
    batch, channels = d.int(1, 2), d.int(1, 2)
    x = d.floats((batch, channels * int(np.prod(block)), int(np.prod(counts))), dtype)
    split = wide(x).reshape(batch, channels, *block, *counts)
    whole, size = np.zeros((batch, channels, *padded), L), np.zeros((batch, channels, *padded), L)
    for place in np.ndindex(*block):
        at = tuple(
            slice(p * k, p * k + (c - 1) * t + 1, t)
            for p, k, c, t in zip(place, dilations, counts, strides)
        )
        whole[(slice(None), slice(None), *at)] += split[(slice(None), slice(None), *place)]
        size[(slice(None), slice(None), *at)] += abs(split[(slice(None), slice(None), *place)])
    inner = (slice(None), slice(None), *(slice(a, a + i) for a, i in zip(pads, image)))
    attributes = {"dilations": dilations, "strides": strides, "pads": pads}
    units = 4 * int(np.prod(block))
    result = Result(whole[inner], dtype, units, size[inner])
    return Case([Operand(x), fixed(image), fixed(block)], [result], attributes)


def coordinates(extent: int, corners: bool):
    i = np.arange(extent, dtype=L)
    if corners:
        return -1 + 2 * i / (extent - 1) if extent > 1 else np.full(1, -1, L)
    return -1 + (2 * i + 1) / extent


@row("AffineGrid")
def affine_grid(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    n, batch, corners = d.int(2, 3), d.int(1, 2), d.int(0, 1)
    image = [d.extent() for _ in range(n)]
    theta = d.floats((batch, n, n + 1), dtype)
    along = np.meshgrid(*(coordinates(e, bool(corners)) for e in image), indexing="ij")
    points = np.stack([*along[::-1], np.ones(image, L)], -1)
    y = np.einsum("...k,bjk->b...j", points, wide(theta))
    size = np.einsum("...k,bjk->b...j", abs(points), abs(wide(theta)))
    operands = [Operand(theta), fixed([batch, d.int(1, 3), *image])]
    return Case(operands, [Result(y, dtype, 32, size)], {"align_corners": corners})


def placed(at, extent: int, corners: bool, beyond: str):
    at = (at + 1) * (L(extent) - 1) / 2 if corners else ((at + 1) * extent - 1) / 2
    if beyond == "border":
        return np.clip(at, 0, extent - 1)
    if beyond == "reflection":
        low, high = (0, extent - 1) if corners else (L(-0.5), extent - L(0.5))
        span = L(high - low)
        if span <= 0:
            return at * 0
        rest, turn = np.fmod(abs(at - low), span), np.floor(abs(at - low) / span)
        return np.clip(np.where(turn % 2 == 0, rest, span - rest) + low, 0, extent - 1)
    return at


@row("GridSample")
def grid_sample(d: Draw) -> Case:
    """Points away from edges, where the nearest element is another."""
    dtype = d.dtype([F32, F64])
    n, batch, channels, corners = d.int(1, 3), d.int(1, 2), d.int(1, 2), bool(d.int(0, 1))
    mode = d.pick(["linear", "nearest"])
    beyond = d.pick(["zeros", "border", "reflection"])
    image = [d.int(2, 4) for _ in range(n)]
    points = [d.int(1, 2) for _ in range(n)]
    x = d.floats((batch, channels, *image), dtype)
    # Places between elements, and some beyond the border.
    places = [
        d.r.integers(-1, e, (batch, *points)) + d.r.uniform(0.1, 0.4, (batch, *points)) + L(0.0)
        for e in image
    ]
    back = [
        (p * 2 / (e - 1) - 1) if corners else ((2 * p + 1) / e - 1) for p, e in zip(places, image)
    ]
    grid = np.stack(back[::-1], -1).astype(dtype)
    at = [
        placed(wide(grid)[..., n - 1 - i], e, corners, beyond) for i, e in enumerate(image)
    ]
    y, size = np.zeros((batch, *points, channels), L), np.zeros((batch, *points, channels), L)
    rows = np.moveaxis(wide(x), 1, -1)
    batches = np.arange(batch).reshape(batch, *[1] * n)
    for corner in np.ndindex(*[1 if mode == "nearest" else 2] * n):
        weight, index = np.ones((batch, *points), L), []
        for a, c, e in zip(at, corner, image):
            i = np.rint(a) if mode == "nearest" else np.floor(a) + c
            if mode == "linear":
                weight = weight * ((a - np.floor(a)) if c else 1 - (a - np.floor(a)))
            if beyond == "zeros":
                weight = weight * ((i >= 0) & (i <= e - 1))
            index.append(np.clip(i, 0, e - 1).astype(np.int64))
        term = rows[(batches, *index)] * weight[..., None]
        y, size = y + term, size + abs(term)
    attributes = {"align_corners": int(corners), "mode": mode, "padding_mode": beyond}
    result = Result(np.moveaxis(y, -1, 1), dtype, 256, np.moveaxis(size, -1, 1) + 1)
    # The nearest element is the same for points beside each other.
    given = Operand(grid, trained=mode == "linear")
    return Case([Operand(x), given], [result], attributes)


@row("DFT")
def dft(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    shape, parts = list(d.shape(1, 3, zero=False)), d.int(1, 2)
    axis = d.int(0, len(shape) - 1)
    extent = shape[axis]
    length = d.int(1, extent + 2) if d.chance(0.4) else None
    inverse = d.int(0, 1)
    onesided = int(parts == 1 and not inverse and d.chance(0.5))
    x = d.floats((*shape, parts), dtype)
    v = wide(x)
    z = v[..., 0] + (1j * v[..., 1] if parts == 2 else 0)
    n = length or extent
    z = np.take(z, range(min(n, extent)), axis)
    k = np.arange(n // 2 + 1 if onesided else n)
    t = np.arange(z.shape[axis])
    angle = 2 * L(np.pi) * (np.outer(t, k) % n) / n
    turn = np.cos(angle) + (1j if inverse else -1j) * np.sin(angle)
    y = np.moveaxis(np.tensordot(z, turn, (axis, 0)), -1, axis) / (n if inverse else 1)
    size = np.abs(z).sum(axis, keepdims=True) + 0 * np.abs(y)
    y = np.stack([y.real, y.imag], -1)
    operands = [Operand(x), None if length is None else fixed(length)]
    if parts == 2 and inverse and d.chance(0.5):
        # Back from one side of a transform of real numbers.
        n = d.int(max(1, 2 * extent - 2), 2 * extent - 1) if length or extent == 1 else 2 * extent - 2
        operands[1] = fixed(n) if length or extent == 1 else None
        k = np.arange(n // 2 + 1)
        z = np.take(v[..., 0] + 1j * v[..., 1], k, axis)
        sides = np.where((k == 0) | (2 * k == n), 1, 2)
        angle = 2 * L(np.pi) * (np.outer(k, np.arange(n)) % n) / n
        turn = (np.cos(angle) + 1j * np.sin(angle)) * sides[:, None]
        y = np.moveaxis(np.tensordot(z, turn, (axis, 0)).real, -1, axis)[..., None] / n
        size = 2 * np.abs(z).sum(axis, keepdims=True)[..., None] + 0 * y
        operands.append(fixed(axis))
        return Case(operands, [Result(y, dtype, 64, size)], {"inverse": 1, "onesided": 1})
    operands.append(fixed(axis - (len(shape) + 1 if d.chance(0.5) else 0)))
    # π is a double here.
    result = Result(y, dtype, 64, np.stack([size, size], -1))
    return Case(operands, [result], {"inverse": inverse, "onesided": onesided})


@row("HannWindow", "HammingWindow", "BlackmanWindow")
def window(d: Draw) -> Case:
    dtype, size, periodic = d.dtype([F32, F64]), d.int(2, 9), d.int(0, 1)
    a, b, c = {
        "HannWindow": (L(1) / 2, L(1) / 2, 0),
        "HammingWindow": (L(25) / 46, L(21) / 46, 0),
        "BlackmanWindow": (L("0.42"), L(1) / 2, L("0.08")),
    }[d.name]
    angle = 2 * L(np.pi) * np.arange(size, dtype=L) / (size if periodic else size - 1)
    y = a - b * np.cos(angle) + c * np.cos(2 * angle)
    kind = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    attributes = {"output_datatype": kind, "periodic": periodic}
    return Case([fixed(size)], [Result(y, dtype, 16, 1.0)], attributes)


@row("STFT")
def stft(d: Draw) -> Case:
    dtype, batch, parts = d.dtype([F32, F64]), d.int(1, 2), d.int(1, 2)
    frame, step = d.int(1, 4), d.int(1, 3)
    length = frame + d.int(0, 5)
    x = d.floats((batch, length, parts), dtype)
    weights = d.floats((frame,), dtype) if d.chance(0.6) else None
    onesided = int(parts == 1 and d.chance(0.6))
    v = wide(x)
    z = v[..., 0] + (1j * v[..., 1] if parts == 2 else 0)
    frames = np.stack([z[:, i : i + frame] for i in range(0, length - frame + 1, step)], 1)
    if weights is not None:
        frames = frames * wide(weights)
    k = np.arange(frame // 2 + 1 if onesided else frame)
    angle = 2 * L(np.pi) * (np.outer(np.arange(frame), k) % frame) / frame
    y = np.tensordot(frames, np.cos(angle) - 1j * np.sin(angle), (2, 0))
    size = np.abs(frames).sum(2, keepdims=True) + 0 * np.abs(y)
    operands = [Operand(x), fixed(step), None if weights is None else Operand(weights)]
    if weights is None or d.chance(0.5):
        operands.append(fixed(frame))
    result = Result(np.stack([y.real, y.imag], -1), dtype, 64, np.stack([size, size], -1))
    return Case(operands, [result], {"onesided": onesided})


@row("DeformConv")
def deform_conv(d: Draw) -> Case:
    """Places between elements, and some beyond the border."""
    dtype, n = d.dtype([F32, F64]), d.int(1, 2)
    batch, groups, shifts = d.int(1, 2), d.int(1, 2), d.int(1, 2)
    channels, filters = 2 * d.int(1, 1 if d.smooth else 2), groups * d.int(1, 2)
    kernel, strides, dilations = ([d.int(1, 2) for _ in range(n)] for _ in range(3))
    pads = [d.int(0, 1) for _ in range(2 * n)]
    spans = [k * (t - 1) + 1 for t, k in zip(kernel, dilations)]
    image = [max(2, s - a - b + d.int(0, 2)) for s, a, b in zip(spans, pads, pads[n:])]
    out = [
        (e + a + b - s) // t + 1
        for e, a, b, s, t in zip(image, pads, pads[n:], spans, strides)
    ]
    places, points = int(np.prod(kernel)), int(np.prod(out))
    x = d.floats((batch, channels, *image), dtype)
    w = d.floats((filters, channels // groups, *kernel), dtype)
    shape = (batch, shifts, places, n, *out)
    shift = (d.r.integers(-1, 2, shape) + d.r.uniform(0.1, 0.9, shape)).astype(dtype)
    bias = d.floats((filters,), dtype) if d.chance(0.5) else None
    mask = d.floats((batch, shifts * places, *out), dtype) if d.chance(0.5) else None
    v, at, own = wide(x), wide(shift), channels // shifts
    factor = np.ones((batch, shifts, places, *out), L)
    if mask is not None:
        factor = wide(mask).reshape(factor.shape)
    columns, sizes = (np.zeros((batch, channels, places, *out), L) for _ in range(2))
    for b, s, p, *o in np.ndindex(batch, shifts, places, *out):
        tap = np.unravel_index(p, kernel)
        where = [
            o[i] * strides[i] - pads[i] + tap[i] * dilations[i] + at[(b, s, p, i, *o)]
            for i in range(n)
        ]
        for corner in np.ndindex(*[2] * n):
            index = [int(np.floor(a)) + c for a, c in zip(where, corner)]
            if any(not 0 <= i < e for i, e in zip(index, image)):
                continue
            share = np.prod([1 - abs(a - i) for a, i in zip(where, index)])
            part = slice(s * own, (s + 1) * own)
            term = v[(b, part, *index)] * share * factor[(b, s, p, *o)]
            columns[(b, part, p, *o)] += term
            sizes[(b, part, p, *o)] += abs(term)
    # What places are off by is a part of the image's largest element.
    sizes += np.abs(v).max() * np.repeat(np.abs(factor), own, 1)

    def convolved(columns, w):
        split = columns.reshape(batch, groups, channels // groups * places, points)
        filters_ = w.reshape(groups, filters // groups, -1)
        return np.einsum("gmk,bgkp->bgmp", filters_, split).reshape(batch, filters, *out)

    y, size = convolved(columns, wide(w)), convolved(sizes, np.abs(wide(w)))
    if bias is not None:
        spread = wide(bias).reshape(filters, *[1] * n)
        y, size = y + spread, size + abs(spread)
    given = [x, w, shift.reshape(batch, -1, *out), bias, mask]
    operands = [None if a is None else Operand(a) for a in given]
    while operands[-1] is None:
        operands.pop()
    attributes = {
        "dilations": dilations,
        "strides": strides,
        "pads": pads,
        "group": groups,
        "offset_group": shifts,
    }
    attributes |= {"kernel_shape": kernel} if d.chance(0.5) else {}
    return Case(operands, [Result(y, dtype, 128, size)], attributes)


@row("ReverseSequence")
def reverse_sequence(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    shape = d.shape(2, 4, zero=False)
    batch = d.int(0, 1)
    x = d.floats(shape, dtype)
    lengths = d.r.integers(1, shape[1 - batch] + 1, shape[batch])
    y = np.moveaxis(wide(x), batch, 0).copy()
    for r, n in enumerate(lengths):
        y[r, :n] = y[r, :n][::-1]
    attributes = {"batch_axis": batch, "time_axis": 1 - batch}
    given = fixed(lengths) if d.chance(0.5) else untrained(lengths.astype(np.int64))
    return Case([Operand(x), given], [Result(np.moveaxis(y, 0, batch), dtype, 0)], attributes)


@row("RotaryEmbedding")
def rotary(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    batch, heads, steps, half = d.int(1, 2), d.int(1, 3), d.int(1, 3), d.int(1, 2)
    rest = 2 * d.int(0, 1)
    size, interleaved = 2 * half + rest, d.int(0, 1)
    flat, by_id = d.chance(0.5), d.chance(0.5)
    x = d.floats((batch, steps, heads * size) if flat else (batch, heads, steps, size), dtype)
    rows = (steps + 2, half) if by_id else (batch, steps, half)
    cos, sin = d.floats(rows, dtype), d.floats(rows, dtype)
    ids = d.r.integers(0, steps + 2, (batch, steps)) if by_id else None
    v = wide(x)
    if flat:
        v = v.reshape(batch, steps, heads, size).transpose(0, 2, 1, 3)
    c, s = (wide(t)[ids] if by_id else wide(t) for t in (cos, sin))
    c, s = c[:, None], s[:, None]
    turned = v[..., : 2 * half]
    a, b = (
        (turned[..., ::2], turned[..., 1::2])
        if interleaved
        else (turned[..., :half], turned[..., half:])
    )
    re, im = c * a - s * b, s * a + c * b
    big = abs(c * a) + abs(s * b) + abs(s * a) + abs(c * b)
    pair = lambda p, q: (
        np.stack([p, q], -1).reshape(turned.shape) if interleaved else np.concatenate([p, q], -1)
    )
    y = np.concatenate([pair(re, im), v[..., 2 * half :]], -1)
    size_of = np.concatenate([pair(big, big), abs(v[..., 2 * half :])], -1)
    if flat:
        y, size_of = (t.transpose(0, 2, 1, 3).reshape(x.shape) for t in (y, size_of))
    attributes = {"interleaved": interleaved}
    attributes |= {"num_heads": heads} if flat else {}
    attributes |= {"rotary_embedding_dim": 2 * half} if rest or d.chance(0.3) else {}
    operands = [Operand(x), Operand(cos), Operand(sin)] + ([untrained(ids)] if by_id else [])
    return Case(operands, [Result(y, dtype, 8, size_of)], attributes)


@row("Attention")
def attention(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    batch, own, steps, keys = d.int(1, 2), d.int(1, 2), d.int(1, 3), d.int(1, 3)
    heads, size, out = own * d.int(1, 2), d.int(1, 3), d.int(1, 3)
    flat = d.chance(0.5)
    q, k, v = (
        d.floats((batch, h, t, s), dtype, -2, 2)
        for h, t, s in ((heads, steps, size), (own, keys, size), (own, keys, out))
    )
    attributes, operands = {}, [Operand(q), Operand(k), Operand(v)]
    if flat:
        attributes |= {"q_num_heads": heads, "kv_num_heads": own}
        operands = [
            Operand(t.transpose(0, 2, 1, 3).reshape(batch, t.shape[2], -1)) for t in (q, k, v)
        ]
    scale = 1 / np.sqrt(L(size))
    if d.chance(0.3):
        attributes["scale"] = scale = 0.5
    each = heads // own
    wq, wk, wv = wide(q), np.repeat(wide(k), each, 1), np.repeat(wide(v), each, 1)
    scores = np.einsum("bhtd,bhsd->bhts", wq, wk) * scale
    if d.chance(0.3):
        attributes["softcap"] = 2.0
        scores = 2 * np.tanh(scores / 2)
    kind = d.pick(["none", "floats", "bools"])
    if kind == "floats":
        mask = d.floats((steps, keys), dtype)
        operands.append(untrained(mask))
        scores = scores + wide(mask)
    elif kind == "bools":
        mask = d.r.random((batch, 1, steps, keys)) < 0.7
        operands.append(untrained(mask.astype(BOOL)))
        scores = np.where(mask, scores, -np.inf)
    if d.chance(0.4):
        attributes["is_causal"] = 1
        scores = np.where(np.tri(steps, keys, dtype=bool), scores, -np.inf)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(most), 0, most))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    y = np.einsum("bhts,bhsd->bhtd", weights, wv)
    if flat:
        y = y.transpose(0, 2, 1, 3).reshape(batch, steps, heads * out)
    return Case(operands, [Result(y, dtype, 256, 4.0)], attributes)


@row("ai.onnx.preview.FlexAttention")
def flex_attention(d: Draw) -> Case:
    """Scores pass a bias or a scale, weights a scale."""
    dtype = d.dtype([F32, F64])
    batch, own, steps, keys = d.int(1, 2), d.int(1, 2), d.int(1, 3), d.int(1, 3)
    heads, size, out = own * d.int(1, 2), d.int(1, 3), d.int(1, 3)
    q, k, v = (
        d.floats((batch, h, t, s), dtype, -2, 2)
        for h, t, s in ((heads, steps, size), (own, keys, size), (own, keys, out))
    )
    scale, attributes = 1 / np.sqrt(L(size)), {}
    if d.chance(0.3):
        attributes["scale"] = scale = 0.5
    each = heads // own
    wq, wk, wv = wide(q), np.repeat(wide(k), each, 1), np.repeat(wide(v), each, 1)
    scores = np.einsum("bhtd,bhsd->bhts", wq, wk) * scale
    kind = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    shown = [onnx.helper.make_tensor_value_info(name, kind, None) for name in "ab"]

    def graph(name, op, number):
        constant = onnx.numpy_helper.from_array(np.array(number, dtype), "n")
        node = onnx.helper.make_node(op, ["a", "n"], ["b"])
        return onnx.helper.make_graph([node], name, shown[:1], shown[1:], [constant])

    if d.chance(0.5):
        op = d.pick(["Add", "Mul"])
        attributes["score_mod"] = graph("score", op, 0.25)
        scores = scores + 0.25 if op == "Add" else scores * 0.25
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    if d.chance(0.5):
        attributes["prob_mod"] = graph("prob", "Mul", 0.5)
        weights = weights * 0.5
    y = np.einsum("bhts,bhsd->bhtd", weights, wv)
    return Case([Operand(q), Operand(k), Operand(v)], [Result(y, dtype, 256, 4.0)], attributes)


@row("CausalConvWithState")
def causal_conv(d: Draw) -> Case:
    dtype, batch, channels = d.dtype([F32, F64]), d.int(1, 2), d.int(1, 3)
    length, taps = d.int(1, 4), d.int(1, 3)
    x, w = d.floats((batch, channels, length), dtype), d.floats((channels, 1, taps), dtype)
    bias = d.floats((channels,), dtype) if d.chance(0.5) else None
    past = d.floats((batch, channels, taps - 1), dtype) if taps > 1 and d.chance(0.5) else None
    start = np.zeros((batch, channels, taps - 1), L) if past is None else wide(past)
    whole = np.concatenate([start, wide(x)], 2)
    terms = np.stack([whole[..., k : k + length] * wide(w)[:, 0, k, None] for k in range(taps)])
    y, size = terms.sum(0), np.abs(terms).sum(0)
    if bias is not None:
        y, size = y + wide(bias)[:, None], size + np.abs(wide(bias))[:, None]
    word = d.pick(["none", "silu", "swish"])
    if word != "none":
        y = y / (1 + np.exp(-y))
    operands = [None if v is None else Operand(v) for v in (x, w, bias, past)]
    while operands[-1] is None:
        operands.pop()
    outputs = [Result(y, dtype, 32, size + 1)]
    if taps > 1 and d.chance(0.6):
        outputs.append(Result(whole[..., length:], dtype, 0))
    return Case(operands, outputs, {"activation": word} if word != "none" or d.chance(0.5) else {})


@row("LinearAttention")
def linear_attention(d: Draw) -> Case:
    dtype, batch, steps = d.dtype([F32, F64]), d.int(1, 2), d.int(1, 3)
    heads, each, size, out = d.int(1, 2), d.int(1, 2), d.int(1, 2), d.int(1, 2)
    rule = d.pick(["linear", "gated", "delta", "gated_delta"])
    decays, corrects = "gated" in rule, "delta" in rule
    q, k, v = (
        d.floats((batch, steps, n), dtype, -1, 1)
        for n in (heads * each * size, heads * size, heads * out)
    )
    state = d.floats((batch, heads, size, out), dtype, -1, 1) if d.chance(0.5) else None
    decay = rate = None
    if decays:
        wide_ = d.pick([heads, heads * size])
        decay = d.floats((batch, steps, wide_), dtype, -1, 0)
    if corrects:
        rate = d.floats((batch, steps, d.pick([heads, 1])), dtype, 0, 1)
    scale = d.pick([0.0, 0.5])
    s = np.zeros((batch, heads, size, out), L) if state is None else wide(state)
    q4, k4, v4 = (
        wide(t).reshape(batch, steps, *shape)
        for t, shape in ((q, (heads, each, size)), (k, (heads, size)), (v, (heads, out)))
    )
    rows = []
    for t in range(steps):
        if decays:
            s = s * np.exp(wide(decay)[:, t]).reshape(batch, heads, -1, 1)
        value = v4[:, t]
        if corrects:
            said = np.einsum("bhd,bhde->bhe", k4[:, t], s)
            value = (value - said) * wide(rate)[:, t, :, None]
        s = s + k4[:, t, :, :, None] * value[:, :, None]
        rows.append(np.einsum("bhgd,bhde->bhge", q4[:, t], s).reshape(batch, -1))
    y = np.stack(rows, 1) * (L(scale) if scale else 1 / np.sqrt(L(size)))
    operands = [None if a is None else Operand(a) for a in (q, k, v, state, decay, rate)]
    while operands[-1] is None:
        operands.pop()
    most = 16.0
    attributes = {
        "update_rule": rule,
        "q_num_heads": heads * each,
        "kv_num_heads": heads,
        "scale": scale,
    }
    return Case(operands, [Result(y, dtype, 64, most), Result(s, dtype, 64, most)], attributes)
