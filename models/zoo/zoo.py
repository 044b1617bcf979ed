#!/usr/bin/env python3
"""Exports the networks of the zoo, compiles and trains them with arenic, and compares the losses with PyTorch's.

    models/zoo/zoo.py [--arenic PATH] [--json FILE] [NAME-GLOB ...]

Each network is exported three times: as `torch.onnx.export` does by default, with `optimize=False`, and by
`arenic_export.export`. arenic compiles each file without a word about its parameters and trains three steps of SGD with
momentum on the same batches as PyTorch. What comes of it, as the largest relative difference of a loss:

    equal      at most 1e-4
    refused    the file is not compiled, and its message names the reason
    told       the losses differ, and the compile warned of weights that it was not sure of, or arenic_export of buffers
               that the module changes
    WRONG      the losses differ, and nothing was said
    no export  PyTorch does not write the file

Packages: requirements.txt. The table is Markdown, on standard output.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import fnmatch
import importlib.metadata
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from networks import NETWORKS, Network
from torch import Tensor, nn

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "python" / "src"))

import arenic_export  # noqa: E402

STEPS, MOMENTUM, TOLERANCE = 3, 0.9, 1e-4


@dataclasses.dataclass
class Case:
    """A network with its data, and what PyTorch makes of it."""

    network: Network
    module: nn.Module
    inputs: dict[str, Tensor]
    target: Tensor
    lr: float
    losses: list[float]

    @property
    def data(self) -> dict[str, np.ndarray]:
        return {**{k: v.numpy() for k, v in self.inputs.items()}, "target": self.target.numpy()}

    @property
    def example(self) -> dict[str, Tensor]:
        return {name: values[: self.network.rows] for name, values in self.inputs.items()}

    @property
    def flags(self) -> list[str]:
        """What `arenic compile` is told beside the file."""
        return ["--loss", self.network.loss, "--optimizer", "momentum", "--momentum", str(MOMENTUM), "--dropout", "0"]


def case(network: Network) -> Case:
    torch.manual_seed(0)
    module = network.build().train()
    rows = network.rows * STEPS
    batches = [network.inputs(network.rows) for _ in range(STEPS)]
    inputs = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    lr = float(np.float32(network.lr))
    if network.double:
        module = as_stored(module.double())
        inputs = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    with torch.no_grad():
        output = copy.deepcopy(module)(**{name: x[: network.rows] for name, x in inputs.items()})
    if network.loss == "mse":
        target = torch.randn(rows, *output.shape[1:], dtype=output.dtype)
    else:
        target = torch.randint(0, output.shape[1], (rows, *output.shape[2:]))
    losses = trained(copy.deepcopy(module), network, inputs, target, lr)
    return Case(network, module, inputs, target, lr, losses)


def as_stored(module: nn.Module) -> nn.Module:
    """Numbers that ONNX has in f32 alone are rounded to it, so that runs in f64 can be compared."""
    for part in module.modules():
        for name in ("eps", "variance_epsilon"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, float(np.float32(getattr(part, name))))
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is not None:
            part.momentum = 1.0 - float(np.float32(1.0 - part.momentum))
    return module


def trained(module: nn.Module, network: Network, inputs: dict[str, Tensor], target: Tensor, lr: float) -> list[float]:
    loss_of = F.mse_loss if network.loss == "mse" else F.cross_entropy
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=MOMENTUM)
    losses = []
    for k in range(STEPS):
        rows = slice(k * network.rows, (k + 1) * network.rows)
        optimizer.zero_grad()
        loss = loss_of(module(**{name: x[rows] for name, x in inputs.items()}), target[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_torch(optimize: bool) -> Callable[[Case, pathlib.Path], None]:
    def export(one: Case, path: pathlib.Path) -> None:
        torch.onnx.export(
            copy.deepcopy(one.module).eval(), (), path, kwargs=one.example, dynamo=True, optimize=optimize, external_data=False,
            verbose=False, input_names=list(one.example),
        )  # fmt: skip

    return export


def by_arenic(one: Case, path: pathlib.Path) -> None:
    arenic_export.export(one.module, one.example, path)


EXPORTS: dict[str, Callable[[Case, pathlib.Path], None]] = {
    "default": by_torch(optimize=True),
    "optimize=False": by_torch(optimize=False),
    "arenic_export": by_arenic,
}


@dataclasses.dataclass
class Result:
    verdict: str
    difference: float | None = None
    message: str = ""
    arena: int | None = None
    bound: int | None = None
    export_seconds: float = 0.0
    compile_seconds: float = 0.0

    def __str__(self) -> str:
        if self.difference is None:
            return self.verdict
        return f"{self.verdict} ({self.difference:.0e})" if self.difference else f"{self.verdict} (0)"


def run(arenic: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run([arenic, *arguments], capture_output=True, text=True, env=environment, timeout=600)


def compared(arenic: str, one: Case, model: pathlib.Path, folder: pathlib.Path) -> Result:
    """Compiles and trains a file."""
    artifact, data = folder / "model.arenic", folder / "data.npz"
    np.savez(data, **one.data)
    begun = time.perf_counter()
    inputs = onnx.load(model, load_external_data=False).graph.input
    named = {size.dim_param for value in inputs for size in value.type.tensor_type.shape.dim}
    sizes = ["--dim", f"batch={one.network.rows}"] if "batch" in named else []
    done = run(arenic, "compile", str(model), *one.flags, *sizes, "--json", "-o", str(artifact))
    seconds = time.perf_counter() - begun
    if done.returncode:
        return Result("refused", message=done.stderr.strip(), compile_seconds=seconds)
    figures = json.loads(done.stdout)
    sizes = {"arena": figures["arena_bytes"], "bound": figures["lower_bound_bytes"], "compile_seconds": seconds}
    told = any(row.get("doubtful") for row in figures.get("parameters", []))
    trained = run(arenic, "run", str(artifact), "--data", str(data), "--set", f"lr={one.lr!r}", "--json")
    if trained.returncode:
        return Result("FAILS", message=trained.stderr.strip(), **sizes)
    lines = [json.loads(line) for line in trained.stdout.splitlines() if line.startswith("{")]
    losses = [line["loss"] for line in lines if "loss" in line]
    pairs = list(zip(losses, one.losses, strict=True))
    difference = max(abs(ours - theirs) / max(abs(theirs), 1e-9) for ours, theirs in pairs)
    verdict = "equal" if difference <= TOLERANCE else "told" if told else "WRONG"
    return Result(verdict, difference, message=done.stderr.strip(), **sizes)


def tried(arenic: str, one: Case, export: Callable[[Case, pathlib.Path], None]) -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        begun = time.perf_counter()
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                export(one, folder / "model.onnx")
        except Exception as error:
            while error.__cause__ is not None:
                error = error.__cause__
            return Result("no export", message=f"{type(error).__name__}: {error}")
        seconds = time.perf_counter() - begun
        result = compared(arenic, one, folder / "model.onnx", folder)
        words = [str(w.message) for w in warned if "the module changes" in str(w.message)]
        if words and result.verdict == "WRONG":
            result.verdict, result.message = "told", words[0]
        result.export_seconds = seconds
        return result


def table(results: dict[str, dict[str, Result]]) -> str:
    kinds = list(next(iter(results.values()), {}))
    lines = [f"| network | {' | '.join(kinds)} | arena / least possible |", "|---|" + "---|" * (len(kinds) + 1)]
    for name, row in results.items():
        best = next((r for r in reversed(row.values()) if r.arena), None)
        arena = f"{best.arena / 1024:,.0f} / {best.bound / 1024:,.0f} KiB" if best else ""
        mark = " (f64)" if NETWORKS[name].double else ""
        lines.append(f"| {name}{mark} | {' | '.join(str(r) for r in row.values())} | {arena} |")
    lines.append("")
    for kind in kinds:
        verdicts = [row[kind].verdict for row in results.values()]
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(sorted(verdicts)))
        lines.append(f"- {kind}: of {len(verdicts)}, {counts}.")
    return "\n".join(lines)


def versions(arenic: str) -> str:
    packages = ["torch", "torchvision", "timm", "transformers", "diffusers", "onnx", "onnxscript", "numpy"]
    return f"{run(arenic, '--version').stdout.strip()}; " + ", ".join(f"{p} {importlib.metadata.version(p)}" for p in packages)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the zoo beside PyTorch.")
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("--json", type=pathlib.Path, help="write every figure and message there, too")
    parser.add_argument("--export", action="append", choices=EXPORTS, help="this one alone, or these")
    parser.add_argument("globs", nargs="*", default=["*"])
    settings = parser.parse_args()
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    results: dict[str, dict[str, Result]] = {}
    for name, network in NETWORKS.items():
        if not any(fnmatch.fnmatch(name, glob) for glob in settings.globs):
            continue
        one = case(network)
        kinds = settings.export or list(EXPORTS)
        results[name] = {kind: tried(settings.arenic, one, EXPORTS[kind]) for kind in kinds}
        shown = {k: str(r) for k, r in results[name].items()}
        print(f"{name}: {shown}", file=sys.stderr, flush=True)
        if settings.json:
            rows = {n: {k: dataclasses.asdict(r) for k, r in row.items()} for n, row in results.items()}
            settings.json.write_text(json.dumps(rows, indent=1))
    print(versions(settings.arenic) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
