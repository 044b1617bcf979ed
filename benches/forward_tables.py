#!/usr/bin/env python3
"""Prints what training steps need that arenic made of forward models, beside the same steps exported whole.

    benches/forward_tables.py --arenic target/release/arenic [--steps N]

Arenas in KiB; times are medians of N steps (default 300), each program in turn, three rounds, in milliseconds.
`forward` is the arena of the forward pass alone.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

import records

NETWORKS = ["mlp", "small_cnn", "tiny_resnet", "gpt_tiny"]
COLUMNS = {
    "step": "step (batch 4)",
    "operators": ("operators", "d"),
    "arena_kib": ("arena", ".1f"),
    "exported_operators": ("exported: operators", "d"),
    "exported_arena_kib": ("arena", ".1f"),
    "forward_arena_kib": ("forward", ".1f"),
    "ms_per_step": ("ms", ".3f"),
    "exported_ms_per_step": ("exported: ms", ".3f"),
}
OPTIMIZERS = {"momentum": ("sgdm", "0.01", []), "adamw": ("adamw", "0.001", ["--set", "eps=1e-8"])}


def arenic(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arenic", required=True)
    parser.add_argument("--steps", default="300")
    records.add_options(parser)
    arguments = parser.parse_args()
    program, length = arguments.arenic, arguments.steps
    with tempfile.TemporaryDirectory() as folder, records.Record(__file__, arguments.record, arenic=program) as record:
        table = record.table(COLUMNS)
        ours, whole = (pathlib.Path(folder) / name for name in ("ours.arenic", "whole.arenic"))
        for network in NETWORKS:
            for optimizer, (suffix, rate, inputs) in OPTIMIZERS.items():
                loss = ["--loss", "cross_entropy", "--optimizer", optimizer, "--compare"]
                model = f"models/forward/{network}.onnx"
                own = arenic(program, "compile", model, "--dim", "batch=4", *loss, "--json", "-o", ours)[0]
                step = f"models/step/ref_{network}_b4_{suffix}.onnx"
                exported = arenic(program, "compile", step, "--json", "-o", whole)[0]
                runs = f"tests/runs/{network}_b4_{suffix}"
                run = ["--data", f"{runs}.data.npz", "--set", f"lr={rate}", "--steps", length, "--json"]
                times = {ours: [], whole: []}
                for _ in range(3):
                    for artifact in times:
                        init = ["--init", f"{runs}.init.npz", *inputs] if artifact is whole else []
                        last = arenic(program, "run", artifact, *run, *init)[-1]
                        times[artifact].append(last["median_step_seconds"] * 1e3)
                medians = [statistics.median(t) for t in times.values()]
                kib = [f["arena_bytes"] / 1024 for f in (own, exported, own["inference"])]
                table.add(
                    step=f"{network}, {optimizer}", operators=own["nodes"], arena_kib=kib[0],
                    exported_operators=exported["nodes"], exported_arena_kib=kib[1], forward_arena_kib=kib[2],
                    ms_per_step=medians[0], exported_ms_per_step=medians[1],
                )  # fmt: skip


main()
