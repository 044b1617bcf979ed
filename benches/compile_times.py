"""Compile times of synthetic training steps: a deep multi-layer perceptron with
momentum, forward, backward and update, of about the given numbers of operators.

usage: compile_times.py [--arenic BIN] [NODES ...]        (default: 1000 10000 100000)
"""

import argparse
import json
import os
import subprocess
import tempfile
import time

import onnx
from onnx import TensorProto, helper

import records

# Operators per layer: forward 3, backward 5, update 6.
PER_LAYER = 14
BATCH, WIDTH = 8, 16
COLUMNS = {
    "nodes": ("about", "d"),
    "operators": ("operators", "d"),
    "seconds": ("seconds", ".2f"),
    "import_seconds": ("of these import", ".2f"),
    "arena_over_live_peak": ("arena / live peak", ".4f"),
}


def step(nodes):
    layers = max(1, nodes // PER_LAYER)
    n, inputs, outputs = [], [], []

    def value(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def add(op, ins, out, **attributes):
        n.append(helper.make_node(op, ins, [out], **attributes))
        return out

    inputs += [value("x", [BATCH, WIDTH]), value("lr", []), value("mu", [])]
    h = "x"
    for i in range(layers):
        for name, shape in ((f"w{i}", [WIDTH, WIDTH]), (f"b{i}", [WIDTH])):
            inputs += [value(name, shape), value(f"m.{name}", shape)]
            outputs += [value(f"out_{name}", shape), value(f"out_m.{name}", shape)]
        z = add("MatMul", [h, f"w{i}"], f"z{i}")
        h = add("Tanh", [add("Add", [z, f"b{i}"], f"a{i}")], f"h{i}")
    add("ReduceSum", [add("Mul", [h, h], "square")], "loss", keepdims=0)
    outputs.append(value("loss", []))
    g = h
    for i in reversed(range(layers)):
        x = f"h{i - 1}" if i else "x"
        slope = add("Mul", [f"h{i}", f"h{i}"], f"s{i}")
        d = add("Sub", [g, add("Mul", [g, slope], f"t{i}")], f"d{i}")
        gradients = {
            f"w{i}": add("Gemm", [x, d], f"gw{i}", transA=1),
            f"b{i}": add("ReduceSum", [d, "axis0"], f"gb{i}", keepdims=0),
        }
        g = add("Gemm", [d, f"w{i}"], f"g{i}", transB=1)
        for name, gradient in gradients.items():
            m = add("Mul", [f"m.{name}", "mu"], f"k.{name}")
            m = add("Add", [m, gradient], f"out_m.{name}")
            add("Sub", [name, add("Mul", [m, "lr"], f"u.{name}")], f"out_{name}")
    axis = helper.make_tensor("axis0", TensorProto.INT64, [1], [0])
    graph = helper.make_graph(n, "deep", inputs, outputs, [axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("nodes", nargs="*", type=int)
    records.add_options(parser)
    arguments = parser.parse_args()
    with records.Record(__file__, arguments.record, arenic=arguments.arenic) as record:
        table = record.table(COLUMNS)
        for nodes in arguments.nodes or [1000, 10000, 100000]:
            with tempfile.TemporaryDirectory() as folder:
                table.add(nodes=nodes, **times(arguments.arenic, nodes, folder))


def times(arenic, nodes, folder):
    """Seconds to compile a step of about so many operators."""
    path, out = os.path.join(folder, "deep.onnx"), os.path.join(folder, "deep.arenic")
    onnx.save(step(nodes), path)
    command = [arenic, "compile", path]
    start = time.perf_counter()
    run = subprocess.run([*command, "-o", out, "--json"], check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    # The first pass of the default pipeline costs next to nothing.
    subprocess.run([*command, "--stop-after", "fold_constants"], check=True, capture_output=True)
    reading = time.perf_counter() - start
    report = json.loads(run.stdout)
    over = report["arena_bytes"] / report["live_peak_bytes"]
    return {"operators": report["nodes"], "seconds": seconds, "import_seconds": reading, "arena_over_live_peak": over}


if __name__ == "__main__":
    main()
