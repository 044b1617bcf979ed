"""Exported artifacts in other people's tools: ONNX's checker accepts them, and onnxruntime trains
five steps with the losses of the reference runs.

    check_export.py path/to/arenic
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

ROOT = pathlib.Path(__file__).parents[2]
TOLERANCE = 1e-5


def exported(arenic, model, folder):
    """Compiles a model and exports the artifact."""
    artifact, path = folder / "step.arenic", folder / "step.onnx"
    compiled = [arenic, "compile", model, "-o", artifact, "--time-limit", "1"]
    for command in (compiled, [arenic, "export", artifact, "-o", path]):
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return str(path)


def train(path, run, base):
    """Losses of five steps; what `out_X` gives is fed as `X` to the next."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    data, initial = np.load(f"{base}.data.npz"), np.load(f"{base}.init.npz")
    outputs = [o.name for o in session.get_outputs()]
    states = {o[4:]: initial[o[4:]] for o in outputs if o.startswith("out_")}
    losses = []
    for step in range(len(run["loss"])):
        feed = dict(states)
        for x in session.get_inputs():
            if x.name in run["set"]:
                feed[x.name] = np.full(x.shape, run["set"][x.name], np.float32)
            elif x.name not in feed:
                feed[x.name] = data[x.name][step * x.shape[0]:(step + 1) * x.shape[0]]
        results = dict(zip(outputs, session.run(None, feed)))
        states = {name: results[f"out_{name}"] for name in states}
        losses.append(float(results["loss"]))
    return losses


def main():
    arenic = pathlib.Path(sys.argv[1]).resolve()
    runs = sorted((ROOT / "tests/runs").glob("*.json"))
    assert len(runs) == 8, runs
    for file in runs:
        run = json.loads(file.read_text())
        with tempfile.TemporaryDirectory() as folder:
            path = exported(arenic, ROOT / "models/step" / run["onnx"], pathlib.Path(folder))
            onnx.checker.check_model(path, full_check=True)
            losses = train(path, run, file.with_suffix(""))
        off = max(abs(a - b) for a, b in zip(losses, run["loss"], strict=True))
        print(f"{file.stem}: losses within {off:.1e}")
        assert off <= TOLERANCE, (losses, run["loss"])


if __name__ == "__main__":
    main()
