#!/usr/bin/env python3
"""Prints what whole steps of networks take at sizes that people train, beside PyTorch and onnxruntime.

    benches/real_steps.py --arenic target/release/arenic [--turns N] [--threads 1,2] [--batches 1,8] [--operators]
                          [--no-compile] [--no-onnxruntime] [NETWORK ...]

Stochastic gradient descent with momentum, cross-entropy, the default pipeline. Each trainer is a process of its own. They
take turns of about a second and one step at least, while the others wait, so that a machine whose speed drifts is the
same for all: milliseconds are medians over the turns, and ratios those of each turn's; where neighbours take the
processor for seconds, the least time of all turns says more. The first step of a turn is not counted; arenic starts
anew in each. `GFLOP/s` counts two
operations for each multiplication of products and convolutions, forward and twice backward. `%` is that of the rate of
`torch.mm` of 1024 x 1024 matrices on as many threads, measured in the same turns. `MiB` is the peak of resident memory
above what the process had before it made the model. onnxruntime runs the step that `arenic export` writes, with other
values of its states: two sets of them, which change roles at every step. With `--operators` follow, for each network, the ten kinds of
operators that take most of a step on one thread, arenic's and eager PyTorch's: of arenic's also the rate of their operations, its
share of that of `torch.mm` (convolutions count their plain way), and that of the bytes of operands and results.
"""

import argparse
import collections
import io
import itertools
import json
import operator
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import records
from limited_runs import base_of, objects, peak, transformer_of

TURN = 1.0  # seconds
COLUMNS = {
    "network": "network",
    "batch": ("batch", "d"),
    "threads": ("threads", "d"),
    "trained_by": "trained by",
    "ms_per_step": ("ms a step", ".1f"),
    "over_fastest": ("over the fastest of PyTorch", ".2f"),
    "least_ms": ("least ms", ".1f"),
    "least_over_fastest": ("over", ".2f"),
    "gflops_per_second": ("GFLOP/s", ".0f"),
    "percent_of_mm": ("%", ".0f"),
    "arena_mib": ("arena, MiB", ".0f"),
    "peak_mib": ("MiB", ".0f"),
    "losses_differ_by": ("losses differ by", ".0e"),
}
OPERATORS = {
    "operator": "arenic's operator",
    "count": ("times", "d"),
    "ms": ("ms", ".1f"),
    "gflops_per_second": ("GFLOP/s", ".1f"),
    "percent_of_mm": ("%", ".0f"),
    "gb_per_second": ("GB/s", ".1f"),
    "pytorch_operator": "PyTorch's operator",
    "pytorch_count": ("times", "d"),
    "pytorch_ms": ("ms", ".1f"),
}


