#!/usr/bin/env python3
"""Prints the peak of each ordering method on memory graphs and models, as a Markdown table.

    benches/order_tables.py --arenic target/release/arenic GRAPH.json.gz … MODEL.onnx …

Peaks are in MiB. `best` is the pipeline `as_exported`, `OLLA` the pipeline `olla` up to its order
(with its control edges, under --olla-limit), `bound` the certificate of that pipeline. Models
are compiled with `--plan-only`. Every figure is the command's own `--json`; seconds are those
of that pipeline.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import records

METHODS = {
    "definition": "definition",
    "freed_minus_allocated": "freed",
    "least_peak_first": "least peak",
    "eager_free": "eager",
    "depth_first": "depth",
    "freed_minus_allocated_reversed": "freed ←",
    "least_peak_first_reversed": "least peak ←",
    "eager_free_reversed": "eager ←",
    "depth_first_reversed": "depth ←",
}


def gap(row):
    return "0" if row["proved_optimal"] else f"{row['best_mib'] / row['bound_mib'] - 1:.2%}"


COLUMNS = {
    "graph": "graph",
    **{f"{method}_mib": (short, ".2f") for method, short in METHODS.items()},
    "olla_mib": ("OLLA", ".2f"),
    "best_mib": ("best", ".2f"),
    "bound_mib": ("bound", ".2f"),
    "proved_optimal": ("gap", gap),
    "seconds": ("seconds", ".2f"),
}


def figures(arenic, file, folder, pipeline, limit=None):
    """peak, bound, seconds, proved."""
    limit = [] if limit is None else ["--effort", str(limit)]
    if file.suffix == ".onnx":
        command = [arenic, "compile", file, "-o", folder / "out.arenic", "--plan-only", "--json"]
    else:
        command = [arenic, "order", file, "--json"]
    command += ["--pipeline", pipeline, *limit]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{file}: {done.stderr}")
    found = json.loads(done.stdout)
    peak = found.get("peak_bytes", found.get("live_peak_bytes"))
    return peak, found["lower_bound_bytes"], found["seconds"], found["proved_optimal"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("--olla-limit", type=float, default=10.0)
    records.add_options(parser)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, records.Record(__file__, args.record, arenic=args.arenic) as record:
        folder, table = pathlib.Path(folder), record.table(COLUMNS)
        shown = subprocess.run([args.arenic, "pipeline", "show", "as_exported"], capture_output=True, text=True, check=True)
        for file in args.files:
            peaks = {}
            for method in METHODS:
                pipeline = folder / "method.yaml"
                pipeline.write_text(shown.stdout.replace("- order\n", f"- order: {{method: {method}}}\n"))
                peaks[method] = figures(args.arenic, file, folder, pipeline)[0]
            peaks["olla"] = figures(args.arenic, file, folder, "olla", args.olla_limit)[0]
            peaks["best"], peaks["bound"], seconds, proved = figures(args.arenic, file, folder, "as_exported")
            mib = {f"{name}_mib": peak / 2**20 for name, peak in peaks.items()}
            graph = file.name.removesuffix(".json.gz").removesuffix(".onnx")
            table.add(graph=graph, **mib, proved_optimal=proved, seconds=seconds)


if __name__ == "__main__":
    main()
