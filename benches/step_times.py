"""Step time of arenic beside onnxruntime's, on the same training-step graphs and threads.

Both run the whole step: inputs are fed, states are carried over in place (onnxruntime
through I/O binding, outputs of one step bound as inputs of the next). Runs alternate,
and the median over the rounds is printed. Random data and states: the values do not
change the work, and both are given the same ones.

usage: step_times.py [--arenic BIN] [--rounds N] [--threads 1,2] [MODEL.onnx ...]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort

import records
from step_data import read_by, states_of, values

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = {
    "graph": "graph",
    "threads": ("threads", "d"),
    "arenic_ms": ("arenic, ms", ".3f"),
    "onnxruntime_ms": ("onnxruntime, ms", ".3f"),
    "ratio": ("ratio", ".2f"),
}


class Onnxruntime:
    def __init__(self, path, arrays, states, threads):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # it warns of each state
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.states = states
        self.fixed = {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in arrays.items()}
        # Two sets of state buffers change roles at every step.
        self.sets = [
            {s: ort.OrtValue.ortvalue_from_numpy(arrays[s].copy()) for s in states}
            for _ in range(2)
        ]
        self.bindings = [self.bind(0), self.bind(1)]

    def bind(self, k):
        binding = self.session.io_binding()
        for i in self.session.get_inputs():
            source = self.sets[k] if i.name in self.sets[k] else self.fixed
            binding.bind_ortvalue_input(i.name, source[i.name])
        for o in self.session.get_outputs():
            state = o.name.removeprefix("out_")
            if o.name.startswith("out_") and state in self.sets[1 - k]:
                binding.bind_ortvalue_output(o.name, self.sets[1 - k][state])
            else:
                binding.bind_output(o.name)
        return binding

    def step(self, index):
        self.session.run_with_iobinding(self.bindings[index % 2])

    def time(self, steps):
        start = time.perf_counter()
        for index in range(steps):
            self.step(index)
        return (time.perf_counter() - start) / steps


class Arenic:
    def __init__(self, binary, path, arrays, states, threads, folder):
        self.artifact = os.path.join(folder, "step.arenic")
        data, init = os.path.join(folder, "data.npz"), os.path.join(folder, "init.npz")
        subprocess.run([binary, "compile", path, "-o", self.artifact], check=True, capture_output=True)
        read = read_by(binary, self.artifact)
        np.savez(data, **{n: a for n, a in arrays.items() if n in read})
        np.savez(init, **{n: arrays[n] for n in states})
        self.command = [binary, "run", self.artifact, "--data", data, "--init", init, "--json"]
        self.command += ["--threads", str(threads), "--steps"]

    def time(self, steps):
        run = subprocess.run(self.command + [str(steps)], capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(run.stderr)
        return json.loads(run.stdout.splitlines()[-1])["mean_step_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    records.add_options(parser)
    parser.add_argument("models", nargs="*")
    arguments = parser.parse_args()
    folder = os.path.join(HERE, "..", "models", "step")
    models = arguments.models or sorted(
        os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".onnx")
    )
    with records.Record(__file__, arguments.record, arenic=arguments.arenic, packages=["onnxruntime"]) as record:
        compare(arguments, models, record.table(COLUMNS))


def compare(arguments, models, table):
    """Adds a row for each model and number of threads."""
    for path in models:
        model = onnx.load(path, load_external_data=False)
        arrays, states = values(model), states_of(model)
        for threads in map(int, arguments.threads.split(",")):
            with tempfile.TemporaryDirectory() as temporary:
                try:
                    theirs = Onnxruntime(path, arrays, states, threads)
                except Exception as error:  # an operator that it has no kernel for
                    print(f"{os.path.basename(path)}: {str(error)[:60]}", file=sys.stderr)
                    continue
                ours = Arenic(arguments.arenic, path, arrays, states, threads, temporary)
                once = max(theirs.time(3), 1e-6)
                steps = max(5, min(2000, int(0.5 / once)))
                theirs.time(steps)
                pairs = [(ours.time(steps), theirs.time(steps)) for _ in range(arguments.rounds)]
                a, b = (statistics.median(p[k] for p in pairs) * 1e3 for k in (0, 1))
                ratio = statistics.median(x / y for x, y in pairs)
                graph = os.path.basename(path).removesuffix(".onnx")
                table.add(graph=graph, threads=threads, arenic_ms=a, onnxruntime_ms=b, ratio=ratio)


if __name__ == "__main__":
    main()
