"""From a PyTorch module to one ONNX file with a whole training step: forward pass, cross-entropy,
backward pass and SGD with momentum, in operators of ONNX's default domain (opset 18).

Inputs are `p.*` (parameters), `b.*` (batch statistics), `m.*` (momenta), `lr`, the data and `target`;
outputs `loss` and `out_X`, the next value of input `X`. No tensor has data.
"""

import logging
import warnings

import onnx
import torch
import torch.nn.functional as F
from onnxscript import opset18 as op
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.onnx._internal.exporter import _core, _decomp, _fx_passes, _registration

from networks import BatchNorm

aten = torch.ops.aten

MOMENTUM = 0.9

# Initializers above this many bytes lose their data; they point to a file that does not exist.
KEPT_BYTES = 1024


# ----------------------------------------------- backward operators in those of ONNX
def ints(*values):
    return op.Constant(value_ints=[int(v) for v in values])


def sizes(x):
    return [int(s) for s in x.shape]


def convolution_backward(dy, x, w, _bias, stride, padding, dilation, transposed, _output_padding, groups, mask):
    assert groups == 1, "no network here has grouped convolutions"
    pads, spatial = [*padding, *padding], [0, 1]
    like = {"pads": pads, "dilations": list(dilation)}
    dx = dw = db = op.Constant(value_float=0.0)
    if mask[0] and transposed:
        dx = op.Conv(dy, w, strides=list(stride), **like)
    elif mask[0]:
        kernel = [dilation[i] * (sizes(w)[2 + i] - 1) + 1 for i in spatial]
        covered = [(sizes(dy)[2 + i] - 1) * stride[i] - 2 * padding[i] + kernel[i] for i in spatial]
        rest = [sizes(x)[2 + i] - covered[i] for i in spatial]
        dx = op.ConvTranspose(dy, w, strides=list(stride), output_padding=rest, **like)
    if mask[1]:
        # The weight's gradient is a convolution in which batch and channels change places.
        large, small = (dy, x) if transposed else (x, dy)
        turned = [op.Transpose(t, perm=[1, 0, 2, 3]) for t in (large, small)]
        dw = op.Conv(*turned, strides=list(dilation), dilations=list(stride), pads=pads)
        kernel = sizes(w)[2:]
        reach = [
            (sizes(large)[2 + i] + 2 * padding[i] - stride[i] * (sizes(small)[2 + i] - 1) - 1) // dilation[i] + 1
            for i in spatial
        ]
        if reach != kernel:
            dw = op.Slice(dw, ints(0, 0), ints(*kernel), ints(2, 3))
        dw = op.Transpose(dw, perm=[1, 0, 2, 3])
    if mask[2]:
        db = op.ReduceSum(dy, ints(0, 2, 3), keepdims=0)
    return dx, dw, db


def max_pool2d_backward(dy, x, _kernel, _stride, _padding, _dilation, _ceil_mode, indices):
    n, c, h, w = sizes(x)
    zeros = op.Expand(op.CastLike(op.Constant(value_float=0.0), dy), ints(n, c, h * w))
    flat = [op.Reshape(t, ints(n, c, -1)) for t in (indices, dy)]
    return op.Reshape(op.ScatterElements(zeros, *flat, axis=2, reduction="add"), ints(n, c, h, w))


LOWERED = {
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool2d_backward,
}

DECOMPOSED = [
    aten._native_batch_norm_legit_functional, aten.native_batch_norm_backward, aten.native_layer_norm_backward,
    aten.native_dropout, aten.native_dropout_backward, aten.threshold_backward, aten.nll_loss_forward,
    aten.nll_loss_backward, aten._softmax_backward_data, aten._log_softmax_backward_data, aten.gelu_backward,
    aten.embedding_dense_backward, aten.tanh_backward, aten.sigmoid_backward, aten.slice_backward,
    aten.select_backward, aten.split_with_sizes, aten.split, aten.unbind, aten.t, aten.rsub, aten.masked_fill,
    aten.new_zeros, aten.full_like, aten.addmm, aten.baddbmm, aten.stack,
]  # fmt: skip


def registry():
    known = _registration.ONNXRegistry.from_torchlib(opset_version=18)
    for target, lowering in LOWERED.items():
        known.register_op(target, lowering, is_complex=False)
    return known


