#!/usr/bin/env python3
"""Training steps on a GPU: arenic beside PyTorch, eager and compiled.

    benchmarks.py measure STEP PRECISION arenic|eager|compile -o FILE.json    one of them, in minutes
    benchmarks.py trace STEP PRECISION -o FILE.json                           when each command of arenic's ran
    benchmarks.py table FILE.json …                                           what was measured, with a record of it

Step times are medians: PyTorch's of CUDA events around steps, arenic's of steps replayed, on the host's
clock. Bytes are the peak of the allocator (PyTorch's, or arenic's arena) and what the driver says the
process had more than before. Both train from the same initial values, and the first losses are compared.
`--device cpu` runs the step `tiny` on the CPU, to see that all of this works before there is a GPU.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types

import checks
import records

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from torch import nn

    import networks
except ImportError as error:
    sys.exit(f"benchmarks need PyTorch and NumPy: {error}")

LR, MOMENTUM = 1e-3, 0.9
# How far the first loss may be from PyTorch's, of it: sums of other orders, through many layers.
CLOSE = 1e-3

# llm.c's README and `scripts/run_gpt2_124M.sh`: for orientation alone, since neither card, nor batch, nor
# precision (BF16) are those measured here.
PUBLISHED = {"gpt2_124m_b8": {"llm.c, 8 A100 80 GB SXM, BF16": {"tokens_per_second_and_gpu": 218_000}}}


def images(batch, size, classes, pixels=False):
    targets = batch * size * size if pixels else batch
    return lambda: ("x", torch.randn(batch, 3, size, size), torch.randint(classes, (targets,)))


def texts(batch, length, vocabulary):
    return lambda: ("ids", torch.randint(vocabulary, (batch, length)), torch.randint(vocabulary, (batch * length,)))


STEPS = {
    "resnet50_b64": (networks.resnet50_imagenet, images(64, 224, 1000)),
    "resnet50_b256": (networks.resnet50_imagenet, images(256, 224, 1000)),
    "vit_b_16_b64": (networks.Vit, images(64, 224, 1000)),
    "gpt2_124m_b8": (networks.Gpt, texts(8, 1024, 50257)),
    "unet_b8": (networks.UNet, images(8, 256, 2, pixels=True)),
    "tiny": (networks.tiny, images(4, 16, 10)),
}
# Of operands of products, by the names that arenic has for them; sums are f32.
PRECISIONS = ["f32", "tf32", "bf16"]
COLUMNS = {
    "step": "step",
    "precision": "precision",
    "trained_by": "by",
    "ms_per_step": ("ms", ".2f"),
    "allocated_mib": ("allocated, MiB", ".0f"),
    "driver_mib": ("by the driver, MiB", ".0f"),
    "over_arenic": ("over arenic", ".2f"),
    "losses_differ_by": ("losses differ by", ".1e"),
}


# --------------------------------------------------------------------------- PyTorch
def attention(block, x, mask):
    """`Block.attention` as one uses PyTorch: one fused operator; every mask here is causal."""
    n, t, d = x.shape
    q, k, v = (part.view(n, t, block.heads, d // block.heads).transpose(1, 2) for part in block.qkv(x).split(d, dim=2))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)
    return block.out(y.transpose(1, 2).reshape(n, t, d))


def idiomatic(module):
    """The same network as one writes it for PyTorch alone: its own batch norm and attention."""
    for name, child in list(module.named_children()):
        if isinstance(child, networks.BatchNorm):
            norm = nn.BatchNorm2d(child.num_features, child.eps, child.momentum)
            norm.load_state_dict(child.state_dict(), strict=False)
            setattr(module, name, norm)
        else:
            idiomatic(child)
    if isinstance(module, networks.Block):
        module.attention = types.MethodType(attention, module)
    return module


class DriverBytes:
    """The most bytes in use on the card, by the driver, above those before; others must leave it alone."""

    def __init__(self, number):
        self.query = ["nvidia-smi", "-i", str(number), "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        self.ended, self.peak = threading.Event(), 0

    def used(self):
        return int(subprocess.run(self.query, capture_output=True, text=True, check=True).stdout) << 20

    def watch(self):
        while not self.ended.wait(0.5):
            self.peak = max(self.peak, self.used())

    def __enter__(self):
        self.before = self.used()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self.bytes = max(0, self.peak - self.before)


def driver_bytes(device):
    return DriverBytes(number_of(device)) if device != "cpu" else contextlib.nullcontext(types.SimpleNamespace(bytes=0))


def number_of(device):
    return int(device.removeprefix("cuda:"))


class Clock:
    """When steps end: by events on a GPU, by the host's clock on the CPU."""

    def __init__(self, is_gpu, count):
        self.is_gpu, self.times = is_gpu, []
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(count)] if is_gpu else []

    def tick(self, i):
        if self.is_gpu:
            self.events[i].record()
        else:
            self.times.append(time.perf_counter())

    def seconds(self):
        if self.is_gpu:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) * 1e-3 for a, b in zip(self.events, self.events[1:])]
        return [b - a for a, b in zip(self.times, self.times[1:])]


