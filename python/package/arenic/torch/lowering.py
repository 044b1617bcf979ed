"""Operators of the backward pass that PyTorch's exporter has no ONNX for, in operators of ONNX's default domain."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnxscript import opset18 as op
from torch._decomp import get_decompositions

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


def convolution_backward(dy, x, w, _bias_sizes, stride, padding, dilation, transposed, _output_padding, groups, mask):
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
        (n + 2 * p - s * (m - 1) - 1) // d + 1 for n, p, s, m, d in zip(spatial, padding, stride, windows, dilation)
    ]
    if taps != kernel:
        ends, which = _ints(*kernel), _ints(*(2 + i for i in axes))
        dw = op.Slice(dw, _ints(*(0 for _ in axes)), ends, which)
    return op.Transpose(dw, perm=swapped)


def max_pool_backward(dy, x, _kernel, _stride, _padding, _dilation, _ceil_mode, indices):
    """Each gradient goes to the element that was the largest of its window."""
    shape = _sizes(x)
    images = shape[:2]
    flat = _ints(*images, math.prod(shape[2:]))
    zeros = op.Expand(op.CastLike(op.Constant(value_float=0.0), dy), flat)
    at, updates = (op.Reshape(t, _ints(*images, -1)) for t in (indices, dy))
    return op.Reshape(op.ScatterElements(zeros, at, updates, axis=2, reduction="add"), _ints(*shape))


def avg_pool_backward(dy, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override=None):
    whole, parts, stride = _sizes(x)[2:], _sizes(dy)[2:], stride or kernel
    padding = list(padding) * (len(kernel) // len(padding))
    if divisor_override is None and (ceil_mode or (any(padding) and not count_include_pad)):
        # Every window has a divisor of its own, a product of one for each axis.
        settings = {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
        pools = zip(whole, parts, kernel, stride, padding)
        return _along_axes(
            dy, [_matrix(n, m, lambda u, _: F.avg_pool1d(u, k, s, p, **settings)) for n, m, k, s, p in pools]
        )
    if ceil_mode:
        raise NotImplementedError("avg_pool with ceil_mode and a divisor")
    share, channels = 1.0 / (divisor_override or math.prod(kernel)), _sizes(x)[1]
    weight = op.Expand(op.CastLike(op.Constant(value_float=share), dy), _ints(channels, 1, *kernel))
    rest = _left_over(whole, parts, kernel, stride, padding, [1] * len(kernel))
    return op.ConvTranspose(
        dy, weight, strides=list(stride), pads=[*padding, *padding], group=channels, output_padding=rest
    )


def adaptive_avg_pool_backward(dy, x):
    whole, parts = _sizes(x)[2:], _sizes(dy)[2:]
    if any(w % p for w, p in zip(whole, parts)):
        return _along_axes(dy, [_matrix(w, p, F.adaptive_avg_pool1d) for w, p in zip(whole, parts)])
    window = [w // p for w, p in zip(whole, parts)]
    return avg_pool_backward(dy, x, window, window, [0] * len(window), False, True)


def _matrix(source: int, result: int, function: Callable) -> np.ndarray:
    """What a linear function of rows, and of the size that it makes of them, does along one axis: [result, source]."""
    matrix = function(torch.eye(source, dtype=torch.float64)[None], result)[0].T
    if matrix.shape != (result, source):
        raise NotImplementedError(f"windows that make {matrix.shape[0]} of {source} elements, not {result}")
    return matrix.numpy()


def _along_axes(dy: Any, matrices: list[np.ndarray]) -> Any:
    """The gradient of a function that is a matrix along each spatial axis: their transposes take gradients back."""
    rank = 2 + len(matrices)
    for axis, matrix in enumerate(matrices, start=2):
        if matrix.shape[0] == matrix.shape[1] and (matrix == np.eye(len(matrix))).all():
            continue
        constant = op.CastLike(op.Constant(value=onnx.numpy_helper.from_array(matrix.astype(np.float32))), dy)
        last = [a for a in range(rank) if a != axis] + [axis]
        back = [last.index(a) for a in range(rank)]
        dy = op.MatMul(op.Transpose(dy, perm=last), constant) if axis != rank - 1 else op.MatMul(dy, constant)
        dy = op.Transpose(dy, perm=back) if axis != rank - 1 else dy
    return dy


def upsample_nearest_backward(dy, size, input_size, *scales):
    spatial, wanted = [int(n) for n in input_size[2:]], [int(n) for n in size]
    times = [m // n for m, n in zip(wanted, spatial)]
    if all(n * k == m for n, k, m in zip(spatial, times, wanted)) and all(
        s in (None, k) for s, k in zip(scales, times)
    ):
        apart = [n for pair in zip(spatial, times) for n in pair]
        dy = op.Reshape(dy, _ints(*(int(n) for n in input_size[:2]), *apart))
        return op.ReduceSum(dy, _ints(*range(3, 3 + 2 * len(times), 2)), keepdims=0)

    def along(scale):
        return lambda u, m: aten.upsample_nearest1d(u, [m], scale)

    return _along_axes(dy, _resizing(spatial, wanted, scales, along))


def upsample_linear_backward(dy, size, input_size, align_corners, *scales):
    def along(scale):
        return lambda u, m: aten.upsample_linear1d(u, [m], align_corners, scale)

    return _along_axes(dy, _resizing(input_size[2:], size, scales, along))


def upsample_bicubic2d_backward(dy, size, input_size, align_corners, *scales):
    def along(scale):
        return lambda u, m: aten.upsample_bicubic2d(u[..., None], [m, 1], align_corners, scale, None)[..., 0]

    return _along_axes(dy, _resizing(input_size[2:], size, scales, along))


def _resizing(spatial, wanted, scales, along: Callable) -> list[np.ndarray]:
    """A matrix for each axis, made by what `along` gives for its scale (which `size` gives where it is None)."""
    scales = [*scales, *[None] * (len(wanted) - len(scales))]
    return [_matrix(int(n), int(m), along(s)) for n, m, s in zip(spatial, wanted, scales)]


def replication_pad_backward(dy, x, padding):
    """`padding` is (left, right), then (top, bottom), and so on, from the last axis on."""
    spatial = _sizes(x)[2:]
    pairs = list(zip(padding[::2], padding[1::2]))[::-1]
    return _along_axes(
        dy, [_matrix(n, n + sum(p), lambda u, _: F.pad(u, p, mode="replicate")) for n, p in zip(spatial, pairs)]
    )


def weight_norm_backward(dw, v, g, norms, dim):
    """The gradients of direction and length of a weight w = g v / |v|; norms are over all axes but `dim`."""
    rank = len(v.shape)
    axes = _ints(*(a for a in range(rank) if a != dim % rank))
    along = op.Div(op.ReduceSum(op.Mul(dw, v), axes, keepdims=1), norms)
    dv = op.Mul(op.Div(g, norms), op.Sub(dw, op.Mul(v, op.Div(along, norms))))
    return dv, along


LOWERED: dict[Any, Callable] = {
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    aten.max_pool3d_with_indices_backward.default: max_pool_backward,
    aten.avg_pool2d_backward.default: avg_pool_backward,
    aten.avg_pool3d_backward.default: avg_pool_backward,
    aten._adaptive_avg_pool2d_backward.default: adaptive_avg_pool_backward,
    aten._adaptive_avg_pool3d_backward.default: adaptive_avg_pool_backward,
    aten.upsample_nearest1d_backward.default: upsample_nearest_backward,
    aten.upsample_nearest2d_backward.default: upsample_nearest_backward,
    aten.upsample_nearest3d_backward.default: upsample_nearest_backward,
    aten.upsample_linear1d_backward.default: upsample_linear_backward,
    aten.upsample_bilinear2d_backward.default: upsample_linear_backward,
    aten.upsample_trilinear3d_backward.default: upsample_linear_backward,
    aten.upsample_bicubic2d_backward.default: upsample_bicubic2d_backward,
    aten.replication_pad1d_backward.default: replication_pad_backward,
    aten.replication_pad2d_backward.default: replication_pad_backward,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
}

# Torchlib translates these wrongly without a word: the loss, whose total weight it takes for one, so that every
# gradient is scaled by the size of the batch, and batch normalisation, which it puts into inference mode.
_DECOMPOSED = [
    aten.nll_loss_forward, aten.nll_loss_backward, aten.nll_loss2d_forward, aten.nll_loss2d_backward,
    aten._native_batch_norm_legit_functional, aten.native_batch_norm_backward,
]  # fmt: skip


def decompositions() -> dict[Any, Callable]:
    """What is not left to the exporter, which decomposes operators that it has no ONNX for."""
    return get_decompositions(_DECOMPOSED)
