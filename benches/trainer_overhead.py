"""What `arenic.Trainer.step` takes beside the step itself, which `arenic run` times. Runs alternate.

    python benches/trainer_overhead.py [--rounds 5] [--steps 3000]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

import arenic
import records

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = {
    "command_us": ("`arenic run`, µs", ".1f"),
    "trainer_us": ("`trainer.step`, µs", ".1f"),
    "beside_us": ("beside the step, µs", "+.1f"),
    "least_trainer_us": ("the shortest `trainer.step`, µs", ".1f"),
}


def by_command(folder: pathlib.Path, steps: int) -> float:
    """The median time of a step, in seconds."""
    arguments = ["run", "mlp.arenic", "--data", "data.npz", "--set", "lr=0.01", "--threads", "1", "--json"]
    command = [sys.executable, "-m", "arenic", *arguments, "--steps", str(steps)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])["median_step_seconds"]


def by_trainer(step: arenic.Step, batches: list[dict], steps: int) -> np.ndarray:
    """The times of steps, in seconds."""
    trainer, seconds = arenic.Trainer(step, threads=1), np.empty(steps)
    for k in range(steps):
        batch = batches[k % len(batches)]
        start = time.perf_counter()
        trainer.step(batch)
        seconds[k] = time.perf_counter() - start
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3000)
    records.add_options(parser)
    a = parser.parse_args()
    options = {"loss": "cross_entropy", "optimizer": "momentum", "dim": {"batch": 4}}
    step = arenic.compile(ROOT / "models/forward/mlp.onnx", **options)
    data = dict(np.load(ROOT / "tests/runs/mlp_b4_sgdm.data.npz"))
    batches = [{n: d[k : k + 4] for n, d in data.items()} | {"lr": 0.01} for k in range(0, len(data["x"]), 4)]
    with tempfile.TemporaryDirectory() as folder:
        step.save(f"{folder}/mlp.arenic")
        np.savez(f"{folder}/data.npz", **data)
        commands, trainers, least = [], [], []
        for _ in range(a.rounds):
            commands.append(by_command(pathlib.Path(folder), a.steps))
            seconds = by_trainer(step, batches, a.steps)
            trainers.append(float(np.median(seconds)))
            least.append(float(seconds.min()))
    own, ours = np.median(commands) * 1e6, np.median(trainers) * 1e6
    with records.Record(__file__, a.record, packages=["arenic", "numpy"]) as record:
        table = record.table(COLUMNS)
        table.add(command_us=own, trainer_us=ours, beside_us=ours - own, least_trainer_us=min(least) * 1e6)


if __name__ == "__main__":
    main()
