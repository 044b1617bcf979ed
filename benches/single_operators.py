#!/usr/bin/env python3
"""Prints what single operators take beside onnxruntime, on one thread.

    benches/single_operators.py --arenic target/release/arenic [--rounds N] [OPERATOR ...]

Each operator is a graph of its own. Both measure it by turns: `arenic profile`, and onnxruntime's session with operands
and results bound, the least of 30 runs. Microseconds are the least of all rounds. Where OPERATORs are given, only rows
whose name has one of them as a part are measured.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import records

RUNS = 30
COLUMNS = {
    "operator": "operator",
    "arenic_us": ("arenic, µs", ".0f"),
    "onnxruntime_us": ("onnxruntime, µs", ".0f"),
    "ratio": ("arenic / onnxruntime", ".2f"),
}


def operators():
    """Names to an ONNX operator, its attributes, the shape of its operand and further constant operands."""
    scales = np.array([1, 1, 2, 2], np.float32)
    empty = np.zeros(0, np.float32)

    scale_and_bias = [np.ones(768, np.float32), np.zeros(768, np.float32)]
    halves = {"kernel_shape": [2, 2], "strides": [2, 2]}
    thirds = {"kernel_shape": [3, 3], "pads": [1] * 4}
    return {
        "softmax, last axis [4096,768]": ("Softmax", {"axis": -1}, [4096, 768], []),
        "softmax, last axis [8,12,128,128]": ("Softmax", {"axis": -1}, [8, 12, 128, 128], []),
        "log softmax, last axis [512,8192]": ("LogSoftmax", {"axis": -1}, [512, 8192], []),
        "layer normalisation [4096,768]": ("LayerNormalization", {"axis": -1}, [4096, 768], scale_and_bias),
        "GELU [4096,768]": ("Gelu", {}, [4096, 768], []),
        "clip to 0 and 6 [32,64,56,56]": ("Clip", {}, [32, 64, 56, 56], [np.float32(0), np.float32(6)]),
        "average pool, global [32,512,7,7]": ("GlobalAveragePool", {}, [32, 512, 7, 7], []),
        "average pool 2x2 [32,64,56,56]": ("AveragePool", halves, [32, 64, 56, 56], []),
        "average pool 3x3 [32,64,56,56]": ("AveragePool", thirds, [32, 64, 56, 56], []),
        "max pool 2x2 [32,64,56,56]": ("MaxPool", halves, [32, 64, 56, 56], []),
        "max pool 3x3 [32,64,112,112]": ("MaxPool", {**thirds, "strides": [2, 2]}, [32, 64, 112, 112], []),
        "resize x2, linear [8,64,56,56]": ("Resize", {"mode": "linear"}, [8, 64, 56, 56], [empty, scales]),
        "resize x2, nearest [8,64,56,56]": ("Resize", {"mode": "nearest"}, [8, 64, 56, 56], [empty, scales]),
    }


def model(operator, attributes, shape, constants):
    names = [f"c{i}" for i in range(len(constants))]
    node = helper.make_node(operator, ["x", *names], ["y"], **attributes)
    tensors = [onnx.numpy_helper.from_array(value, name) for value, name in zip(constants, names)]
    graph = helper.make_graph(
        [node],
        "operator",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made, data_prop=True)


def of_onnxruntime(path, x):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    result = session.run(None, {"x": x})[0]
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(result)))
    least = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        least = min(least, time.perf_counter() - start)
    return least


def of_arenic(arenic, artifact):
    printed = subprocess.run(
        [arenic, "profile", artifact, "--threads", "1", "--json"], check=True, capture_output=True, text=True
    ).stdout
    rows = [json.loads(line) for line in printed.splitlines() if line]
    return sum(row["seconds"] for row in rows if "operator" in row)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arenic", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    records.add_options(parser)
    parser.add_argument("operators", nargs="*", metavar="OPERATOR")
    args = parser.parse_args()
    record = records.Record(__file__, args.record, arenic=args.arenic, packages=["onnxruntime"])
    with tempfile.TemporaryDirectory() as folder, record:
        table = record.table(COLUMNS)
        path, artifact = str(pathlib.Path(folder, "x.onnx")), str(pathlib.Path(folder, "x.arenic"))
        for name, (operator, attributes, shape, constants) in operators().items():
            if args.operators and not any(part in name for part in args.operators):
                continue
            onnx.save(model(operator, attributes, shape, constants), path)
            subprocess.run([args.arenic, "compile", path, "-o", artifact], check=True, capture_output=True)
            x = np.random.default_rng(0).standard_normal(shape, np.float32)
            ours, theirs = float("inf"), float("inf")
            for _ in range(args.rounds):
                ours = min(ours, of_arenic(args.arenic, artifact))
                theirs = min(theirs, of_onnxruntime(path, x))
            table.add(operator=name, arenic_us=ours * 1e6, onnxruntime_us=theirs * 1e6, ratio=ours / theirs)


if __name__ == "__main__":
    main()
