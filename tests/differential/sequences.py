"""Sequences of tensors, branches and loops: what a tensor becomes by way of them."""

import numpy as np
import onnx
from onnx import helper

from frame import F32, F64, FLOATS, I64, Case, Draw, Operand, Result, fixed, row, wide

node = helper.make_node


def split_by(d: Draw):
    """A tensor, the attributes and operands that split it, and its parts."""
    dtype = d.dtype(FLOATS)
    shape = list(d.shape(1, 3, zero=False))
    axis = d.axis(len(shape))
    extent = shape[axis]
    x = d.floats(shape, dtype)
    attributes = {"axis": axis}
    match d.int(0, 2):
        case 0:
            sizes, split = [1] * extent, None
            attributes["keepdims"] = d.int(0, 1)
        case 1:
            size = d.int(1, extent)
            sizes = [min(size, extent - i) for i in range(0, extent, size)]
            split = np.array(size, np.int64)
        case _:
            cut = d.int(0, extent)
            sizes, split = [cut, extent - cut], np.array([cut, extent - cut], np.int64)
    parts = np.split(wide(x), np.cumsum(sizes)[:-1], axis)
    if attributes.get("keepdims") == 0:
        parts = [p.squeeze(axis) for p in parts]
    operands = [Operand(x)] + ([] if split is None else [fixed(split)])
    names = [f"x{i}" for i in range(len(operands))]
    return dtype, operands, node("SplitToSequence", names, ["s"], **attributes), parts


@row("SplitToSequence", "SequenceAt", "SequenceLength")
def split(d: Draw) -> Case:
    dtype, operands, first, parts = split_by(d)
    if d.name == "SequenceLength" and not d.smooth:
        length = Result(np.array(len(parts)), I64)
        return Case(operands, [length], nodes=[first, node("SequenceLength", ["s"], ["y0"])])
    at = d.int(-len(parts), len(parts) - 1)
    while d.smooth and parts[at].size == 0:
        at = d.int(-len(parts), len(parts) - 1)
    nodes = [first, node("SequenceAt", ["s", f"x{len(operands)}"], ["y0"])]
    return Case(operands + [fixed(at)], [Result(parts[at], dtype, 0)], nodes=nodes)