def networks():
    """Names to makers of a network and of its input for a batch; its classes lie along axis 1, or 2 of tokens."""
    import torch
    import torchvision
    from torch import nn

    def image(make, size=224, **options):
        return lambda batch: (make(**options), torch.randn(batch, 3, size, size), 1000)

    class UNet(nn.Module):
        def __init__(self, width=32, classes=4, depth=4):
            super().__init__()
            widths = [width << i for i in range(depth + 1)]

            def block(a, b):
                layers = [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
                return nn.Sequential(*layers, nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

            self.down = nn.ModuleList(block(a, b) for a, b in zip([3, *widths], widths))
            pairs = list(zip(widths[1:], widths))[::-1]
            self.rise = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
            self.up = nn.ModuleList(block(2 * b, b) for _, b in pairs)
            self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(width, classes, 1)

        def forward(self, x):
            kept = []
            for i, block in enumerate(self.down):
                x = block(self.pool(x) if i else x)
                kept.append(x)
            for rise, up, skip in zip(self.rise, self.up, kept[-2::-1]):
                x = up(torch.cat([rise(x), skip], 1))
            return self.head(x)

    class Lstm(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.lstm = nn.Embedding(1000, 256), nn.LSTM(256, 256, 2, batch_first=True)
            self.head = nn.Linear(256, 1000)

        def forward(self, ids):
            return self.head(self.lstm(self.tokens(ids))[0])

    def tokens(make, times, vocabulary):
        return lambda batch: (make(), torch.randint(vocabulary, (batch, times)), vocabulary)

    vision = torchvision.models
    return {
        "resnet18": image(vision.resnet18),
        "resnet50": image(vision.resnet50),
        "mobilenet_v2": image(vision.mobilenet_v2, dropout=0.0),
        "vgg11": image(vision.vgg11, dropout=0.0),
        "vit_b_16": image(vision.vit_b_16),
        "unet": lambda batch: (UNet(), torch.randn(batch, 3, 128, 128), 4),
        "lstm": tokens(Lstm, 64, 1000),
        "gpt2": tokens(lambda: transformer_of(12, 768, 12, 50257, 256), 256, 50257),
        "bert": tokens(lambda: transformer_of(12, 768, 12, 30522, 128), 128, 30522),
        "gpt2_6": tokens(lambda: transformer_of(6, 768, 12, 50257, 128), 128, 50257),
        "bert_4": tokens(lambda: transformer_of(4, 768, 12, 30522, 128), 128, 30522),
        "encoder_16": tokens(lambda: transformer_of(16, 512, 8, 1000, 128), 128, 1000),
    }


def made(name, batch):
    """A network, its input and its target."""
    import torch

    torch.manual_seed(0)
    network, x, classes = networks()[name](batch)
    if name == "unet":
        return network, x, torch.randint(classes, (batch, *x.shape[2:]))
    return network, x, torch.randint(classes, x.shape if x.dtype == torch.int64 else x.shape[:1])


def loss_of(logits, target):
    import torch

    if target.dim() == 2:
        logits, target = logits.flatten(0, 1), target.flatten()
    return torch.nn.functional.cross_entropy(logits, target)


def serve(step, base):
    """Takes steps until its input ends: as many as each line of it says, answered by their seconds, after one.

    `step` may return a loss. Two steps come before any turn.
    """
    losses = [step(), step()]
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        times = []
        losses.append(step())
        for _ in range(int(line)):
            start = time.perf_counter()
            losses.append(step())
            times.append(time.perf_counter() - start)
        print(json.dumps({"seconds": statistics.median(times)}), flush=True)
    print(json.dumps({"mib": peak() - base, "losses": losses}), flush=True)


def step_of(name, batch, mode):
    """Makes PyTorch's step of a network."""
    import torch

    network, x, target = made(name, batch)
    network.train()
    run = torch.compile(network) if mode == "compile" else network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(run(x), target)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def pytorch(name, batch, mode, threads):
    """Runs in a process of its own."""
    import torch

    torch.set_num_threads(threads)
    base = peak()
    serve(step_of(name, batch, mode), base)


def operators_of_pytorch(name, batch):
    """Prints the ten operators that take most of eager PyTorch's step on one thread; runs in a process of its own."""
    import torch

    torch.set_num_threads(1)
    step = step_of(name, batch, "eager")
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_cpu_time_total)
    print(json.dumps({"rows": [[row.key, row.count, row.self_cpu_time_total / 1e3] for row in rows[:10]]}))


def onnxruntime(path, data, threads):
    """Runs in a process of its own."""
    import numpy as np
    import onnx

    from step_data import states_of, values
    from step_times import Onnxruntime

    base = peak()
    model = onnx.load(path, load_external_data=False)
    arrays = {**values(model), **np.load(data)}
    arrays["lr"] = np.asarray(0.01, arrays["lr"].dtype)
    runner = Onnxruntime(path, arrays, states_of(model), threads)
    del model, arrays
    count = itertools.count()
    serve(lambda: runner.step(next(count)), base)


def rate(threads):
    """Median GFLOP/s of square products; runs in a process of its own."""
    import torch

    torch.set_num_threads(threads)
    base = peak()
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)

    def step():
        torch.mm(a, b)

    serve(step, base)


class Waiting:
    """A trainer in a process of its own that takes steps when it is told to."""

    def __init__(self, *words):
        words = [sys.executable, __file__, *map(str, words)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise RuntimeError(f"{self.process.args[2:]} ended")
        return json.loads(line)

    def seconds(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.answer()["seconds"]

    def end(self):
        self.process.stdin.close()
        last = self.answer()
        self.process.wait()
        return last


class Arenic:
    """`arenic run`, from the start in each turn."""

    def __init__(self, program, artifact, data, threads, base):
        run = [program, "run", artifact, "--data", data, "--set", "lr=0.01", "--threads", threads, "--json"]
        self.run, self.base = run, base

    def seconds(self, steps):
        """Median of the times between lines: each follows its step."""
        self.lines, times = [], []
        words = [*map(str, self.run), "--steps", str(steps + 1)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                times.append(time.perf_counter())
                self.lines.append(json.loads(line))
        if process.returncode:
            raise SystemExit(f"{' '.join(words)}: exit code {process.returncode}")
        times = times[: steps + 1]  # the last line is the summary
        return statistics.median(map(operator.sub, times[1:], times))

    def operators(self, trace):
        """The ten kinds of operators that take most of one step: name, count, milliseconds, operations and bytes."""
        objects(*self.run, "--steps", 3, "--trace", trace)
        events = json.loads(pathlib.Path(trace).read_text())
        events = events["traceEvents"] if isinstance(events, dict) else events
        kinds = collections.defaultdict(lambda: [0, 0.0, 0, 0])
        for event in events:
            if event.get("cat") == "kernel":
                figures = [1, event["dur"] / 1e3, event["args"]["flops"], event["args"]["bytes"]]
                kind = event["name"].split()[0]
                kinds[kind] = [*map(operator.add, kinds[kind], figures)]
        rows = sorted(kinds.items(), key=lambda row: -row[1][1])
        return [(kind, *figures) for kind, figures in rows[:10]]

    def end(self):
        mib = self.lines[-1]["peak_rss_bytes"] / 2**20 - self.base
        return {"mib": mib, "losses": [line["loss"] for line in self.lines if "loss" in line]}


def export(name, batch, folder):
    """Writes a network with its data and counts its operations; runs in a process of its own."""
    import numpy as np
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    network, x, target = made(name, batch)
    # Of a recurrence that oneDNN computes as one operator nothing would be counted.
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
        network(x)
    file = io.BytesIO()
    torch.onnx.export(
        network.train(), (x,), file, input_names=["x"], output_names=["logits"], opset_version=17,
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, dynamo=False,
    )  # fmt: skip
    folder = pathlib.Path(folder)
    (folder / "model.onnx").write_bytes(file.getvalue())
    np.savez(folder / "data.npz", x=x.numpy(), target=target.numpy())
    figures = {"flops": 3 * counter.get_total_flops(), "axis": 2 if target.dim() == 2 else 1}
    (folder / "figures.json").write_text(json.dumps(figures))
    print(json.dumps(figures))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arenic", required=True)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batches", default="8")
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-onnxruntime", action="store_true")
    records.add_options(parser)
    parser.add_argument("networks", nargs="*")
    arguments = parser.parse_args()
    packages = ["torch", "torchvision"] + ([] if arguments.no_onnxruntime else ["onnxruntime"])
    with records.Record(__file__, arguments.record, arenic=arguments.arenic, packages=packages) as record:
        longest = measure(arguments, record.table(COLUMNS, table="steps"))
        for (name, batch), found in longest.items():
            print(f"\n{name}, batch {batch}, one thread\n")
            table = record.table(OPERATORS, table="operators", network=name, batch=batch, threads=1)
            add_operators(table, *found)


def add_operators(table, ours, theirs, rate):
    """Adds the longest kinds of arenic's operators and of PyTorch's, beside one another."""
    for (kind, count, ms, flops, moved), (key, calls, their_ms) in zip(ours, theirs):
        speed = flops / ms / 1e6
        table.add(
            operator=kind, count=count, ms=ms, gflops_per_second=speed, percent_of_mm=100 * speed / rate,
            gb_per_second=moved / ms / 1e6, pytorch_operator=key, pytorch_count=calls, pytorch_ms=their_ms,
        )  # fmt: skip


def measure(arguments, table):
    """Adds the rows of all networks; gives, by network and batch, the longest operators and the rate of `torch.mm`."""
    names = arguments.networks or list(networks())
    modes = ["eager"] if arguments.no_compile else ["eager", "compile"]
    program, again = arguments.arenic, [sys.executable, __file__]
    longest = {}
    for name in names:
        for batch in map(int, arguments.batches.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                figures = objects(*again, "--export", name, batch, folder)[-1]
                loss = ["--loss", "cross_entropy", "--class-axis", figures["axis"], "--optimizer", "momentum"]
                artifact = folder / "model.arenic"
                options = ["--momentum", "0.9", "-o", artifact, "--json"]
                plan = objects(program, "compile", folder / "model.onnx", *loss, *options)[-1]
                objects(program, "export", artifact, "-o", folder / "step.onnx")
                for threads in map(int, arguments.threads.split(",")):
                    ours = Arenic(program, artifact, folder / "data.npz", threads, base_of(program, folder, threads))
                    trainers = {mode: Waiting("--pytorch", name, batch, mode, threads) for mode in modes}
                    if not arguments.no_onnxruntime:
                        try:
                            theirs = [folder / "step.onnx", folder / "data.npz", threads]
                            trainers["onnxruntime"] = Waiting("--onnxruntime", *theirs)
                        except RuntimeError as error:  # an operator that it has no kernel for
                            print(error, file=sys.stderr)
                    trainers["arenic"] = ours
                    square, rates = Waiting("--rate", threads), []
                    turns = collections.defaultdict(list)
                    steps = max(1, int(TURN / ours.seconds(1)))
                    for _ in range(arguments.turns):
                        for mode, trainer in trainers.items():
                            turns[mode].append(trainer.seconds(steps))
                        rates.append(2 * 1024**3 / square.seconds(8) / 1e9)
                    ends = {mode: trainer.end() for mode, trainer in trainers.items()}
                    square.end()
                    rate = statistics.median(rates)
                    if arguments.operators and threads == 1:
                        theirs = objects(*again, "--operators-of-pytorch", name, batch)[-1]["rows"]
                        longest[name, batch] = ours.operators(folder / "trace.json"), theirs, rate
                    for mode, times in turns.items():
                        seconds, losses = statistics.median(times), ends[mode]["losses"]
                        over = [statistics.median(map(operator.truediv, times, turns[m])) for m in modes]
                        least = min(min(turns[m]) for m in modes)
                        pairs = zip(losses, ends["eager"]["losses"])
                        differ = [abs(a - b) / max(abs(b), 1e-9) for a, b in pairs if a is not None]
                        speed = figures["flops"] / seconds / 1e9
                        table.add(
                            network=name, batch=batch, threads=threads, trained_by=mode, ms_per_step=seconds * 1e3,
                            over_fastest=max(over), least_ms=min(times) * 1e3, least_over_fastest=min(times) / least,
                            gflops_per_second=speed, percent_of_mm=100 * speed / rate,
                            arena_mib=plan["arena_bytes"] / 2**20 if mode == "arenic" else None,
                            peak_mib=ends[mode]["mib"], losses_differ_by=max(differ, default=None),
                        )  # fmt: skip
    return longest


if __name__ == "__main__":
    own = {
        "--pytorch": pytorch, "--operators-of-pytorch": operators_of_pytorch, "--onnxruntime": onnxruntime,
        "--export": export, "--rate": rate,
    }  # fmt: skip
    if len(sys.argv) > 1 and sys.argv[1] in own:
        values = [int(word) if word.isdigit() else word for word in sys.argv[2:]]
        own[sys.argv[1]](*values)
    else:
        main()
