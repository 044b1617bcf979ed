#!/usr/bin/env python3
"""Exports the networks of the zoo, compiles and trains them with arenic, and compares the losses with PyTorch's.

    models/zoo/zoo.py [--arenic PATH] [--files FOLDER] [--json FILE] [NAME-GLOB ...]

Each network is exported three times: as `torch.onnx.export` does by default, with `optimize=False`, and by
`arenic.torch.export`. arenic compiles each file without a word about its parameters, the default one once more with
`--repair`, and trains three steps of SGD with momentum on the same batches as PyTorch. What comes of it, as the largest relative difference of a loss:

    equal      at most 1e-4
    refused    the file is not compiled, and its message names the reason
    told       the losses differ, and the compile warned of weights that it was not sure of, or arenic.torch of buffers
               that the module changes
    WRONG      the losses differ, and nothing was said
    no export  PyTorch does not write the file

Exports and PyTorch's losses are kept in FOLDER (target/zoo), and are not made again while they are there; delete them where
networks or versions changed. Packages: requirements.txt. The table is Markdown, on standard output.
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
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from networks import NETWORKS, Network
from torch import Tensor, nn

import arenic.torch

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
    arenic.torch.export(one.module, one.example, path)


EXPORTS: dict[str, Callable[[Case, pathlib.Path], None]] = {
    "default": by_torch(optimize=True),
    "optimize=False": by_torch(optimize=False),
    "arenic.torch": by_arenic,
}


# What is compiled: an export, and flags beside.
RUNS: dict[str, tuple[str, list[str]]] = {
    "default": ("default", []),
    "default, --repair": ("default", ["--repair"]),
    "optimize=False": ("optimize=False", []),
    "arenic.torch": ("arenic.torch", []),
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


def prepared(name: str, kinds: list[str], folder: pathlib.Path) -> dict[str, Any]:
    """Writes a network's files, where they are not there: what there is to know of them."""
    listing = folder / "files.json"
    entry = json.loads(listing.read_text()) if listing.exists() else {"exports": {}}
    missing = [kind for kind in kinds if kind not in entry["exports"]]
    if not missing:
        return entry
    folder.mkdir(parents=True, exist_ok=True)
    one = case(NETWORKS[name])
    np.savez(folder / "data.npz", **one.data)
    entry |= {"losses": one.losses, "lr": one.lr, "loss": one.network.loss, "rows": one.network.rows}
    for kind in missing:
        entry["exports"][kind] = exported(one, kind, folder / f"{kind}.onnx")
    listing.write_text(json.dumps(entry))
    return entry


def exported(one: Case, kind: str, path: pathlib.Path) -> dict[str, Any]:
    begun, words = time.perf_counter(), ""
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            EXPORTS[kind](one, path)
        words = next((str(w.message) for w in warned if "the module changes" in str(w.message)), "")
    except Exception as error:
        path.unlink(missing_ok=True)
        while error.__cause__ is not None:
            error = error.__cause__
        words = f"{type(error).__name__}: {error}"
    return {"message": words, "seconds": time.perf_counter() - begun}


def compared(arenic: str, entry: dict[str, Any], wanted: str, folder: pathlib.Path) -> Result:
    """Compiles and trains a file."""
    kind, more = RUNS[wanted]
    model, export = folder / f"{kind}.onnx", entry["exports"][kind]
    if not model.exists():
        return Result("no export", message=export["message"])
    inputs = onnx.load(model, load_external_data=False).graph.input
    named = {size.dim_param for value in inputs for size in value.type.tensor_type.shape.dim}
    flags = ["--loss", entry["loss"], "--optimizer", "momentum", "--momentum", str(MOMENTUM), "--dropout", "0"]
    flags += ["--json", *more]
    flags += ["--dim", f"batch={entry['rows']}"] if "batch" in named else []
    with tempfile.TemporaryDirectory() as name:
        artifact, begun = f"{name}/model.arenic", time.perf_counter()
        done = run(arenic, "compile", str(model), *flags, "-o", artifact)
        seconds = {"export_seconds": export["seconds"], "compile_seconds": time.perf_counter() - begun}
        if done.returncode:
            return Result("refused", message=done.stderr.strip(), **seconds)
        figures = json.loads(done.stdout)
        sizes = {"arena": figures["arena_bytes"], "bound": figures["lower_bound_bytes"], **seconds}
        trained = run(arenic, "run", artifact, "--data", f"{folder}/data.npz", "--set", f"lr={entry['lr']!r}", "--json")
    if trained.returncode:
        return Result("FAILS", message=trained.stderr.strip(), **sizes)
    lines = [json.loads(line) for line in trained.stdout.splitlines() if line.startswith("{")]
    losses = [line["loss"] for line in lines if "loss" in line]
    pairs = list(zip(losses, entry["losses"], strict=True))
    difference = max(abs(ours - theirs) / max(abs(theirs), 1e-9) for ours, theirs in pairs)
    told = export["message"] or any(row.get("doubtful") for row in figures.get("parameters", []))
    verdict = "equal" if difference <= TOLERANCE else "told" if told else "WRONG"
    return Result(verdict, difference, message="\n".join([export["message"], done.stderr.strip()]), **sizes)


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
    return f"{run(arenic, '--version').stdout.strip()}; " + ", ".join(
        f"{p} {importlib.metadata.version(p)}" for p in packages
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the zoo beside PyTorch.")
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("--files", type=pathlib.Path, default="target/zoo")
    parser.add_argument("--json", type=pathlib.Path, help="write every figure and message there, too")
    parser.add_argument("--export", action="append", choices=RUNS, help="this one alone, or these")
    parser.add_argument("globs", nargs="*", default=["*"])
    settings = parser.parse_args()
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    wanted = settings.export or list(RUNS)
    results: dict[str, dict[str, Result]] = {}
    for name in NETWORKS:
        if not any(fnmatch.fnmatch(name, glob) for glob in settings.globs):
            continue
        folder = settings.files / name
        entry = prepared(name, list(dict.fromkeys(RUNS[w][0] for w in wanted)), folder)
        results[name] = {w: compared(settings.arenic, entry, w, folder) for w in wanted}
        shown = {k: str(r) for k, r in results[name].items()}
        print(f"{name}: {shown}", file=sys.stderr, flush=True)
        if settings.json:
            rows = {n: {k: dataclasses.asdict(r) for k, r in row.items()} for n, row in results.items()}
            settings.json.write_text(json.dumps(rows, indent=1))
    print(versions(settings.arenic) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
