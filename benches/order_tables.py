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

METHODS = [
    "definition",
    "freed_minus_allocated",
    "least_peak_first",
    "eager_free",
    "depth_first",
    "freed_minus_allocated_reversed",
    "least_peak_first_reversed",
    "eager_free_reversed",
    "depth_first_reversed",
]
SHORT = ["definition", "freed", "least peak", "eager", "depth", "freed ←", "least peak ←", "eager ←", "depth ←"]


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
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    args = parser.parse_args()

    def mib(n):
        return f"{n / 2**20:.2f}"

    print(f"| graph | {' | '.join(SHORT)} | OLLA | best | bound | gap | seconds |")
    print("|---|" + "---:|" * (len(SHORT) + 5))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shown = subprocess.run([args.arenic, "pipeline", "show", "as_exported"], capture_output=True, text=True, check=True)
        for file in args.files:
            peaks = []
            for method in METHODS:
                pipeline = folder / "method.yaml"
                pipeline.write_text(shown.stdout.replace("- order\n", f"- order: {{method: {method}}}\n"))
                peaks.append(figures(args.arenic, file, folder, pipeline)[0])
            olla = figures(args.arenic, file, folder, "olla", args.olla_limit)[0]
            best, bound, seconds, proved = figures(args.arenic, file, folder, "as_exported")
            gap = "0" if proved else f"{(best - bound) / bound:.2%}"
            row = [*map(mib, [*peaks, olla, best, bound]), gap, f"{seconds:.2f}"]
            print(f"| {file.name.removesuffix('.json.gz')} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
