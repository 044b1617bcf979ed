#!/usr/bin/env python3
"""Bytes that a training step moves on a GPU, as PyTorch's compiler (Inductor) counts them.

    inductor_bytes.py [STEP …]

The steps are those of `benchmarks.py`, with bf16 autocast and SGD with momentum; loss, gradients and update are
compiled. It needs no GPU, allocates no data and takes minutes: tensors are fake, Inductor plans its kernels for
an H100, and what each of them reads and writes is added up by its own count (`GraphLowering.count_bytes`).

A kernel reads each operand once and writes each result once, whatever caches do: Inductor's kernels, and those
of libraries (products, convolutions, attention). Of a tensor that is indexed by another all is counted (of the
embedding, and of the predictions where the loss chooses the target's). Not counted: workspaces and other layouts
that libraries make, and operands of products that Inductor would pad if it could measure that this is sooner.

PyTorch traces backward passes only for devices that it has. So steps are traced for the CPU, with the operators
that a GPU would have, and all tensors are said to be on the GPU before Inductor lowers and fuses. Autocast's rules
for both differ for these networks only in casts within kernels. It needs PyTorch built for CUDA, with Triton.
"""

import argparse
import copy
import logging
import os
import pathlib
import sys
import types

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # So that plans are the same where there is a GPU.
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "models" / "papers"), str(ROOT / "benches")]

try:
    import torch
    import torch.nn.functional as F
    from functorch.compile import make_boxed_func
    from torch._dynamo.device_interface import CudaInterface, caching_worker_device_properties
    from torch._inductor import compile_fx, config, decomposition, graph, ir, scheduler
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    import benchmarks
    import records
except ImportError as error:
    sys.exit(f"this needs PyTorch and NumPy: {error}")

NAMES = ["gpt2_124m_b8", "resnet50_b256", "vit_b_16_b64", "unet_b8"]
GPU = torch.device("cuda:0")
COLUMNS = {
    "step": "step",
    "kernels": ("forward and backward: kernels", "d"),
    "gradients_gb": ("GB", ".2f"),
    "update_gb": ("update: GB", ".2f"),
    "gb": ("step: GB", ".2f"),
}
# What Inductor asks about a GPU before it plans for it.
H100 = types.SimpleNamespace(
    name="H100 SXM", major=9, minor=0, multi_processor_count=132, warp_size=32, regs_per_multiprocessor=65536,
    max_threads_per_block=1024, max_threads_per_multi_processor=2048, shared_memory_per_block_optin=232448,
)  # fmt: skip


def pretend():
    """Makes PyTorch trace and plan as for a GPU."""
    caching_worker_device_properties["cuda"] = [H100]
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda device=None: H100
    torch.cuda.get_device_capability = lambda device=None: (H100.major, H100.minor)
    CudaInterface.get_device_properties = staticmethod(torch.cuda.get_device_properties)
    CudaInterface.is_available = staticmethod(lambda: True)
    CudaInterface.is_bf16_supported = staticmethod(lambda including_emulation=True: True)
    # A GPU sums the gradient of a convolution's bias in a kernel of its own.
    decomposition.is_gpu = lambda device: True
    # The fused attention, which PyTorch would choose only for a GPU that it finds.
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    F.scaled_dot_product_attention = lambda q, k, v, is_causal: flash(q, k, v, 0.0, is_causal)[0]
    # Who computes a convolution decides how its result lies in memory; without a GPU it would not be cuDNN.
    select, backends = torch._C._select_conv_backend, torch._C._ConvBackend

    def select_cudnn(x, *rest, transposed, **named):
        if x.is_cuda:
            return backends.CudnnTranspose if transposed else backends.Cudnn
        return select(x, *rest, transposed=transposed, **named)

    torch._C._select_conv_backend = select_cudnn


def on_gpu(traced, operands):
    """Says of all tensors of a graph that they are on the GPU, and gives its operands there."""
    fake = torch._guards.detect_fake_mode(operands)
    for node in traced.graph.nodes:
        arguments = (node.args, node.kwargs)
        node.args, node.kwargs = torch.fx.node.map_aggregate(arguments, lambda a: GPU if isinstance(a, torch.device) else a)
    with fake:
        operands = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=GPU) for t in operands]
    FakeTensorProp(traced, fake).propagate(*operands)
    return operands


