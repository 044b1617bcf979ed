#!/usr/bin/env python3
"""Training steps on a GPU: arenic beside PyTorch, eager and compiled, on the same card in one run.

Step times are medians: PyTorch's of CUDA events around steps, arenic's of steps replayed, on the host's
clock. Bytes are the peak of the allocator (PyTorch's, or arenic's arena) and what the driver says the
process had more than before. Both train from the same initial values, and the first losses are compared.
"""

import argparse
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
}
# Of operands of products, by the names that arenic has for them; sums are f32.
PRECISIONS = ["f32", "tf32", "bf16"]

QUICK = ["resnet50_b64", "gpt2_124m_b8"]


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
        while not self.ended.wait(0.1):
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


def measure_torch(name, compiled, precision, number, steps):
    """In a process of its own, so that nothing of another measurement is left."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
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
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
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
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    seconds = [a.elapsed_time(b) * 1e-3 for a, b in zip(events, events[1:])]
    return {
        "median_step_seconds": statistics.median(seconds),
        "allocator_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "losses": losses,
    }


def torch_apart(name, compiled, precision, number, steps):
    arguments = [sys.executable, __file__, "--measure-torch", json.dumps([name, compiled, precision, number, steps])]
    with DriverBytes(number) as driver:
        process = subprocess.run(arguments, capture_output=True, text=True, timeout=580)
    if process.returncode:
        raise checks.Failed(checks.told(process))
    return {**json.loads(process.stdout.splitlines()[-1]), "driver_bytes": driver.bytes}


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


def measure_arenic(name, precision, number, steps):
    with tempfile.TemporaryDirectory(prefix="arenic-") as folder:
        folder = pathlib.Path(folder)
        checks.unpack("benchmarks.tar.xz", folder)
        write_values(name, folder)
        artifact = folder / "benchmarks" / f"{name}_{precision}.arenic"
        arguments = ["run", artifact, "--data", folder / "data.npz"]
        arguments += ["--init", folder / "init.npz", "--set", f"lr={LR}", "--device", f"cuda:{number}", "--json"]
        with DriverBytes(number) as driver:
            *lines, summary = checks.arenic(*arguments, "--steps", 8 + steps, limit=580)
    return {
        "median_step_seconds": summary["median_step_seconds"],
        "allocator_bytes": summary["arena_bytes"],
        "driver_bytes": driver.bytes,
        "losses": checks.losses(lines)[:3],
    }


# ------------------------------------------------------------------------------ main
def attempt(measure, *arguments):
    """A measurement, or why there is none."""
    try:
        return measure(*arguments)
    except (checks.Failed, subprocess.SubprocessError, OSError, ValueError) as error:
        return {"failed": str(error)[-400:]}


def row(name, what, found, ours):
    if "failed" in found:
        return f"{name:<15} {what:<22} {found['failed']}"
    mib = [f"{found[key] / 2**20:10.0f}" for key in ("allocator_bytes", "driver_bytes")]
    ratio = f"{found['median_step_seconds'] / ours:7.2f}" if ours else " " * 7
    return f"{name:<15} {what:<22} {found['median_step_seconds'] * 1e3:10.2f} {mib[0]} {mib[1]} {ratio}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--steps", type=int, default=30, help="timed steps [default: 30]")
    parser.add_argument("--quick", action="store_true", help="two of the steps, ten times")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("benchmarks.json"))
    parser.add_argument("--measure-torch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_torch:
        return print(json.dumps(measure_torch(*json.loads(options.measure_torch))))
    unknown = set(options.names) - set(STEPS)
    if unknown:
        parser.error(f"no step is called {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    if not torch.cuda.is_available():
        sys.exit("there is no GPU that PyTorch sees, so nothing is measured")
    number, steps = int(options.device.removeprefix("cuda:")), 10 if options.quick else options.steps
    report = {
        "gpu": torch.cuda.get_device_name(number),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "date": time.strftime("%Y-%m-%d"),
        "steps": {},
    }
    print(f"{report['gpu']}, PyTorch {report['torch']}, medians of {steps} steps")
    print(f"{'step':<15} {'by':<22} {'ms':>10} {'alloc MiB':>10} {'driver MiB':>10} {'/arenic':>7}")
    is_wrong = False
    for name in options.names or (QUICK if options.quick else STEPS):
        found = {}
        for precision in PRECISIONS:
            ours = attempt(measure_arenic, name, precision, number, steps)
            found[f"arenic, {precision}"] = ours
            for how in ("eager", "compile"):
                found[f"{how}, {precision}"] = attempt(torch_apart, name, how == "compile", precision, number, steps)
            for how in ("arenic", "eager", "compile"):
                what = f"{how}, {precision}"
                print(row(name, what, found[what], ours.get("median_step_seconds")), flush=True)
        ours = found["arenic, f32"].get("median_step_seconds")
        eager = found["eager, f32"].get("losses")
        if ours and eager:
            off = [abs(a - b) / abs(b) for a, b in zip(found["arenic, f32"]["losses"], eager)]
            print(f"{'':<15} losses are off eager PyTorch's by {max(off):.1e} of them")
            is_wrong |= off[0] > CLOSE
        is_wrong |= ours is None
        report["steps"][name] = {"measured": found, "published": PUBLISHED.get(name, {})}
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
