#!/usr/bin/env python3
"""Prints what integer programs come to by two solvers, as a Markdown table.

    benches/solver_tables.py --arenic target/release/arenic --highs target/highs/release/arenic FILE …

`--highs` is a build with the feature `highs`. Memory graphs (.json.gz) are ordered by `order_ilp`, and by the pipeline
`olla` up to its order; placements (.csv) are placed by `place_ilp`, with and without the pyramid; steps (.onnx) are compiled
by the pipelines `olla` and, within 70 and 85 % of what they need without a limit, `tvdnn` and `checkmate`, and by
`order_place_ilp` if they have few operators. Figures are peaks, heights and arenas in MiB, under a limit predicted
milliseconds a step. Seconds are the whole process's.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import records

JOINT = "- dead_code\n- views\n- detach_states\n- spans\n- prune_precedence\n- order_place_ilp\n- lower\n- sync\n"
OPTIONS = {
    ".gz": {"order_ilp": "- detach_states\n- order_ilp\n", "olla": None},
    ".csv": {"place_ilp": "- place_ilp\n", "place_ilp, no pyramid": "- place_ilp: {pyramid: false}\n"},
    ".onnx": {"olla": None, "tvdnn": None, "checkmate": None, "order_place_ilp": JOINT},
}
LIMITS = {"tvdnn": 0.7, "checkmate": 0.85}
COLUMNS = {
    "file": "file",
    "pipeline": "pipeline",
    "unit": "unit",
    "microlp": ("microlp", ".3f"),
    "highs": ("HiGHS", ".3f"),
    "over": ("microlp / HiGHS", ".4f"),
    "microlp_seconds": ("microlp, s", ".2f"),
    "highs_seconds": ("HiGHS, s", ".2f"),
}


def said(arenic, *arguments):
    """What a command's `--json` says, and its seconds; None where it refuses."""
    start = time.perf_counter()
    done = subprocess.run([arenic, *map(str, arguments), "--json"], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    return (json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None), seconds


def figure(arenic, file, pipeline, limit, args, folder):
    """The figure with its unit, and seconds."""
    effort = ["--effort", args.effort]
    if file.suffix == ".csv":
        found, seconds = said(arenic, "place", file, "--pipeline", pipeline, *effort)
        return found and (found["height"] / 2**20, "MiB"), seconds
    if file.suffix == ".gz":
        found, seconds = said(arenic, "order", file, "--pipeline", pipeline, *effort)
        return found and (found["peak_bytes"] / 2**20, "MiB"), seconds
    command = ["compile", file, "-o", folder / "out.arenic", "--plan-only", "--pipeline", pipeline, *effort]
    if limit:
        command += ["--device-memory", limit, "--device", args.device]
    found, seconds = said(arenic, *command)
    if limit:
        return found and (found["predicted_step_seconds"] * 1e3, "ms"), seconds
    return found and (found["arena_bytes"] / 2**20, "MiB"), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("--highs", default="target/highs/release/arenic")
    parser.add_argument("--effort", type=float, default=10.0)
    parser.add_argument("--device", default="gtx1080ti")
    records.add_options(parser)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, records.Record(__file__, args.record, arenic=args.arenic) as record:
        folder, table = pathlib.Path(folder), record.table(COLUMNS)
        for file in args.files:
            for name, text in OPTIONS[file.suffix].items():
                pipeline = name
                if text:
                    pipeline = folder / "pipeline.yaml"
                    pipeline.write_text(text)
                limit = None
                if name in LIMITS:
                    whole, _ = said(args.arenic, "compile", file, "-o", folder / "out.arenic", "--plan-only", "--pipeline", name)
                    limit = int(LIMITS[name] * whole["arena_bytes"])
                (ours, s), (theirs, t) = (figure(b, file, pipeline, limit, args, folder) for b in (args.arenic, args.highs))
                if ours is None or theirs is None:
                    continue
                table.add(
                    file=file.name.removesuffix(".json.gz").removesuffix(".onnx").removesuffix(".csv"), pipeline=name,
                    unit=ours[1], microlp=ours[0], highs=theirs[0], over=ours[0] / theirs[0] if theirs[0] else 1.0,
                    microlp_seconds=s, highs_seconds=t,
                )  # fmt: skip


if __name__ == "__main__":
    main()
