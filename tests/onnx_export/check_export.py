"""Exported artifacts, and steps made of forward models, in other people's tools: ONNX's checker accepts them, and
onnxruntime trains five steps with the losses of the reference runs, PyTorch's and ONNX Runtime's own.

    check_export.py path/to/arenic
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

ROOT = pathlib.Path(__file__).parents[2]
TOLERANCE = 1e-5


def exported(arenic, model, folder):
    """Compiles a model, or training artifacts, and exports the artifact."""
    artifact, path = folder / "step.arenic", folder / "step.onnx"
    source = ["--ort", model] if model.is_dir() else [model]
    compiled = [arenic, "compile", *source, "-o", artifact, "--effort", "1"]
    for command in (compiled, [arenic, "export", artifact, "-o", path]):
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return str(path)


def train(path, steps, states, batch):
    """Losses; what `out_X` gives is fed as `X` to the next step."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of inputs with initial values, which states are
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    outputs = [o.name for o in session.get_outputs()]
    losses = []
    for step in range(steps):
        fed = [x for x in session.get_inputs() if f"out_{x.name}" not in outputs]
        results = session.run(None, {**states, **{x.name: batch(x, step) for x in fed}})
        results = dict(zip(outputs, results))
        states = {o[4:]: results[o] for o in outputs if o.startswith("out_")}
        losses.append(float(results["loss"]))
    return losses


def of_pytorch(arenic, file, folder):
    """Losses of a run in tests/runs, and the recorded ones."""
    run, base = json.loads(file.read_text()), file.with_suffix("")
    path = exported(arenic, ROOT / "models/step" / run["onnx"], folder)
    data, initial = np.load(f"{base}.data.npz"), dict(np.load(f"{base}.init.npz"))

    def batch(x, step):
        if x.name in run["set"]:
            return np.full(x.shape, run["set"][x.name], np.float32)
        return data[x.name][step * x.shape[0]:(step + 1) * x.shape[0]]

    known = {x.name for x in onnx.load(path).graph.input}
    states = {name: value for name, value in initial.items() if name in known}
    return path, train(path, len(run["loss"]), states, batch), run["loss"]


def of_forward_model(arenic, file, folder):
    """The same of the step that arenic makes of the forward model."""
    run, base, path = json.loads(file.read_text()), file.with_suffix(""), folder / "step.onnx"
    network, optimizer = file.stem.split("_b4_")
    optimizer = {"sgdm": "momentum"}.get(optimizer, optimizer)
    loss = ["--loss", "cross_entropy", "--optimizer", optimizer]
    model = ROOT / f"models/forward/{network}.onnx"
    command = [arenic, "differentiate", model, "--dim", "batch=4", *loss, "-o", path]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    data = np.load(f"{base}.data.npz")

    def batch(x, step):
        if x.name == "lr":
            return np.array(run["set"]["lr"], np.float32)
        return data[x.name][step * x.shape[0]:(step + 1) * x.shape[0]]

    return str(path), train(str(path), len(run["loss"]), {}, batch), run["loss"]


def of_onnxruntime(arenic, file, folder):
    """The same of ONNX Runtime's training artifacts by SGD, whose values are in the file."""
    run = json.loads(file.read_text())
    source = folder / "artifacts"
    shutil.copytree(file.parent / run["folder"], source)
    shutil.copy(file.parent / run["folder"] / run["optimizer"], source / "optimizer_model.onnx")
    path = exported(arenic, source, folder)
    classes = 65 if run["folder"].startswith("gpt") else 10

    def batch(x, step):
        i = np.arange(int(np.prod(x.shape)), dtype=np.int64)
        if x.name == "lr":
            return np.array(run["rate"], np.float32)
        if x.type == "tensor(float)":
            return (((i * 37 + 11 * step) % 101) / 50 - 1).astype(np.float32).reshape(x.shape)
        return ((i * 7 + 3 * step) % classes).reshape(x.shape)

    # Initializers say what states are before the first step.
    return path, train(path, len(run["losses"]), {}, batch), run["losses"]


def main():
    arenic = pathlib.Path(sys.argv[1]).resolve()
    recorded = sorted((ROOT / "tests/runs").glob("*.json"))
    runs = [(of, f) for of in (of_pytorch, of_forward_model) for f in recorded]
    by_sgd = sorted((ROOT / "tests/fixtures/ort").glob("*_sgd.json"))
    runs += [(of_onnxruntime, f) for f in by_sgd]
    assert len(runs) == 20, runs
    for trained, file in runs:
        with tempfile.TemporaryDirectory() as folder:
            path, losses, expected = trained(arenic, file, pathlib.Path(folder))
            onnx.checker.check_model(path, full_check=True)
        off = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
        print(f"{trained.__name__}, {file.stem}: losses within {off:.1e}")
        assert off <= TOLERANCE, (losses, expected)


if __name__ == "__main__":
    main()
