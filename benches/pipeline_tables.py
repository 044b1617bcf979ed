#!/usr/bin/env python3
"""Prints the arena that each named pipeline needs for models, as a Markdown table.

    benches/pipeline_tables.py --arenic target/release/arenic MODEL.onnx …

Arenas are in MiB. `two streams` is the pipeline `mxnet` after `streams: {count: 2}`: with dead
storages taken from either stream, and from the own stream alone (`events` beside each: waits between
the streams). `bound` is the certificate of the default. Searches get an effort of --limit seconds.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import records

NAMED = ["definition", "smartpool", "mxnet", "olla", "default"]
COLUMNS = {
    "graph": "graph",
    **{f"{name}_mib": (name, ".2f") for name in NAMED},
    "bound_mib": ("bound", ".2f"),
    "two_streams_mib": ("two streams", ".2f"),
    "two_streams_events": ("events", "d"),
    "own_stream_mib": ("own stream alone", ".2f"),
    "own_stream_events": ("events", "d"),
}
STREAMS = """
- dead_code
- views
- detach_states
- streams: {count: 2}
- order: {method: definition}
- share_parallel: {hold: true, across_streams: ACROSS}
- place
- lower
- sync
"""


def figures(arenic, file, folder, pipeline, limit):
    out = folder / "out.arenic"
    command = [arenic, "compile", file, "-o", out, "--plan-only", "--json", "--pipeline", pipeline]
    done = subprocess.run([*command, "--effort", str(limit)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{file}, {pipeline}: {done.stderr}")
    return json.loads(done.stdout), out.read_bytes().count(b"wait stream")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("--limit", type=float, default=10.0)
    records.add_options(parser)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, records.Record(__file__, args.record, arenic=args.arenic) as record:
        folder, table = pathlib.Path(folder), record.table(COLUMNS)
        for file in args.files:
            cells = {}
            for name in NAMED:
                found, _ = figures(args.arenic, file, folder, name, args.limit)
                cells[f"{name}_mib"] = found["arena_bytes"] / 2**20
            cells["bound_mib"] = found["lower_bound_bytes"] / 2**20
            for streams, across in [("two_streams", "true"), ("own_stream", "false")]:
                pipeline = folder / "streams.yaml"
                pipeline.write_text(STREAMS.replace("ACROSS", across))
                found, cells[f"{streams}_events"] = figures(args.arenic, file, folder, pipeline, args.limit)
                cells[f"{streams}_mib"] = found["arena_bytes"] / 2**20
            table.add(graph=file.name.split(".")[0], **cells)


if __name__ == "__main__":
    main()