def measure_torch(name, compiled, precision, device, steps):
    """In this process, which does nothing else, so that nothing of another measurement is left."""
    is_gpu = device != "cpu"
    if is_gpu:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.benchmark = True
        torch.cuda.set_device(number_of(device))
    build, data = STEPS[name]
    torch.manual_seed(0)
    module = idiomatic(build()).train().to(device)
    torch.manual_seed(1)
    _, x, target = (v.to(device) if torch.is_tensor(v) else v for v in data())
    if precision != "f32" and x.dim() == 4:
        # As PyTorch's guide to tensor cores has it.
        module, x = (v.to(memory_format=torch.channels_last) for v in (module, x))
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)

    def loss_of():
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bf16"):
            return F.cross_entropy(module(x), target)

    forward = torch.compile(loss_of) if compiled else loss_of

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step().item() for _ in range(3)]
    for _ in range(5):
        step()
    if is_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    clock = Clock(is_gpu, steps + 1)
    clock.tick(0)
    for i in range(steps):
        step()
        clock.tick(i + 1)
    return {
        "median_step_seconds": statistics.median(clock.seconds()),
        "allocator_bytes": torch.cuda.max_memory_allocated() if is_gpu else 0,
        "reserved_bytes": torch.cuda.max_memory_reserved() if is_gpu else 0,
        "losses": losses,
    }


# ---------------------------------------------------------------------------- arenic
def write_values(name, folder):
    """Data, and the initial values of every state, as PyTorch has them."""
    build, data = STEPS[name]
    torch.manual_seed(0)
    module = build()
    states = {}
    for n, p in module.named_parameters():
        states[f"p.{n}"] = p.detach().numpy()
        states[f"m.{n}"] = np.zeros(p.shape, np.float32)
    for n, b in module.named_buffers():
        if "running_" in n:
            states[f"b.{n}"] = b.numpy()
    torch.manual_seed(1)
    operand, x, target = data()
    np.savez(folder / "data.npz", **{operand: x.numpy(), "target": target.numpy()})
    np.savez(folder / "init.npz", **states)


def run_arenic(name, precision, device, *arguments):
    """What arenic prints of a step with PyTorch's values."""
    with tempfile.TemporaryDirectory(prefix="arenic-") as folder:
        folder = pathlib.Path(folder)
        write_values(name, folder)
        artifact = checks.unpacked("benchmarks") / f"{name}_{precision}.arenic"
        values = ["--data", folder / "data.npz", "--init", folder / "init.npz", "--set", f"lr={LR}"]
        return checks.arenic("run", artifact, *values, "--device", device, "--json", *arguments, limit=checks.LIMIT)


def measure_arenic(name, precision, device, steps):
    lines = run_arenic(name, precision, device, "--steps", 8 + steps)
    summary = lines[-1]
    return {
        "median_step_seconds": summary["median_step_seconds"],
        "allocator_bytes": summary["arena_bytes"],
        "library_bytes": summary["library_bytes"],
        "losses": checks.losses(lines)[:3],
        "ways": next((line["ways"] for line in lines if "ways" in line), []),
    }


