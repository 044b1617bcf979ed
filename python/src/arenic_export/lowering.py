"""Operators of the backward pass that PyTorch's exporter has no ONNX for, in operators of ONNX's default domain."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnxscript import opset18 as op
from torch._decomp import get_decompositions
from torch.onnx._internal.exporter import _decomp, _registration

aten = torch.ops.aten


def _ints(*values: int) -> Any:
    return op.Constant(value_ints=[int(v) for v in values])


def _sizes(x: Any) -> list[int]:
    return [int(s) for s in x.shape]


def _left_over(whole: list[int], windows: list[int], kernel, stride, padding, dilation) -> list[int]:
    """How far the last window stays behind the end, for each spatial axis."""
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    reach = [(n - 1) * s - 2 * p + span for n, s, p, span in zip(windows, stride, padding, spans)]
    return [w - r for w, r in zip(whole, reach)]


def convolution_backward(
    dy, x, w, _bias_sizes, stride, padding, dilation, transposed, _output_padding, groups, mask
):
    """The gradients of operand, weight and bias; those that are masked out are never read."""
    axes = range(len(stride))
    like = {"pads": [*padding, *padding], "dilations": list(dilation), "group": groups}
    dx = dw = db = op.Constant(value_float=0.0)
    kernel = _sizes(w)[2:]
    if mask[0] and transposed:
        dx = op.Conv(dy, w, strides=list(stride), **like)
    elif mask[0]:
        rest = _left_over(_sizes(x)[2:], _sizes(dy)[2:], kernel, stride, padding, dilation)
        dx = op.ConvTranspose(dy, w, strides=list(stride), output_padding=rest, **like)
    if mask[1]:
        # A convolution in which batch and channels change places, and strides and dilations.
        large, small = (dy, x) if transposed else (x, dy)
        dw = _weight_gradient(large, small, _sizes(w)[1], kernel, stride, padding, dilation, groups)
    if mask[2]:
        db = op.ReduceSum(dy, _ints(0, *(2 + i for i in axes)), keepdims=0)
    return dx, dw, db


def _weight_gradient(x, dy, channels: int, kernel: list[int], stride, padding, dilation, groups: int):
    axes, spatial = range(len(kernel)), _sizes(x)[2:]
    swapped = [1, 0, *(2 + i for i in axes)]
    if groups == 1:
        turned = op.Transpose(x, perm=swapped)
    else:
        images = _sizes(x)[0]
        apart = op.Reshape(x, _ints(images, groups, channels, *spatial))
        apart = op.Transpose(apart, perm=[2, 1, 0, *(3 + i for i in axes)])
        turned = op.Reshape(apart, _ints(channels, groups * images, *spatial))
    dw = op.Conv(
        turned,
        op.Transpose(dy, perm=swapped),
        strides=list(dilation),
        dilations=list(stride),
        pads=[*padding, *padding],
        group=groups,
    )
    windows = _sizes(dy)[2:]
    taps = [
        (n + 2 * p - s * (m - 1) - 1) // d + 1
        for n, p, s, m, d in zip(spatial, padding, stride, windows, dilation)
    ]
    if taps != kernel:
        ends, which = _ints(*kernel), _ints(*(2 + i for i in axes))
        dw = op.Slice(dw, _ints(*(0 for _ in axes)), ends, which)
    return op.Transpose(dw, perm=swapped)


def max_pool2d_backward(dy, x, _kernel, _stride, _padding, _dilation, _ceil_mode, indices):
    n, c, h, w = _sizes(x)
    zeros = op.Expand(op.CastLike(op.Constant(value_float=0.0), dy), _ints(n, c, h * w))
    at, updates = (op.Reshape(t, _ints(n, c, -1)) for t in (indices, dy))
    return op.Reshape(op.ScatterElements(zeros, at, updates, axis=2, reduction="add"), _ints(n, c, h, w))


def avg_pool2d_backward(
    dy, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override=None
):
    if ceil_mode or (any(padding) and not count_include_pad and divisor_override is None):
        raise NotImplementedError("avg_pool2d with ceil_mode, or that leaves padding out of its mean")
    stride, channels = stride or kernel, _sizes(x)[1]
    share = 1.0 / (divisor_override or kernel[0] * kernel[1])
    weight = op.Expand(op.Constant(value_float=share), _ints(channels, 1, *kernel))
    rest = _left_over(_sizes(x)[2:], _sizes(dy)[2:], kernel, stride, padding, [1, 1])
    pads = [*padding, *padding]
    return op.ConvTranspose(
        dy, weight, strides=list(stride), pads=pads, group=channels, output_padding=rest
    )


def adaptive_avg_pool2d_backward(dy, x):
    whole, parts = _sizes(x)[2:], _sizes(dy)[2:]
    if any(w % p for w, p in zip(whole, parts)):
        raise NotImplementedError(f"adaptive_avg_pool2d from {whole} to {parts}, which do not divide")
    window = [w // p for w, p in zip(whole, parts)]
    return avg_pool2d_backward(dy, x, window, window, [0, 0], False, True)


def upsample_bilinear2d_backward(dy, size, input_size, align_corners, _scale_h=None, _scale_w=None):
    """Interpolation is a matrix along each axis; its transpose takes gradients back."""

    def matrix(source: int, result: int) -> np.ndarray:
        units = torch.eye(source)[None, None]
        size = (result, source)
        return F.interpolate(units, size=size, mode="bilinear", align_corners=align_corners)[0, 0].numpy()

    (_, _, h, w), (oh, ow) = (int(s) for s in input_size), (int(s) for s in size)
    rows = op.Constant(value=onnx.numpy_helper.from_array(matrix(h, oh).T.copy()))
    columns = op.Constant(value=onnx.numpy_helper.from_array(matrix(w, ow)))
    return op.MatMul(op.MatMul(rows, dy), columns)


LOWERED: dict[Any, Callable] = {
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool2d_backward,
    aten.avg_pool2d_backward.default: avg_pool2d_backward,
    aten._adaptive_avg_pool2d_backward.default: adaptive_avg_pool2d_backward,
    aten.upsample_bilinear2d_backward.default: upsample_bilinear2d_backward,
}

_DECOMPOSED = [
    aten.native_batch_norm_backward, aten._native_batch_norm_legit_functional, aten.native_layer_norm_backward,
    aten.native_group_norm_backward, aten.native_dropout, aten.native_dropout_backward, aten.threshold_backward,
    aten.nll_loss_forward, aten.nll_loss_backward, aten.nll_loss2d_forward, aten.nll_loss2d_backward,
    aten._softmax_backward_data, aten._log_softmax_backward_data, aten.mse_loss, aten.mse_loss_backward,
    aten.embedding_dense_backward, aten.gelu_backward, aten.tanh_backward, aten.sigmoid_backward,
    aten.silu, aten.silu_backward, aten.hardtanh, aten.hardtanh_backward, aten.hardswish, aten.hardswish_backward,
    aten.hardsigmoid_backward, aten.leaky_relu_backward, aten.elu_backward, aten.slice_backward,
    aten.select_backward, aten.split_with_sizes, aten.split, aten.unbind, aten.stack, aten.t, aten.rsub,
    aten.masked_fill, aten.addmm, aten.baddbmm, aten.addcmul, aten.addcdiv, aten.lerp, aten.diag_embed,
    aten.new_zeros, aten.full_like, aten._unsafe_index, aten.upsample_bilinear2d,
]  # fmt: skip


def registry() -> Any:
    """What each operator becomes in ONNX."""
    known = _registration.ONNXRegistry.from_torchlib(opset_version=18)
    for target, lowering in LOWERED.items():
        known.register_op(target, lowering, is_complex=False)
    return known


def decompositions(known: Any) -> dict[Any, Callable]:
    """What has no ONNX operator is decomposed, and what torchlib translates wrongly without a word: the loss,
    whose total weight it takes for one, so that every gradient is scaled by the size of the batch, and batch
    normalisation, which it puts into inference mode."""
    translated = _decomp.get_onnx_implemented_overloads(known)
    wrong = ("nll_loss", "batch_norm")
    whole = {o for o in translated if not any(name in str(o) for name in wrong)}
    table = {o: f for o, f in get_decompositions(_DECOMPOSED).items() if o not in whole}
    table.update(_decomp.create_onnx_friendly_decomposition_table(whole))
    return {o: f for o, f in table.items() if o not in LOWERED}
