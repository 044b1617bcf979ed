#!/usr/bin/env python3
"""Writes a memory graph of a transformer's training step with about N operators.

    benches/memory_graph.py 10000 graph.json

The format is that of `arenic order`. Each layer has attention and a feed-forward block with
residual connections; the backward pass reads saved activations, makes input and weight
gradients as separate operators, and every parameter has its update at the very end, as
frameworks define it. Sizes vary by layer, so that no two layers are alike.
"""

import argparse
import json


class Graph:
    def __init__(self):
        self.nodes, self.tensors = [], []

    def tensor(self, size, kind, producer=-1):
        tensor = {"id": len(self.tensors), "bytes": size, "producer": producer, "consumers": [], "kind": kind}
        self.tensors.append(tensor)
        return tensor

    def run(self, op, reads, writes):
        node = len(self.nodes)
        self.nodes.append({"id": node, "name": f"{op}_{node}", "op": op})
        for tensor in reads:
            tensor["consumers"].append(node)
        return [self.tensor(size, kind, node) for size, kind in writes]


def linear(g, x, width_in, width_out, tokens, layers):
    """y = x W + b; what its backward pass needs goes onto `layers`."""
    weight = g.tensor(4 * width_in * width_out, "weight")
    bias = g.tensor(4 * width_out, "weight")
    (y,) = g.run("linear", [x, weight, bias], [(4 * tokens * width_out, "activation")])

    def backward(dy):
        (dx,) = g.run("linear_dx", [dy, weight], [(4 * tokens * width_in, "gradient")])
        (dw,) = g.run("linear_dw", [dy, x], [(weight["bytes"], "gradient")])
        (db,) = g.run("linear_db", [dy], [(bias["bytes"], "gradient")])
        return dx, [(weight, dw), (bias, db)]

    layers.append(backward)
    return y


def unary(g, op, x, layers):
    (y,) = g.run(op, [x], [(x["bytes"], "activation")])

    def backward(dy):
        return g.run(f"{op}_dx", [dy, x], [(x["bytes"], "gradient")])[0], []

    layers.append(backward)
    return y


def norm(g, x, width, layers):
    scale = g.tensor(4 * width, "weight")
    statistics = x["bytes"] // width * 2
    y, saved = g.run("norm", [x, scale], [(x["bytes"], "activation"), (statistics, "activation")])

    def backward(dy):
        reads = [dy, x, saved, scale]
        dx, ds = g.run("norm_dx", reads, [(x["bytes"], "gradient"), (scale["bytes"], "gradient")])
        return dx, [(scale, ds)]

    layers.append(backward)
    return y


def block(g, x, branch):
    """x + branch(x), and the backward pass of both."""
    layers = []
    y = branch(x, layers)
    (out,) = g.run("add", [x, y], [(x["bytes"], "activation")])

    def backward(d):
        dy, updates = d, []
        for layer in reversed(layers):
            dy, found = layer(dy)
            updates += found
        (dx,) = g.run("add_dx", [d, dy], [(d["bytes"], "gradient")])
        return dx, updates

    return out, backward


def transformer(operators):
    g = Graph()
    tokens, blocks, layer = 256, [], 0
    (x,) = g.run("embed", [g.tensor(8 * tokens, "input")], [(4 * tokens * 256, "activation")])
    # A layer has 40 operators: 9 forward, 20 backward, 11 updates.
    while 40 * (layer + 1) <= operators:
        wide = 4 * (192 + 64 * (layer * 7 % 5))

        def attention(x, layers):
            y = norm(g, x, 256, layers)
            y = linear(g, y, 256, 3 * 64 * (1 + layer % 4), tokens, layers)
            y = unary(g, "attend", y, layers)
            return linear(g, y, 3 * 64 * (1 + layer % 4), 256, tokens, layers)

        def feed_forward(x, layers):
            y = norm(g, x, 256, layers)
            y = linear(g, y, 256, wide, tokens, layers)
            y = unary(g, "gelu", y, layers)
            return unary(g, "drop", linear(g, y, wide, 256, tokens, layers), layers)

        for branch in (attention, feed_forward):
            x, backward = block(g, x, branch)
            blocks.append(backward)
        layer += 1
    g.run("loss", [x], [(4, "output")])
    (d,) = g.run("loss_dx", [x], [(x["bytes"], "gradient")])
    updates = []
    for backward in reversed(blocks):
        d, found = backward(d)
        updates += found
    for weight, gradient in updates:
        g.run("sgd_update", [weight, gradient], [])
    return g


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("operators", type=int)
    parser.add_argument("file")
    args = parser.parse_args()
    g = transformer(args.operators)
    with open(args.file, "w") as file:
        json.dump({"nodes": g.nodes, "tensors": g.tensors}, file)
    print(f"{args.file}: {len(g.nodes)} operators, {len(g.tensors)} tensors")


if __name__ == "__main__":
    main()