def measure(name, precision, how, device, steps):
    """One measurement with what it was made on."""
    with driver_bytes(device) as driver:
        if how == "arenic":
            found = measure_arenic(name, precision, device, steps)
        else:
            found = measure_torch(name, how == "compile", precision, device, steps)
    gpu = {} if device == "cpu" else {"gpu": torch.cuda.get_device_name(number_of(device)), "cudnn": torch.backends.cudnn.version()}
    about = {"torch": torch.__version__, "cuda": torch.version.cuda, "date": time.strftime("%Y-%m-%d"), **gpu}
    what = {"step": name, "precision": precision, "how": how, "steps": steps}
    return {**what, **found, "driver_bytes": driver.bytes, **about}


# ------------------------------------------------------------------------------- table
def measured_in(path):
    """The measurement in a file; a check's file has it inside."""
    row = json.loads(path.read_text())
    return row.get("figures", row)


def tabulate(paths, record):
    """Adds a row for each measurement; whether first losses agree with eager PyTorch's in f32."""
    rows = [measured_in(path) for path in paths]
    found = {(row["step"], row["precision"], row["how"]): row for row in rows}
    table, agrees = record.table(COLUMNS), True
    for (step, precision, how), row in sorted(found.items()):
        ours, eager = found.get((step, precision, "arenic")), found.get((step, "f32", "eager"))
        off = None
        if (precision, how) == ("f32", "arenic") and eager:
            off = max(abs(a - b) / abs(b) for a, b in zip(row["losses"], eager["losses"]))
            agrees &= off <= CLOSE
        table.add(
            step=step, precision=precision, trained_by=how, ms_per_step=row["median_step_seconds"] * 1e3,
            allocated_mib=row["allocator_bytes"] / 2**20, driver_mib=row["driver_bytes"] / 2**20,
            over_arenic=row["median_step_seconds"] / ours["median_step_seconds"] if ours else None,
            losses_differ_by=off, date=row["date"],
        )  # fmt: skip
    for step in sorted({step for step, *_ in found} & set(PUBLISHED)):
        print(f"{step}, published: {json.dumps(PUBLISHED[step])}")
    return agrees


def record_of(paths, folder):
    """A record of measurements, with the versions and the GPU that they name."""
    about = measured_in(paths[0])
    record = records.Record("gpu_benchmarks", folder, gpu=about.get("gpu"))
    record.about["versions"] = {name: about.get(name) for name in ("torch", "cuda", "cudnn")}
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    one = commands.add_parser("measure", help="measure one step")
    traced = commands.add_parser("trace", help="write when each command of a step ran, in Chrome's trace event format")
    for each in (one, traced):
        each.add_argument("step", choices=STEPS)
        each.add_argument("precision", choices=PRECISIONS)
        each.add_argument("--device", default="cuda:0", help="a GPU by its number, or cpu [default: cuda:0]")
        each.add_argument("-o", "--output", type=pathlib.Path, required=True)
    one.add_argument("how", choices=["arenic", "eager", "compile"])
    one.add_argument("--steps", type=int, default=30, help="timed steps [default: 30]")
    all_of = commands.add_parser("table", help="print what was measured, and write a record")
    records.add_options(all_of)
    all_of.add_argument("files", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "table":
        with record_of(options.files, options.record) as record:
            return 0 if tabulate(options.files, record) else 1
    if options.device != "cpu" and not torch.cuda.is_available():
        sys.exit("there is no GPU that PyTorch sees, so nothing is measured")
    try:
        if options.command == "trace":
            run_arenic(options.step, options.precision, options.device, "--steps", 8, "--trace", options.output)
            return 0
        found = measure(options.step, options.precision, options.how, options.device, options.steps)
    except (checks.Failed, checks.Lacking) as error:
        sys.exit(str(error))
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    tabulate([options.output], record_of([options.output], None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