@row("ConcatFromSequence", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceEmpty")
def joined(d: Draw) -> Case:
    dtype = d.dtype(FLOATS)
    shape = d.shape(1, 3, zero=False)
    tensors = [d.floats(shape, dtype) for _ in range(d.int(2, 4))]
    operands = [Operand(x) for x in tensors]
    names = [f"x{i}" for i in range(len(tensors))]
    nodes = [node("SequenceConstruct", names, ["s"])]
    if d.name == "SequenceEmpty":
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        nodes = [node("SequenceEmpty", [], ["s"], dtype=kind)]
        parts = []
    else:
        parts = list(map(wide, tensors))
    if d.name in ("SequenceInsert", "SequenceEmpty"):
        extra = tensors if not parts else [d.floats(shape, dtype)]
        for k, x in enumerate(extra):
            name = names[k] if not parts or d.name == "SequenceEmpty" else f"x{len(operands)}"
            if name not in names:
                operands.append(Operand(x))
            at = None if d.chance(0.4) else d.int(-len(parts), len(parts))
            given = [f"s{'' if k == 0 else k}", name]
            if at is not None:
                given.append(f"x{len(operands)}")
                operands.append(fixed(at))
            nodes.append(node("SequenceInsert", given, [f"s{k + 1}"]))
            place = len(parts) if at is None else at + len(parts) if at < 0 else at
            parts.insert(place, wide(x))
        last = f"s{len(extra)}"
    elif d.name == "SequenceErase":
        at = None if d.chance(0.4) else d.int(-len(parts), len(parts) - 1)
        given = ["s"] if at is None else ["s", f"x{len(operands)}"]
        if at is not None:
            operands.append(fixed(at))
        nodes.append(node("SequenceErase", given, ["s1"]))
        parts.pop(-1 if at is None else at)
        last = "s1"
    else:
        last = "s"
    new = d.int(0, 1)
    rank = len(shape) + new
    axis = d.axis(rank)
    y = np.stack(parts, axis) if new else np.concatenate(parts, axis)
    nodes.append(node("ConcatFromSequence", [last], ["y0"], axis=axis, new_axis=new))
    return Case(operands, [Result(y, dtype, 0)], nodes=nodes)


def info(name: str, dtype: np.dtype, shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


@row("If")
def branch(d: Draw) -> Case:
    """Both branches read what is around them."""
    dtype = d.dtype([F32, F64])
    x, y = (d.floats(d.shape(1, 3, zero=False), dtype) for _ in range(2))
    holds = d.chance(0.5)
    then = helper.make_graph([node("Add", ["x0", "x0"], ["t"])], "then", [], [info("t", dtype, None)])
    inner = helper.make_graph([node("Neg", ["u"], ["v"])], "inner", [], [info("v", dtype, None)])
    other = helper.make_graph(
        [
            node("Mul", ["x1", "x1"], ["u"]),
            node("If", ["x2"], ["e"], then_branch=inner, else_branch=inner),
        ],
        "other",
        [],
        [info("e", dtype, None)],
    )
    made = 2 * wide(x) if holds else -wide(y) * wide(y)
    nodes = [node("If", ["x2"], ["y0"], then_branch=then, else_branch=other)]
    operands = [Operand(x), Operand(y), fixed(holds, np.bool_)]
    return Case(operands, [Result(made, dtype, 4)], nodes=nodes)


@row("Loop")
def loop(d: Draw) -> Case:
    """`h ← tanh(h · w) + i`, until a count or a condition ends it; every `h` is a result, too."""
    dtype = d.dtype([F32, F64])
    shape = d.shape(1, 2, zero=False)
    h, w = d.floats(shape, dtype, -1, 1), d.floats(shape, dtype, -1, 1)
    turns, until = d.int(1, 4), d.int(1, 4)
    by_count, by_condition = d.pick([(True, False), (False, True), (True, True)])
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    goes_on = (
        [
            node("Constant", [], ["last"], value=onnx.numpy_helper.from_array(np.array(until - 1))),
            node("Less", ["i", "last"], ["goes"]),
        ]
        if by_condition
        else [node("Identity", ["on"], ["goes"])]
    )
    body = helper.make_graph(
        [
            node("Mul", ["h", "x2"], ["p"]),
            node("Tanh", ["p"], ["t"]),
            node("Cast", ["i"], ["n"], to=kind),
            node("Add", ["t", "n"], ["next"]),
            node("Identity", ["next"], ["each"]),
            *goes_on,
        ],
        "body",
        [info("i", I64, []), info("on", np.dtype(np.bool_), []), info("h", dtype, None)],
        [info("goes", np.dtype(np.bool_), []), info("next", dtype, None), info("each", dtype, None)],
    )
    count = min([turns] * by_count + [until] * by_condition)
    state, rows = wide(h), []
    for i in range(count):
        state = np.tanh(state * wide(w)) + i
        rows.append(state)
    given = ["x0" if by_count else "", "x3" if d.chance(0.5) else "", "x1"]
    nodes = [node("Loop", given, ["y0", "y1"], body=body)]
    operands = [fixed(turns), Operand(h), Operand(w), fixed(True, np.bool_)]
    results = [Result(state, dtype, 64), Result(np.stack(rows), dtype, 64)]
    return Case(operands, results, nodes=nodes)


@row("Scan")
def scan(d: Draw) -> Case:
    """`h ← tanh(h · x + z)` over an axis of `x` and one of `z`, each from either end."""
    dtype, turns = d.dtype([F32, F64]), d.int(1, 4)
    shape = d.shape(1, 2, zero=False)
    h = d.floats(shape, dtype, -1, 1)
    axes = [d.int(0, len(shape)) for _ in range(3)]
    back = [d.int(0, 1) for _ in range(3)]
    x, z = (d.floats((*shape[:a], turns, *shape[a:]), dtype, -1, 1) for a in axes[:2])
    body = helper.make_graph(
        [
            node("Mul", ["h", "a"], ["p"]),
            node("Add", ["p", "b"], ["s"]),
            node("Tanh", ["s"], ["next"]),
            node("Add", ["next", "x0"], ["each"]),
        ],
        "body",
        [info(name, dtype, None) for name in ("h", "a", "b")],
        [info(name, dtype, None) for name in ("next", "each")],
    )
    state, rows = wide(h), []
    for t in range(turns):
        a, b = (
            np.take(wide(v), turns - 1 - t if r else t, k) for v, k, r in zip((x, z), axes, back)
        )
        state = np.tanh(state * a + b)
        rows.append(state + wide(h))
    rows = np.stack(rows[::-1] if back[2] else rows, axes[2])
    axes = [a - len(shape) - 1 if d.chance(0.3) else a for a in axes]
    attributes = {"num_scan_inputs": 2, "body": body}
    if any(axes) or d.chance(0.5):
        attributes |= {"scan_input_axes": axes[:2], "scan_output_axes": axes[2:]}
    if any(back) or d.chance(0.5):
        attributes |= {"scan_input_directions": back[:2], "scan_output_directions": back[2:]}
    nodes = [node("Scan", ["x0", "x1", "x2"], ["y0", "y1"], **attributes)]
    results = [Result(state, dtype, 64, 1.0), Result(rows, dtype, 64, 2.0)]
    return Case([Operand(h), Operand(x), Operand(z)], results, nodes=nodes)


@row("SequenceMap")
def mapped(d: Draw) -> Case:
    """`tanh(s[i] * w)` and `s[i] + r[i]` of two sequences' elements and a tensor, joined again."""
    dtype, count = d.dtype([F32, F64]), d.int(1, 3)
    shape = d.shape(1, 2, zero=False)
    w = d.floats(shape, dtype, -1, 1)
    s, r = ([d.floats(shape, dtype, -1, 1) for _ in range(count)] for _ in range(2))
    body = helper.make_graph(
        [
            node("Mul", ["a", "w"], ["p"]),
            node("Tanh", ["p"], ["t"]),
            node("Add", ["a", "b"], ["u"]),
        ],
        "body",
        [info(name, dtype, None) for name in ("a", "w", "b")],
        [info(name, dtype, None) for name in ("t", "u")],
    )
    names = [f"x{i}" for i in range(2 * count + 1)]
    nodes = [
        node("SequenceConstruct", names[1 : count + 1], ["s"]),
        node("SequenceConstruct", names[count + 1 :], ["r"]),
        node("SequenceMap", ["s", "x0", "r"], ["t", "u"], body=body),
        node("ConcatFromSequence", ["t"], ["y0"], axis=0, new_axis=1),
        node("ConcatFromSequence", ["u"], ["y1"], axis=-1),
    ]
    first = np.stack([np.tanh(wide(a) * wide(w)) for a in s])
    second = np.concatenate([wide(a) + wide(b) for a, b in zip(s, r)], -1)
    results = [Result(first, dtype, 8, 1.0), Result(second, dtype, 2, 2.0)]
    return Case([Operand(x) for x in [w, *s, *r]], results, nodes=nodes)
