#!/usr/bin/env python3
"""Step times and memory of one, two and four processes of one machine, with one thread each.

    ranks_times.py --arenic PROGRAM

PROGRAM is built with `--features mpi`. The GPT of `models/text` trains with AdamW on random tokens; the global batch is
32 rows, of which each rank has its part. Of three runs the fastest counts: its median step, the arena of a rank, the
most memory that was resident in any process, and what MPI had of it by `mpi_bytes`. It needs NumPy and Open MPI.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile

import numpy as np

import records

MODEL = pathlib.Path(__file__).resolve().parents[1] / "models" / "text" / "gpt.onnx"
ROWS, STEPS, TOKENS = 32, 24, 64
COLUMNS = {
    "shard": "`--shard`",
    "ranks": ("ranks", "d"),
    "arena_mib": ("arena of a rank, MiB", ".2f"),
    "resident_mib": ("resident, MiB", ".1f"),
    "mpi_mib": ("MPI's, MiB", ".1f"),
    "ms_per_step": ("step, ms", ".1f"),
}


def as_rank(command):
    """Runs a command, and says how much memory it had."""
    code = subprocess.run(command).returncode
    print("resident", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, file=sys.stderr)
    sys.exit(code)


def measured(arenic, folder, ranks, shard):
    """Arena of a rank, median seconds of a step, most resident bytes of a process, and those of MPI."""
    artifact = folder / "ranks.arenic"
    options = ["--loss", "cross_entropy", "--optimizer", "adamw", "--dim", f"batch={ROWS // ranks}"]
    options += ["--ranks", str(ranks), "--shard", shard] if ranks > 1 else []
    compiled = subprocess.run([arenic, "compile", MODEL, *options, "-o", artifact, "--json"], check=True, capture_output=True)
    run = [arenic, "run", artifact, "--data", folder / "data.npz", "--set", "lr=0.001", "--steps", str(STEPS), "--json"]
    run = [sys.executable, __file__, "--as-rank", *run, "--threads", "1"]
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    ran = subprocess.run([*launcher, *run], check=True, capture_output=True, text=True)
    last = json.loads(ran.stdout.splitlines()[-1])
    resident = [int(line.split()[1]) for line in ran.stderr.splitlines() if line.startswith("resident")]
    return json.loads(compiled.stdout)["arena_bytes"], last["median_step_seconds"], max(resident), last["mpi_bytes"]


def main():
    if sys.argv[1:2] == ["--as-rank"]:
        as_rank(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arenic", required=True, help="the program, with the feature mpi")
    records.add_options(parser)
    arguments = parser.parse_args()
    arenic = arguments.arenic
    with tempfile.TemporaryDirectory() as folder, records.Record(__file__, arguments.record, arenic=arenic) as record:
        table = record.table(COLUMNS)
        folder, random = pathlib.Path(folder), np.random.default_rng(0)
        tokens = random.integers(0, 60, (2, STEPS * ROWS, TOKENS))
        np.savez(folder / "data.npz", ids=tokens[0], target=tokens[1].reshape(-1))
        for shard in ["none", "optimizer", "parameters"]:
            for ranks in [1, 2, 4] if shard == "none" else [2, 4]:
                runs = [measured(arenic, folder, ranks, shard) for _ in range(3)]
                arena, seconds, resident, mpi = min(runs, key=lambda run: run[1])
                mib = {"arena_mib": arena / 2**20, "resident_mib": resident / 2**20, "mpi_mib": mpi / 2**20}
                table.add(shard=shard, ranks=ranks, **mib, ms_per_step=seconds * 1e3)


if __name__ == "__main__":
    main()
