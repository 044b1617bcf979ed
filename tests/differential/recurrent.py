"""LSTM, GRU and RNN."""

import numpy as np

from elementwise import sigmoid
from frame import (
    F32,
    F64,
    Case,
    Draw,
    Operand,
    Result,
    row,
    wide,
)

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# A step's products are summed in the element type, and steps follow on each other.
UNITS = 128


def steps(name: str, x, w, r, b, h, c, p, linear: bool, activation: str):
    """One direction over all steps: states, and the last cell."""
    n = r.shape[-1]
    wb, rb = np.split(b, 2)
    ys = []
    for xt in x:
        a, s = xt @ w.T + wb, h @ r.T + rb
        match name:
            case "LSTM":
                pi, po, pf = np.split(p, 3)
                i, o, f, g = np.split(a + s, 4, -1)
                i, f, g = sigmoid(i + pi * c), sigmoid(f + pf * c), np.tanh(g)
                c = f * c + i * g
                h = sigmoid(o + po * c) * np.tanh(c)
            case "GRU":
                z, q = np.split(sigmoid((a + s)[:, : 2 * n]), 2, -1)
                if linear:
                    inner = a[:, 2 * n :] + q * s[:, 2 * n :]
                else:
                    inner = a[:, 2 * n :] + (q * h) @ r[2 * n :].T + rb[2 * n :]
                h = (1 - z) * np.tanh(inner) + z * h
            case "RNN":
                h = np.tanh(a + s) if activation == "Tanh" else np.maximum(a + s, 0)
        ys.append(h)
    return np.stack(ys), c


@row(*GATES)
def recurrent(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    most = 4 if not d.smooth else 2
    t, batch, inputs, n = (
        d.int(1, most),
        d.int(1, 3),
        d.int(1, most),
        d.pick([1, 2, most, 9 if not d.smooth else 2]),
    )
    direction = d.pick(["forward", "reverse", "bidirectional"])
    turns = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    k, g = len(turns), GATES[d.name]
    layout = d.int(0, 1) if d.chance(0.4) else 0
    x = d.floats((t, batch, inputs), dtype)
    w, r = d.floats((k, g * n, inputs), dtype, -1, 1), d.floats((k, g * n, n), dtype, -1, 1)
    b = d.floats((k, 2 * g * n), dtype, -1, 1) if d.chance(0.7) else None
    h0 = d.floats((k, batch, n), dtype, -1, 1) if d.chance(0.5) else None
    lengths = np.full(batch, t, np.int32) if d.chance(0.2) else None
    c0 = d.floats((k, batch, n), dtype, -1, 1) if d.name == "LSTM" and d.chance(0.5) else None
    p = d.floats((k, 3 * n), dtype, -1, 1) if d.name == "LSTM" and d.chance(0.4) else None
    linear = d.name == "GRU" and d.chance(0.5)
    attributes = {"hidden_size": n}
    if direction != "forward" or d.chance(0.5):
        attributes["direction"] = direction
    if layout or d.chance(0.3):
        attributes["layout"] = layout
    if d.name == "GRU":
        attributes["linear_before_reset"] = int(linear)
    activations = ["Tanh"] * k
    if d.name == "RNN" and d.chance(0.5):
        activations = attributes["activations"] = [
            d.pick(["Tanh", "Relu"]) if not d.smooth else "Tanh" for _ in turns
        ]
    ys, hs, cs = [], [], []
    for i, turned in enumerate(turns):
        of = lambda v, shape: np.zeros(shape, np.longdouble) if v is None else wide(v[i])
        y, c = steps(
            d.name,
            wide(x)[::-1] if turned else wide(x),
            wide(w[i]),
            wide(r[i]),
            of(b, 2 * g * n),
            of(h0, (batch, n)),
            of(c0, (batch, n)),
            of(p, 3 * n),
            linear,
            activations[i],
        )
        hs.append(y[-1])
        cs.append(c)
        ys.append(y[::-1] if turned else y)
    y, h, c = np.stack(ys, 1), np.stack(hs), np.stack(cs)
    if layout:
        x, y, h, c = x.swapaxes(0, 1), y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
        h0, c0 = (None if v is None else v.swapaxes(0, 1) for v in (h0, c0))
    operands = [x, w, r, b, lengths, h0, c0, p][: 8 if d.name == "LSTM" else 6]
    inputs_ = [
        (
            None
            if v is None
            else Operand(np.ascontiguousarray(v), trained=v is not lengths, fixed=v is lengths)
        )
        for v in operands
    ]
    while inputs_[-1] is None:
        inputs_.pop()
    size = 1.0 if "Relu" not in activations else max(1.0, float(np.abs(y).max()))
    results = [
        Result(v, dtype, UNITS, size * 4) for v in ((y, h, c) if d.name == "LSTM" else (y, h))
    ]
    outputs = [v if d.chance(0.7) else None for v in results]
    if not any(outputs):
        outputs = results[:1]
    while outputs[-1] is None:
        outputs.pop()
    return Case(inputs_, outputs, attributes)
