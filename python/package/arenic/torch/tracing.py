"""What both ways to export need of PyTorch: modules traced as they train, and quietly."""

from __future__ import annotations

import contextlib
import logging
import unittest.mock
import warnings
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

_attention, _batch_norm = F.scaled_dot_product_attention, F.batch_norm


@contextlib.contextmanager
def training_mode(module: nn.Module) -> Iterator[None]:
    """Puts a module into training mode, and every part of it back afterwards.

    A module that is in training mode already stays as it is: parts of it may be in evaluation mode on purpose.
    """
    modes = {part: part.training for part in module.modules()}
    if not module.training:
        module.train()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the exporter logs and warns of."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


@contextlib.contextmanager
def traceable() -> Iterator[None]:
    """Functions that cannot be traced, or have no ONNX, are others that compute the same."""
    with (
        sdpa_kernel(SDPBackend.MATH),
        unittest.mock.patch.object(F, "scaled_dot_product_attention", _attention_of_any_rank),
        unittest.mock.patch.object(F, "batch_norm", _normalization),
        unittest.mock.patch.object(torch, "cdist", _cdist),
        # It looks at a mask's values. The mask is applied whether it is known to be causal or not.
        unittest.mock.patch.object(nn.modules.transformer, "_detect_is_causal_mask", lambda *_: False),
        # Its fused path is for inference, and looks at values, too.
        unittest.mock.patch.object(torch.backends.mha, "get_fastpath_enabled", lambda: False),
    ):
        yield


def _normalization(x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """Batch normalisation that is frozen is arithmetic: as an operator it would be taken for one that trains."""
    if training or running_mean is None:
        return _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    shape = [1, -1] + [1] * (x.dim() - 2)
    y = (x - running_mean.reshape(shape)) * torch.rsqrt(running_var.reshape(shape) + eps)
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def _attention_of_any_rank(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest, **options
):
    """The exporter knows attention on four axes alone."""
    rank = query.dim()
    if rank == 4 or not rank == key.dim() == value.dim():
        return _attention(query, key, value, attn_mask, *rest, **options)

    def on_four(x: Tensor) -> Tensor:
        return x.reshape(-1, 1, *x.shape[-2:]) if rank < 4 else x.reshape(-1, *x.shape[-3:])

    if attn_mask is not None and attn_mask.dim() > 2:
        attn_mask = on_four(attn_mask.expand(*query.shape[:-1], key.shape[-2]))
    y = _attention(on_four(query), on_four(key), on_four(value), attn_mask, *rest, **options)
    return y.reshape(*query.shape[:-1], value.shape[-1])


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """`torch.cdist`, whose gradient is zero, too, where two points are one."""
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if p == 1.0:
        return apart.abs().sum(-1)
    if p == float("inf"):
        return apart.abs().amax(-1)
    if p == 0.0:
        return (apart != 0).to(apart.dtype).sum(-1)
    powers = (apart * apart if p == 2.0 else apart.abs() ** p).sum(-1)
    one = powers == 0
    # A root's slope at zero is infinite, and infinity times zero is no number.
    roots = torch.where(one, torch.ones_like(powers), powers)
    return torch.where(one, torch.zeros_like(powers), roots.sqrt() if p == 2.0 else roots ** (1.0 / p))
