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

NAMED = ["definition", "smartpool", "mxnet", "olla", "default"]
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
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    args = parser.parse_args()

    def mib(found):
        return f"{found['arena_bytes'] / 2**20:.2f}"

    print(f"| graph | {' | '.join(NAMED)} | bound | two streams | events | own stream alone | events |")
    print("|---|" + "---:|" * (len(NAMED) + 5))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for file in args.files:
            named = [figures(args.arenic, file, folder, p, args.limit)[0] for p in NAMED]
            cells = [mib(found) for found in named] + [f"{named[-1]['lower_bound_bytes'] / 2**20:.2f}"]
            for across in ["true", "false"]:
                pipeline = folder / "streams.yaml"
                pipeline.write_text(STREAMS.replace("ACROSS", across))
                found, events = figures(args.arenic, file, folder, pipeline, args.limit)
                cells += [mib(found), str(events)]
            print(f"| {file.name.split('.')[0]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
