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


M = "com.microsoft."


def forward(x, w, r, b, h, c, p):
    """States, cells and gates of every step of an LSTM, with what went before each."""
    wb, rb = np.split(b, 2)
    pi, po, pf = np.split(p, 3)
    found = []
    for xt in x:
        a = xt @ w.T + wb + h @ r.T + rb
        i, o, f, g = np.split(a, 4, -1)
        i, f, g = sigmoid(i + pi * c), sigmoid(f + pf * c), np.tanh(g)
        after = f * c + i * g
        o = sigmoid(o + po * after)
        found.append((h, c, o * np.tanh(after), after, np.concatenate([i, o, f, g], -1)))
        h, c = found[-1][2:4]
    return [np.stack(v) for v in zip(*found)]


def lstm_operands(d: Draw, dtype):
    most = 3 if not d.smooth else 2
    t, batch, inputs, n = d.int(1, most), d.int(1, 2), d.int(1, most), d.int(1, most)
    x = d.floats((t, batch, inputs), dtype)
    w, r = d.floats((1, 4 * n, inputs), dtype, -1, 1), d.floats((1, 4 * n, n), dtype, -1, 1)
    given = {
        "b": (1, 8 * n),
        "h": (1, batch, n),
        "c": (1, batch, n),
        "p": (1, 3 * n),
    }
    rest = {
        k: d.floats(shape, dtype, -1, 1) if d.chance(0.5) else None for k, shape in given.items()
    }
    zeros = {k: np.zeros(shape, np.longdouble) for k, shape in given.items()}
    of = lambda k: (zeros[k] if rest[k] is None else wide(rest[k]))[0]
    found = forward(wide(x), wide(w[0]), wide(r[0]), of("b"), of("h"), of("c"), of("p"))
    return x, w, r, rest, of("p"), found


@row(M + "LSTMTraining")
def lstm_training(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    x, w, r, rest, _, (_, _, ys, cs, gates) = lstm_operands(d, dtype)
    all_ = [ys[:, None], ys[-1:], cs[-1:], cs[:, None], gates[:, None]]
    outputs = [Result(v, dtype, UNITS, 4) for v in all_]
    if d.smooth:
        # Nothing reads the gates but a gradient.
        outputs.pop()
    operands = [x, w, r, rest["b"], None, rest["h"], rest["c"], rest["p"]]
    operands = [None if v is None else Operand(v) for v in operands]
    while operands[-1] is None:
        operands.pop()
    return Case(operands, outputs, {"hidden_size": r.shape[-1]})


@row(M + "LSTMGrad")
def lstm_grad(d: Draw) -> Case:
    dtype = d.dtype([F32, F64])
    x, w, r, rest, p, (before, cells, ys, cs, gates) = lstm_operands(d, dtype)
    t, batch, n = ys.shape
    made = [v.astype(dtype) for v in (ys, cs, gates)]
    ys, cs, gates = (wide(v) for v in made)
    # What is before the first step is an operand, what is before others is a result.
    before, cells = (
        np.concatenate([v[:1], all_[:-1]]) for v, all_ in ((before, ys), (cells, cs))
    )
    shapes = ((t, 1, batch, n), (1, batch, n), (1, batch, n))
    given = [d.floats(shape, dtype) if i == 0 or d.chance(0.6) else None for i, shape in enumerate(shapes)]
    dh, dc = (0 if v is None else wide(v[0]) for v in given[1:])
    pi, po, pf = np.split(p, 3)
    rows = []
    for k in reversed(range(t)):
        i, o, f, g = np.split(gates[k], 4, -1)
        dh = dh + wide(given[0][k, 0])
        tanh = np.tanh(cs[k])
        do = dh * tanh * o * (1 - o)
        dc = dc + dh * o * (1 - tanh**2) + do * po
        di, df = dc * g * i * (1 - i), dc * cells[k] * f * (1 - f)
        dg = dc * i * (1 - g**2)
        dc = dc * f + di * pi + df * pf
        rows.append(np.concatenate([di, do, df, dg], -1))
        dh = rows[-1] @ wide(r[0])
    pre = np.stack(rows[::-1])
    flat = pre.reshape(t * batch, -1)
    size = 1 + np.abs(flat).sum()
    db = flat.sum(0)
    seen = [(pre[..., j * n : (j + 1) * n] * v).sum((0, 1)) for j, v in enumerate((cells, cs, cells))]
    results = [
        (pre @ wide(w[0])),
        (flat.T @ wide(x).reshape(t * batch, -1))[None],
        (flat.T @ before.reshape(t * batch, -1))[None],
        np.concatenate([db, db])[None],
        dh[None] + np.zeros((1, batch, n)),
        dc[None] + np.zeros((1, batch, n)),
        np.concatenate(seen)[None],
    ]
    ys, cs, gates = (v[:, None] for v in made)
    operands = [x, w, r, rest["b"], None, rest["h"], rest["c"], rest["p"], ys, cs, gates, *given]
    operands = [None if v is None else Operand(v) for v in operands]
    while operands[-1] is None:
        operands.pop()
    return Case(
        operands, [Result(v, dtype, UNITS, size) for v in results], {"hidden_size": n}
    )
