#!/usr/bin/env python3
"""Prints what the default pipelines' rewrites do to steps, beside the bytes that PyTorch holds, as a Markdown table.

    benches/rewrite_tables.py --arenic target/release/arenic [--rounds N] [--threads 1,2] [NETWORK[:BATCH] | STEP.onnx ...]

`NETWORK` is one of `benches/real_steps.py`, made a step with momentum; `STEP.onnx` is a whole training step.
Both are compiled by `default` and, "as exported", by the pipeline of that name. Arenas are in
MiB, milliseconds are medians of a run's steps and of the rounds, in which both take turns. `live` is the most that PyTorch's
tensors hold at once in a step after the first, by its profiler, eager and compiled; `of live` is arenic's arena over the lesser.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import real_steps
import records
from limited_runs import objects


def live(name, batch, mode):
    """Prints the MiB that PyTorch's tensors hold at most in a step; runs in a process of its own."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        network, x, target = real_steps.made(name, batch)
        network.train()
        run = torch.compile(network) if mode == "compile" else network
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        for step in range(3):
            with record_function(f"step {step}"):
                optimizer.zero_grad(set_to_none=True)
                real_steps.loss_of(run(x), target).backward()
                optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    start = min(event["ts"] for event in events if event.get("name") == "step 1")
    held = [event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]" and event["ts"] >= start]
    print(json.dumps({"mib": max(held) / 2**20}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    records.add_options(parser)
    parser.add_argument("steps_or_networks", nargs="+")
    arguments = parser.parse_args()
    threads = [int(count) for count in arguments.threads.split(",")]
    packages = ["torch", "torchvision"]
    with records.Record(__file__, arguments.record, arenic=arguments.arenic, packages=packages) as record:
        table = record.table(columns(threads))
        for given in arguments.steps_or_networks:
            with tempfile.TemporaryDirectory() as folder:
                table.add(**row(given, arguments, threads, pathlib.Path(folder)))


def columns(threads):
    def mib(field):
        return lambda row: f"{row[field]:.{1 if row[field] > 10 else 3}f}"

    def times(count):
        def cell(row):
            before, now = (row[f"{pipeline}_ms_{count}_threads"] for pipeline in ("as_exported", "default"))
            digits = 3 if now < 10 else 0
            return f"{before:.{digits}f} → {now:.{digits}f}"

        return cell

    return {
        "step": "step",
        "as_exported_arena_mib": ("arena as exported", mib("as_exported_arena_mib")),
        "default_arena_mib": ("now", mib("default_arena_mib")),
        "less": ("less", ".1%"),
        **{f"default_ms_{n}_threads": (f"{n} thread{'s'[: n - 1]}, ms", times(n)) for n in threads},
        "live_eager_mib": ("live, eager", ".1f"),
        "live_compiled_mib": ("compiled", ".1f"),
        "of_live": ("of live", ".2f"),
    }


def row(given, arguments, threads, folder):
    """The fields of one step."""
    file, data, loss, held = pathlib.Path(given), [], [], []
    if file.suffix != ".onnx":
        name, _, batch = given.partition(":")
        batch = int(batch or 8)
        figures = objects(sys.executable, real_steps.__file__, "--export", name, batch, folder)
        loss = ["--loss", "cross_entropy", "--class-axis", figures[-1]["axis"], "--optimizer", "momentum"]
        loss += ["--momentum", "0.9"]
        file = folder / "model.onnx"
        data = ["--data", folder / "data.npz", "--set", "lr=0.01"]
        held = [
            objects(sys.executable, __file__, "--live", name, batch, mode)[-1]["mib"] for mode in ("eager", "compile")
        ]
    plans = [folder / "before.arenic", folder / "now.arenic"]
    arenas = []
    for plan, pipeline in zip(plans, ["as_exported", "default"]):
        command = [arguments.arenic, "compile", file, *loss, "--pipeline", pipeline, "-o", plan, "--json"]
        arenas.append(objects(*command)[-1]["arena_bytes"] / 2**20)
    if not data:
        data = random_data(arguments.arenic, file, plans[1], folder)
    found = {"step": given if held else file.stem, "less": 1 - arenas[1] / arenas[0]}
    found |= {"as_exported_arena_mib": arenas[0], "default_arena_mib": arenas[1]}
    for count in threads:
        medians = [[], []]
        for _ in range(arguments.rounds):
            for plan, seconds in zip(plans, medians):
                command = [arguments.arenic, "run", plan, *data, "--steps", arguments.steps, "--threads", count, "--json"]
                seconds.append(objects(*command)[-1]["median_step_seconds"])
        for pipeline, seconds in zip(("as_exported", "default"), medians):
            found[f"{pipeline}_ms_{count}_threads"] = 1e3 * statistics.median(seconds)
    if held:
        found |= {"live_eager_mib": held[0], "live_compiled_mib": held[1], "of_live": arenas[1] / min(held)}
    return found


def random_data(arenic, file, plan, folder):
    """Options of a run that give a whole step random data and states."""
    import numpy as np
    import onnx
    from step_data import read_by, states_of, values

    model = onnx.load(file)
    arrays, read, states = values(model), read_by(arenic, plan), states_of(model)
    np.savez(folder / "data.npz", **{name: array for name, array in arrays.items() if name in read})
    np.savez(folder / "init.npz", **{name: arrays[name] for name in states})
    return ["--data", folder / "data.npz", "--init", folder / "init.npz"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--live"]:
        live(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
