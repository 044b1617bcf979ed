"""Writes ONNX's own backend node tests to a folder, for tests/onnx_nodes.rs to read.

    python generate.py FOLDER

FOLDER/index.json      version of onnx, and for each test its name, tolerances, and what is
                       special about it
FOLDER/NAME/model.onnx the model
FOLDER/NAME/tensors.pb a GraphProto whose initializers are the values of the model's inputs,
                       then of its outputs, in order

A test whose values are not all tensors has no tensors.pb; the index says what they are
(`other_values`). The index is written last: a folder without one is incomplete.
"""

import json
import os
import sys
import warnings

import numpy as np
import onnx
from onnx import GraphProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator


def encoded(name: str, value: object) -> TensorProto:
    """A tensor whose elements are in raw_data, strings aside."""
    array = numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
    return numpy_helper.from_array(array, name)


def write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


# NumPy transforms complex64 in single precision, which makes 1.9e-7 of what is zero: more than the
# tolerance of these tests, 1e-7.
SINGLE = "test_dft_inverse"


def in_double(model: object, inputs: list, outputs: list) -> list:
    """What ONNX's reference gives for the same operands in double precision, in the outputs' types."""
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs]
    names = [info.name for info in model.graph.input]
    found = ReferenceEvaluator(model).run(None, dict(zip(names, wide)))
    for y, old in zip(found, outputs):
        assert y.dtype == np.float64 and np.allclose(y, old, 1e-5, 1e-6)
    return [y.astype(old.dtype) for y, old in zip(found, outputs)]


def export(case: object, folder: str) -> dict:
    """Writes one test and gives its entry in the index."""
    entry = {"name": case.name, "rtol": case.rtol, "atol": case.atol}
    model = case.model
    os.makedirs(os.path.join(folder, case.name), exist_ok=True)
    write(os.path.join(folder, case.name, "model.onnx"), model.SerializeToString(deterministic=True))

    infos = [*model.graph.input, *model.graph.output]
    kinds = {info.type.WhichOneof("value").removesuffix("_type") for info in infos}
    if other := sorted(kinds - {"tensor"}):
        entry["other_values"] = other
        return entry
    [(inputs, outputs)] = case.data_sets
    if case.name.startswith(SINGLE):
        outputs = in_double(model, inputs, outputs)
    values = [*inputs, *outputs]
    assert len(values) == len(infos), case.name
    tensors = [encoded(info.name, value) for info, value in zip(infos, values)]
    data = GraphProto(initializer=tensors).SerializeToString(deterministic=True)
    write(os.path.join(folder, case.name, "tensors.pb"), data)
    return entry


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    folder = sys.argv[1]
    warnings.simplefilter("ignore", RuntimeWarning)  # the tests divide by zero on purpose
    # Importing the cases computes them all, each operator's after seeding NumPy with 0.
    from onnx.backend.test.case.node import collect_testcases

    entries = [export(case, folder) for case in collect_testcases(None)]
    entries.sort(key=lambda entry: entry["name"])
    index = json.dumps({"onnx": onnx.__version__, "tests": entries}, indent=1) + "\n"
    path = os.path.join(folder, "index.json")
    write(path + ".new", index.encode())
    os.replace(path + ".new", path)
    print(f"{len(entries)} node tests of onnx {onnx.__version__} in {folder}")


if __name__ == "__main__":
    main()
