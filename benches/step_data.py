"""Random data and states of whole training steps, for the scripts that time them."""

import json
import subprocess

import numpy as np

TYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}


def values(model):
    """Random inputs and states: name to array. Integers are 0 or 1, fit as any index."""
    random = np.random.default_rng(0)
    arrays = {}
    for value in model.graph.input:
        ty = value.type.tensor_type
        shape = [d.dim_value for d in ty.shape.dim]
        dtype = TYPES[ty.elem_type]
        if np.issubdtype(dtype, np.floating):
            # Positive, so that square roots of second moments and variances exist.
            array = np.abs(random.normal(0.0, 0.05, shape)) + 1e-3
            if value.name in ("lr", "eps"):
                array = np.full(shape, 1e-4)
        else:
            array = random.integers(0, 2, shape)
        arrays[value.name] = np.asarray(array, dtype=dtype)
    return arrays


def states_of(model):
    outputs = {o.name for o in model.graph.output}
    return [i.name for i in model.graph.input if "out_" + i.name in outputs]


def read_by(binary, artifact):
    """The names of the inputs that an artifact reads."""
    done = subprocess.run([binary, "inspect", artifact, "--json"], check=True, capture_output=True, text=True)
    return {i["name"] for i in json.loads(done.stdout)["inputs"]}