class Count:
    """Kernels that Inductor plans, and the bytes that they move."""

    def __init__(self):
        self.kernels = self.bytes = 0

    def plan(self, lowered):
        """Fuses as Inductor does, and counts in place of writing code."""
        lowered.init_wrapper_code()
        lowered._update_scheduler()
        for kernel in lowered.scheduler.nodes:
            # Neither is run: what only lays out others' results, and each of several results of one kernel.
            if isinstance(kernel, scheduler.NopKernelSchedulerNode) or isinstance(kernel.node, ir.MultiOutput):
                continue
            self.kernels += 1
            # Of a kernel for many tensors as a whole Inductor counts values that never leave registers, too.
            parts = kernel.snodes if isinstance(kernel, scheduler.ForeachKernelSchedulerNode) else [kernel]
            self.bytes += sum(part.get_read_write_buffers_sizes() for part in parts)
        return types.SimpleNamespace(call=lambda operands: None)

    def compiled(self, function):
        """`function`, whose graphs are counted here and then run as they were traced, on fake tensors."""

        def plan(traced, operands, **named):
            as_traced = copy.deepcopy(traced)
            graph.GraphLowering.compile_to_module = lambda lowered: self.plan(lowered)
            compile_fx.compile_fx_inner(traced, on_gpu(traced, operands), **named)
            return make_boxed_func(as_traced.forward)

        torch._dynamo.reset()
        backend = lambda traced, operands: compile_fx.compile_fx(traced, operands, inner_compile=plan)
        return torch.compile(function, backend=backend, dynamic=False)


def check():
    """Two counts that are known: of one fused kernel; and of a product with its weight's gradient."""
    fused, linear = Count(), Count()
    with FakeTensorMode():
        fused.compiled(lambda x: torch.relu(x + 1))(torch.empty(1_000_000))
        linear.compiled(torch.nn.Linear(512, 1024, bias=False))(torch.empty(256, 512)).backward(torch.empty(256, 1024))
    assert (fused.kernels, fused.bytes) == (1, 8_000_000), vars(fused)
    assert (linear.kernels, linear.bytes) == (2, 2 * 4 * (256 * 512 + 512 * 1024 + 256 * 1024)), vars(linear)


def count(name):
    """Counts of loss and gradients, and of the update, in a step of `benchmarks.py`."""
    build, data = benchmarks.STEPS[name]
    gradients, update = Count(), Count()
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = benchmarks.idiomatic(build()).train()
        _, x, target = data()
        if x.dim() == 4:
            # `module.to` is not for fake parameters.
            for p in (p for p in module.parameters() if p.dim() == 4):
                p.data = p.data.contiguous(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)

        def loss_of():
            with torch.autocast("cpu", torch.bfloat16):
                return F.cross_entropy(module(x), target)

        gradients.compiled(loss_of)().backward()
        optimizer = torch.optim.SGD(module.parameters(), lr=benchmarks.LR, momentum=benchmarks.MOMENTUM, foreach=True)
        for p in module.parameters():
            # As in every step but the first, which has no momenta to read.
            optimizer.state[p]["momentum_buffer"] = torch.empty_like(p)
        update.compiled(optimizer.step)()
    return gradients, update


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="STEP", help=f"steps of benchmarks.py [default: {' '.join(NAMES)}]")
    records.add_options(parser)
    arguments = parser.parse_args()
    names = arguments.names or NAMES
    unknown = set(names) - set(benchmarks.STEPS)
    if unknown:
        parser.error(f"no step is called {', '.join(sorted(unknown))}; there are {', '.join(benchmarks.STEPS)}")
    if torch.version.cuda is None:
        sys.exit("this needs PyTorch that is built for CUDA; it needs no GPU")
    logging.disable(logging.WARNING)
    # What is found in a cache is not planned, so it would not be counted.
    config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = False
    pretend()
    check()
    with records.Record(__file__, arguments.record, packages=["torch", "triton"]) as record:
        table = record.table(COLUMNS, device=H100.name)
        for name in names:
            gradients, update = count(name)
            gb = {"gradients_gb": gradients.bytes / 1e9, "update_gb": update.bytes / 1e9}
            table.add(step=name, kernels=gradients.kernels, **gb, gb=sum(gb.values()))


if __name__ == "__main__":
    main()