def decompositions(known):
    """What has no ONNX operator is decomposed, and what torchlib's own translation gets wrong: the weight
    of the loss, and batch statistics, which must be those of the backward pass."""
    translated = _decomp.get_onnx_implemented_overloads(known)
    whole = {o for o in translated if "nll_loss" not in str(o) and "batch_norm" not in str(o)}
    table = {o: f for o, f in get_decompositions(DECOMPOSED).items() if o not in whole}
    table.update(_decomp.create_onnx_friendly_decomposition_table(whole))
    return {o: f for o, f in table.items() if o not in LOWERED}


# ------------------------------------------------------------------------- the step
def training_step(module):
    """The step as a function of a flat list of tensors, and the names of its operands and results."""
    parameters = dict(module.named_parameters())
    norms = {name: m for name, m in module.named_modules() if isinstance(m, BatchNorm)}
    statistics = [f"{name}.running_{s}" for name in norms for s in ("mean", "var")]
    fixed = {name: b for name, b in module.named_buffers() if name not in statistics}

    def step(*operands):
        rest = iter(operands)
        p = {name: next(rest).detach().requires_grad_() for name in parameters}
        b = {name: next(rest) for name in statistics}
        m = {name: next(rest) for name in parameters}
        lr, x, target = rest
        loss = F.cross_entropy(functional_call(module, {**p, **b, **fixed}, (x,)), target)
        gradients = torch.autograd.grad(loss, list(p.values()))
        fresh = [statistic for norm in norms.values() for statistic in norm.fresh]
        with torch.no_grad():
            momenta = [m[name] * MOMENTUM + g for name, g in zip(p, gradients)]
            updated = [value - lr * momentum for value, momentum in zip(p.values(), momenta)]
        return (loss.detach(), *updated, *fresh, *momenta)

    states = [f"p.{n}" for n in parameters] + [f"b.{n}" for n in statistics] + [f"m.{n}" for n in parameters]
    buffers = dict(module.named_buffers())
    values = [*parameters.values(), *(buffers[n] for n in statistics), *parameters.values()]
    operands = [torch.empty_like(v) for v in values] + [torch.empty(())]
    return step, operands, states


def straighten(traced):
    """Leaves out what only autograd needs; the graph has neither aliases nor writes in place."""
    same = (aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default)
    for node in list(traced.graph.nodes):
        if node.op == "call_function" and node.target in same:
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    traced.graph.eliminate_dead_code()
    traced.recompile()


def strip(model, kept_bytes):
    """Drops the exporter's notes and the data of larger tensors, which plans do not need."""
    graph = model.graph
    for part in [model, graph, *graph.node, *graph.input, *graph.output]:
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    graph.ClearField("value_info")
    stored = list(graph.initializer) + [a.t for n in graph.node for a in n.attribute if a.HasField("t")]
    offset = 0
    for tensor in stored:
        size = onnx.numpy_helper.to_array(tensor).nbytes
        if size > kept_bytes:
            kept = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            kept.data_location = onnx.TensorProto.EXTERNAL
            for key, value in [("location", "stripped.bin"), ("offset", offset), ("length", size)]:
                kept.external_data.add(key=key, value=str(value))
            tensor.CopyFrom(kept)
            offset += -(-size // 64) * 64


def export(build, data, path, kept_bytes=KEPT_BYTES):
    """Writes the step of the module that `build` makes; `data` gives its operand, its name and the target."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    known, module = registry(), build().train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        step, operands, states = training_step(module)
        x, name, target = data()
        operands += [x, target]
        traced = make_fx(step, decomposition_table=decompositions(known))(*operands)
    straighten(traced)
    # The graph is decomposed already; the exporter's own pass would trace it again.
    _fx_passes.decompose_with_registry = lambda program, _registry: program
    program = _core.export(
        traced,
        tuple(operands),
        registry=known,
        input_names=[*states, "lr", name, "target"],
        output_names=["loss", *(f"out_{s}" for s in states)],
        optimize=True,
        opset_version=18,
        verbose=False,
    )
    model = program.model_proto
    strip(model, kept_bytes)
    path.write_bytes(model.SerializeToString(deterministic=True))
