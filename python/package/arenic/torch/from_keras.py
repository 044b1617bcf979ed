"""Keras models (with its backend torch) as modules that PyTorch's exporter sees through.

A Keras model on that backend is a `torch.nn.Module`, but its layers read their variables around it: the exporter would make
constants of all weights. `as_module` gives a module whose parameters and buffers are the variables, by their paths in the
model, and which calls the model in training mode with them.
"""

from __future__ import annotations

import contextlib
import sys
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def is_keras(module: Any) -> bool:
    """True for a Keras model or layer; Keras is not imported for it."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(module, keras.Layer)


def as_module(model: Any) -> nn.Module:
    """The model in training mode as a module of its own.

    Raises `ValueError` where Keras runs on another backend than torch, or the model has a layer whose training is not in
    its tensors: batch normalisation that is renormalised or synchronised.
    """
    import keras

    if keras.backend.backend() != "torch":
        raise ValueError(
            f"Keras runs on {keras.backend.backend()}; set KERAS_BACKEND=torch before it is imported, and load the model there"
        )
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and (layer.renorm or layer.synchronized):
            raise ValueError(f"`{layer.path}` is renormalised or synchronised, which ONNX has no operator for")
    return _FromKeras(model)


class _FromKeras(nn.Module):
    """`statistics` are the names of buffers that batch normalisation keeps."""

    def __init__(self, model: Any):
        import keras

        super().__init__()
        # Not as a submodule: its parameters are here.
        self.__dict__["model"] = model
        self.__dict__["variables"] = []
        norms = [n for n in model._flatten_layers() if isinstance(n, keras.layers.BatchNormalization)]
        moving = {id(v) for n in norms for v in (n.moving_mean, n.moving_variance)}
        self.statistics: set[str] = set()
        for variable in model.variables:
            if not torch.is_floating_point(variable.value):
                continue
            name = variable.path.replace(".", "_")
            value = variable.value.detach().clone()
            if variable.trainable:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)
                self.statistics |= {name} if id(variable) in moving else set()
            self.variables.append((variable, name))

    def forward(self, *inputs: Any) -> Any:
        import keras

        mapping = [(variable, getattr(self, name)) for variable, name in self.variables]
        with keras.StatelessScope(state_mapping=mapping), _layers_of_torch():
            # A model of layers takes all inputs as one argument.
            given = [list(inputs)] if len(inputs) > 1 and getattr(self.model, "inputs", None) else inputs
            return self.model(*given, training=True)


@contextlib.contextmanager
def _layers_of_torch() -> Iterator[None]:
    """Layers of whose training ONNX has one operator are torch's: Keras computes batch normalisation in pieces, and draws
    with a generator that the exporter does not know."""
    import keras

    with (
        unittest.mock.patch.object(keras.layers.BatchNormalization, "call", _batch_norm),
        unittest.mock.patch.object(keras.layers.Dropout, "call", _dropout),
    ):
        yield


def _batch_norm(layer: Any, inputs: Tensor, training: bool | None = None, mask: Any = None) -> Tensor:
    if mask is not None:
        raise ValueError(f"`{layer.path}` has a mask, which ONNX's batch normalisation has not")
    x = inputs.movedim(layer.axis, 1)
    mean, variance = layer.moving_mean.value, layer.moving_variance.value
    scale = layer.gamma.value if layer.scale else torch.ones_like(mean)
    offset = layer.beta.value if layer.center else torch.zeros_like(mean)
    trains = bool(training) and layer.trainable
    y = F.batch_norm(x, mean, variance, scale, offset, trains, 1.0 - layer.momentum, layer.epsilon)
    return y.movedim(1, layer.axis)


def _dropout(layer: Any, inputs: Tensor, training: bool = False) -> Tensor:
    if not training or layer.rate == 0:
        return inputs
    if layer.noise_shape is not None:
        raise ValueError(f"`{layer.path}` drops along some axes alone, which ONNX has no operator for")
    return F.dropout(inputs, layer.rate, training=True)
