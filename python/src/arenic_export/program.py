"""Compiling and running steps by the program `arenic`."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import safetensors
import safetensors.numpy

PathLike = str | os.PathLike[str]


class ArenicError(RuntimeError):
    """What arenic said why it could not do what it was asked for."""


def _arenic(*arguments: str) -> str:
    program = os.environ.get("ARENIC") or shutil.which("arenic")
    if program is None:
        raise ArenicError("no program `arenic` is on PATH; ARENIC names one elsewhere")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    if done.returncode:
        raise ArenicError(done.stderr.strip())
    return done.stdout


def compile(model: onnx.ModelProto | PathLike, artifact: PathLike, **options: Any) -> dict[str, Any]:
    """Compiles a step, or a forward model with `loss` and `optimizer`, to an artifact.

    Options are those of `arenic compile` with underscores: `device_memory="2GiB"`, `loss="cross_entropy"`,
    `dim=["batch=32"]`, `nesterov=True`. Gives the figures that `--json` prints, sizes in bytes.
    """
    arguments: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is True:
                arguments.append(flag)
            elif each not in (None, False):
                arguments += [flag, str(each)]
    with tempfile.TemporaryDirectory() as folder:
        path = model
        if isinstance(model, onnx.ModelProto):
            path = pathlib.Path(folder) / "model.onnx"
            onnx.save(model, path)
        printed = _arenic("compile", str(path), *arguments, "--json", "-o", str(artifact))
    return json.loads(printed)


def load(artifact: PathLike, *, device: str = "cpu") -> Step:
    """An artifact to train with, on `cpu` or `cuda:N`."""
    inspected = json.loads(_arenic("inspect", str(artifact), "--json"))
    rows = {i["name"]: int(shape.split(",")[0]) for i in inspected["inputs"] if (shape := _extents(i["type"]))}
    return Step(pathlib.Path(artifact), device, rows)


def _extents(type_: str) -> str:
    """`32,784` of `f32[32,784]`."""
    return type_[type_.index("[") + 1 : -1]


class Step:
    """A step under training: the artifact, and the states as they are now."""

    def __init__(self, artifact: pathlib.Path, device: str, rows: dict[str, int]):
        self._artifact, self._device, self._rows = artifact, device, rows
        self._folder = tempfile.TemporaryDirectory()
        self._states = pathlib.Path(self._folder.name) / "states.safetensors"

    def step(self, data: Mapping[str, Any], steps: int | None = None, **inputs: float) -> list[float]:
        """Trains with arrays (or tensors) named for the inputs, whose first axis is k times theirs: k batches, or as
        many `steps`. `inputs` are numbers: `lr=0.01`. Gives the losses."""
        batches = self._batches(data, self._steps_done())
        arguments = ["run", str(self._artifact), "--data", str(batches), "--device", self._device, "--json"]
        for name, value in inputs.items():
            arguments += ["--set", f"{name}={value!r}"]
        if steps is not None:
            arguments += ["--steps", str(steps)]
        if self._states.exists():
            arguments += ["--init", str(self._states)]
        printed = _arenic(*arguments, "--save", str(self._states))
        lines = (json.loads(line) for line in printed.splitlines() if line.startswith("{"))
        return [line["loss"] for line in lines if "loss" in line]

    def evaluate(self, data: Mapping[str, Any]) -> dict[str, float]:
        """What `arenic eval` says: loss and, for classes, accuracy."""
        batches = self._batches(data, 0)
        arguments = ["eval", str(self._artifact), "--data", str(batches), "--device", self._device, "--json"]
        if self._states.exists():
            arguments += ["--init", str(self._states)]
        return json.loads(_arenic(*arguments))

    def _steps_done(self) -> int:
        if not self._states.exists():
            return 0
        with safetensors.safe_open(self._states, "numpy") as file:
            return int((file.metadata() or {}).get("arenic.step", 0))

    def _batches(self, data: Mapping[str, Any], done: int) -> pathlib.Path:
        """Writes arrays so that the run begins with their first batch: after `done` steps it goes on with that batch."""
        arrays = {}
        for name, array in data.items():
            array, rows = np.asarray(array), self._rows.get(name, 0)
            if rows and array.ndim:
                whole = array[: len(array) // rows * rows]
                array = np.roll(whole, done % max(len(whole) // rows, 1) * rows, axis=0)
            arrays[name] = array
        path = pathlib.Path(self._folder.name) / "data.npz"
        np.savez(path, **arrays)
        return path

    def states(self) -> dict[str, np.ndarray]:
        """Parameters, statistics and the optimizer's states, by name; none before the first step."""
        return safetensors.numpy.load_file(self._states) if self._states.exists() else {}

    def state_dict(self) -> dict[str, Any]:
        """The same as tensors, for `module.load_state_dict(…, strict=False)`."""
        import torch

        return {name: torch.from_numpy(array.copy()) for name, array in self.states().items()}

    def load_states(self, states: Mapping[str, Any]) -> None:
        """Goes on from these."""
        arrays = {name: np.asarray(array, order="C") for name, array in states.items()}
        safetensors.numpy.save_file(arrays, self._states)

    def save(self, path: PathLike) -> None:
        """Writes the states, with the number of the step, as a safetensors file."""
        if not self._states.exists():
            raise ArenicError("there is nothing to save before the first step")
        shutil.copyfile(self._states, path)

    def restore(self, path: PathLike) -> None:
        """Goes on from what `save` or `arenic run --save` wrote."""
        shutil.copyfile(path, self._states)
