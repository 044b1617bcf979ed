#!/usr/bin/env python3
"""Prints what whole steps of networks take at sizes that people train, beside PyTorch and onnxruntime.

    benches/real_steps.py --arenic target/release/arenic [--rounds N] [--threads 1,2] [--batches 1,8] [--operators]
                          [--no-compile] [--no-onnxruntime] [NETWORK ...]

Stochastic gradient descent with momentum, cross-entropy, the default pipeline. Every configuration is a process of its
own in each round, by turns; milliseconds are medians of a run's steps, and of the rounds. `GFLOP/s` counts two
operations for each multiplication of products and convolutions, forward and twice backward. `%` is that of the rate of
`torch.mm` of 1024 x 1024 matrices on as many threads, measured in the same rounds. `MiB` is the peak of resident memory
above what the process had before it made the model. onnxruntime runs the step that `arenic export` writes, with other
values of its states: two sets of them, which change roles at every step. With `--operators` follow, for each network, the operators that
take most of arenic's step on one thread.
"""

import argparse
import collections
import io
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from limited_runs import base_of, objects, peak, transformer_of

STEPS = 5


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


def pytorch(name, batch, mode, threads):
    """Runs in a process of its own."""
    import torch

    torch.set_num_threads(threads)
    base = peak()
    network, x, target = made(name, batch)
    network.train()
    run = torch.compile(network) if mode == "compile" else network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    times, losses = [], []
    for _ in range(STEPS + 2):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(run(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    print(json.dumps({"mib": peak() - base, "seconds": statistics.median(times[2:]), "losses": losses}))


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
    times = [runner.time(2) for _ in range(STEPS // 2 + 2)]
    print(json.dumps({"mib": peak() - base, "seconds": statistics.median(times[1:])}))


def rate(threads):
    """GFLOP/s of a square product; runs in a process of its own."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    print(json.dumps({"rate": 2 * 1024**3 / min(times) / 1e9}))


def export(name, batch, folder):
    """Writes a network with its data and counts its operations; runs in a process of its own."""
    import numpy as np
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    network, x, target = made(name, batch)
    with FlopCounterMode(display=False) as counter:
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


def operators(trace):
    """Milliseconds by operator of one step, the longest first."""
    events = json.loads(pathlib.Path(trace).read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    sums, counts = collections.Counter(), collections.Counter()
    for event in events:
        if event.get("ph") == "X":
            operator = event["name"].split()[0]
            sums[operator] += event["dur"] / 1000
            counts[operator] += 1
    return [(operator, counts[operator], ms) for operator, ms in sums.most_common(10)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arenic", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batches", default="8")
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-onnxruntime", action="store_true")
    parser.add_argument("networks", nargs="*")
    arguments = parser.parse_args()
    names = arguments.networks or list(networks())
    modes = ["eager"] if arguments.no_compile else ["eager", "compile"]
    program, again = arguments.arenic, [sys.executable, __file__]
    import torch

    print(f"PyTorch {torch.__version__}\n")
    columns = "network | batch | threads | trained by | ms a step | over the fastest of PyTorch | GFLOP/s | % | arena, MiB | MiB | losses differ by"
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")
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
                data = ["--data", folder / "data.npz", "--set", "lr=0.01", "--steps", STEPS, "--json"]
                for threads in map(int, arguments.threads.split(",")):
                    base = base_of(program, folder, threads)
                    rows, rates = collections.defaultdict(list), []
                    for _ in range(arguments.rounds):
                        for mode in modes:
                            rows[mode].append(objects(*again, "--pytorch", name, batch, mode, threads)[-1])
                        if not arguments.no_onnxruntime:
                            theirs = [folder / "step.onnx", folder / "data.npz", threads]
                            try:
                                run = objects(*again, "--onnxruntime", *theirs)[-1]
                            except SystemExit as error:  # an operator that it has no kernel for
                                print(f"onnxruntime: {str(error)[-200:]}", file=sys.stderr)
                            else:
                                rows["onnxruntime"].append(run)
                        trace = folder / "trace.json"
                        lines = objects(
                            program, "run", artifact, *data, "--threads", threads, "--trace", trace
                        )
                        losses = [line["loss"] for line in lines if "loss" in line]
                        mib = lines[-1]["peak_rss_bytes"] / 2**20 - base
                        seconds = lines[-1]["median_step_seconds"]
                        rows["arenic"].append({"mib": mib, "seconds": seconds, "losses": losses})
                        rates.append(objects(*again, "--rate", threads)[-1]["rate"])
                        if threads == 1:
                            longest[name, batch] = operators(trace)
                    median = lambda mode, key: statistics.median(row[key] for row in rows[mode])  # noqa: E731
                    fastest, rate = min(median(mode, "seconds") for mode in modes), statistics.median(rates)
                    expected = rows["eager"][-1]["losses"]
                    for mode in rows:
                        seconds = median(mode, "seconds")
                        pairs = zip(rows[mode][-1].get("losses", []), expected)
                        differ = [abs(a - b) / max(abs(b), 1e-9) for a, b in pairs]
                        speed = figures["flops"] / seconds / 1e9
                        arena = f"{plan['arena_bytes'] / 2**20:.0f}" if mode == "arenic" else ""
                        cells = [
                            name, batch, threads, mode, f"{seconds * 1e3:.1f}", f"{seconds / fastest:.2f}",
                            f"{speed:.0f}", f"{100 * speed / rate:.0f}", arena, f"{median(mode, 'mib'):.0f}",
                            f"{max(differ):.0e}" if differ else "",
                        ]  # fmt: skip
                        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    if arguments.operators:
        for (name, batch), rows in longest.items():
            whole = ", ".join(f"{operator} ({count}) {ms:.1f}" for operator, count, ms in rows)
            print(f"\n{name}, batch {batch}, one thread, ms: {whole}")


if __name__ == "__main__":
    own = {"--pytorch": pytorch, "--onnxruntime": onnxruntime, "--export": export, "--rate": rate}
    if len(sys.argv) > 1 and sys.argv[1] in own:
        values = [int(word) if word.isdigit() else word for word in sys.argv[2:]]
        own[sys.argv[1]](*values)
    else:
        main()
