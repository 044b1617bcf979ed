"""Writes random cases of operators, and what is right of them, for the test `differential`.

    python generate.py FOLDER [--cases N] [--gradients N] [--seed SEED]

FOLDER/index.json  for each case: its row, its model and tensors as parts of cases.bin; written
                   last, so that a folder without one is incomplete
FOLDER/cases.bin   encoded models, then tensors: operands in their element type, right results of
                   floats as doubles with a tolerance, a double, for every element

There are N cases of each generator's row, whether or not the importer has that row, so that one
that is new to it is tested by being there. A case for a gradient is of doubles; its operands that
are `trained` are differentiated by.
"""

import argparse
import json
import os
import warnings

import numpy as np
import onnx

import axes  # noqa: F401  Generators register themselves.
import elementwise  # noqa: F401
import losses  # noqa: F401
import movement  # noqa: F401
import products  # noqa: F401
import recurrent  # noqa: F401
import regions  # noqa: F401
import runtime  # noqa: F401
import sequences  # noqa: F401
import spatial  # noqa: F401
from frame import (
    F64,
    GENERATORS,
    LARGEST,
    PRECISION,
    SMALLEST,
    Case,
    Draw,
    Result,
    is_float,
)

NAMES = {"bfloat16": "bf16", "float32": "f32", "float64": "f64"}


def type_name(dtype: np.dtype) -> str:
    """As arenic spells it."""
    name = np.dtype(dtype).name
    return NAMES.get(name) or name.replace("uint", "u").replace("int", "i")


class Blob:
    """Bytes one after the other."""

    def __init__(self):
        self.parts, self.length = [], 0

    def put(self, data: bytes) -> list[int]:
        place = [self.length, len(data)]
        self.parts.append(data)
        self.length += len(data)
        return place

    def array(self, x: np.ndarray) -> list[int]:
        return self.put(np.ascontiguousarray(x).tobytes())


def right(r: Result) -> tuple[np.ndarray, np.ndarray]:
    """Doubles that are right, and how far a result may be from them."""
    y = np.asarray(r.array, np.longdouble)
    with np.errstate(all="ignore"):
        size = np.maximum(
            np.abs(y), np.broadcast_to(np.asarray(r.magnitude, np.longdouble), y.shape)
        )
        size = np.where(np.isfinite(size), size, 0)
        tolerance = r.units * PRECISION[r.dtype] * size + (SMALLEST[r.dtype] if r.units else 0)
        # What is rounded to the element type may be half a unit off by that alone.
        tolerance = tolerance + PRECISION[r.dtype] / 2 * np.where(np.isfinite(y), np.abs(y), 0)
        y = np.where(np.abs(y) > LARGEST[r.dtype], np.sign(y) * np.inf, y)
        return y.astype(F64), tolerance.astype(F64)


def value_info(name: str, dtype: np.dtype, shape) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(
        name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape)
    )


def model_of(row: str, case: Case) -> onnx.ModelProto:
    domain, _, name = row.rpartition(".")
    inputs = ["" if x is None else f"x{i}" for i, x in enumerate(case.inputs)]
    outputs = ["" if y is None else f"y{i}" for i, y in enumerate(case.outputs)]
    nodes = case.nodes or [
        onnx.helper.make_node(name, inputs, outputs, domain=domain, **case.attributes)
    ]
    graph = onnx.helper.make_graph(
        nodes,
        row,
        [
            value_info(n, x.array.dtype, x.array.shape)
            for n, x in zip(inputs, case.inputs)
            if x is not None
        ],
        [
            value_info(n, y.dtype, np.shape(y.array))
            for n, y in zip(outputs, case.outputs)
            if y is not None
        ],
    )
    domains = [onnx.helper.make_opsetid("", onnx.defs.onnx_opset_version())]
    if domain:
        domains.append(onnx.helper.make_opsetid(domain, 1))
    return onnx.helper.make_model(graph, opset_imports=domains)


def entry(blob: Blob, row: str, seed: int, smooth: bool) -> dict | None:
    """One case; none where there is no such gradient to try."""
    case = GENERATORS[row](Draw(row, seed, smooth))
    inputs, outputs = [], []
    for i, x in enumerate(case.inputs):
        if x is None:
            continue
        trained = smooth and x.trained and not x.fixed and x.array.dtype == F64
        inputs.append(
            {
                "name": f"x{i}",
                "type": type_name(x.array.dtype),
                "shape": x.array.shape,
                "at": blob.array(x.array),
                "fixed": x.fixed,
                "trained": trained,
            }
        )
    for i, y in enumerate(case.outputs):
        if y is None:
            continue
        array, of = np.asarray(y.array), {
            "name": f"y{i}",
            "type": type_name(y.dtype),
            "shape": np.shape(y.array),
        }
        if is_float(np.dtype(y.dtype)):
            doubles, tolerance = right(y)
            of |= {"at": blob.array(doubles), "tolerance": blob.array(tolerance)}
        else:
            of["at"] = blob.array(array.astype(y.dtype))
        outputs.append(of)
    if smooth and not any(x["trained"] for x in inputs):
        return None
    if smooth and not any(y["type"] == "f64" for y in outputs):
        return None
    model = blob.put(model_of(row, case).SerializeToString(deterministic=True))
    return {
        "row": row,
        "seed": seed,
        "gradient": smooth,
        "model": model,
        "inputs": inputs,
        "outputs": outputs,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--gradients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", nargs="*", help="these alone")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    blob, cases = Blob(), []
    for row in sorted(given.rows or GENERATORS):
        for smooth, count in ((False, given.cases), (True, given.gradients)):
            for seed in range(given.seed, given.seed + count):
                made = entry(blob, row, seed, smooth)
                cases.extend([made] if made else [])
    os.makedirs(given.folder, exist_ok=True)
    with open(os.path.join(given.folder, "cases.bin"), "wb") as file:
        file.writelines(blob.parts)
    path = os.path.join(given.folder, "index.json")
    with open(path + ".new", "w") as file:
        json.dump({"rows": sorted(given.rows or GENERATORS), "cases": cases}, file)
    os.replace(path + ".new", path)
    print(f"{len(cases)} cases of {len(GENERATORS)} operators in {given.folder}")


if __name__ == "__main__":
    main()
