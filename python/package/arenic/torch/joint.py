"""From a module to one ONNX file with its whole training step: PyTorch traces forward pass, loss, backward pass and
update as one graph without side effects, which is exported in operators of ONNX's default domain."""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from . import lowering
from .cleaning import clean, give_way
from .tracing import quiet, traceable, training_mode
from .updates import Updates, of_optimizer

aten = torch.ops.aten

_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "nll": F.nll_loss,
    "mse": F.mse_loss,
    "bce": F.binary_cross_entropy_with_logits,
}


def training_step(
    module: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    loss: str | Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer | str,
    *,
    example_target: Tensor | None = None,
    input_names: Sequence[str] | None = None,
) -> onnx.ModelProto:
    """The whole training step of a module, for inputs of these shapes.

    The model's inputs are `input_names` (by default `x`, or `x0`, `x1`, …), `target` and `lr`; its output is `loss`.
    Parameters, running statistics and the optimizer's states (`NAME.momentum`, `NAME.m`, `NAME.v`, `step`) are inputs
    `X` with initial values, whose next values are the outputs `out_X`.

    `loss` is a function of output and target, or `cross_entropy`, `nll`, `mse` or `bce` (of logits). A function needs
    an `example_target`. `optimizer` is one of torch's SGD, Adam, AdamW, or such a name.
    """
    inputs = [example_inputs] if isinstance(example_inputs, Tensor) else list(example_inputs)
    names = list(input_names) if input_names else ["x"] if len(inputs) == 1 else [f"x{i}" for i in range(len(inputs))]
    if len(names) != len(inputs):
        raise ValueError(f"{len(names)} input_names for {len(inputs)} example_inputs")
    with training_mode(module), quiet():
        target = _target(module, inputs, loss, example_target)
        function = _LOSSES[loss] if isinstance(loss, str) else loss
        step = _Step(module, function, of_optimizer(optimizer, dict(module.named_parameters())), inputs)
        operands = [*step.values(), torch.tensor(step.updates.lr), *inputs, target]
        entries = [*step.states, "lr", *names, "target"]
        results = ["loss", *(f"out_{name}" for name in step.states)]
        model = _exported(_traced(step, operands), operands, entries, results)
    _finish(model, dict(zip(step.states, step.values())), step.updates.lr)
    return model


def _target(module: nn.Module, inputs: list[Tensor], loss: Any, example: Tensor | None) -> Tensor:
    if example is not None:
        return example
    if not isinstance(loss, str):
        raise ValueError("a loss that is a function needs an example_target")
    if loss not in _LOSSES:
        raise ValueError(f"no loss is called `{loss}`; {', '.join(_LOSSES)} are, or give a function")
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    with torch.no_grad():
        output = functional_call(module, buffers, tuple(inputs))
    if not isinstance(output, Tensor):
        raise ValueError("the module gives no tensor; wrap it in one that does")
    if loss in ("mse", "bce"):
        return torch.zeros_like(output)
    shape = [*output.shape[:1], *output.shape[2:]]
    return torch.zeros(shape, dtype=torch.int64)


class _Step:
    """The step as a function of a flat list of tensors."""

    def __init__(self, module: nn.Module, loss: Callable, updates: Updates, inputs: list[Tensor]):
        self.module, self.loss, self.updates = module, loss, updates
        self.parameters = {n: p for n, p in module.named_parameters() if n in updates.groups and p.requires_grad}
        norms = {n: m for n, m in module.named_modules() if _updates_statistics(m)}
        self.norms = norms
        self.statistics = [f"{n}.{s}" if n else s for n in norms for s in ("running_mean", "running_var")]
        self.statistics += _written(module, norms, inputs)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        moving = {*self.parameters, *self.statistics}
        self.fixed = {name: t.detach() for name, t in tensors.items() if name not in moving}
        self.tensors = tensors
        self.states = [*self.parameters, *self.statistics]
        self.states += [f"{n}.{slot}" for slot in updates.slots for n in self.parameters]
        self.states += ["step"] if updates.counts else []

    def values(self) -> list[Tensor]:
        """What the states begin with."""
        values = [self.tensors[name].detach() for name in [*self.parameters, *self.statistics]]
        values += [torch.zeros_like(p) for _ in self.updates.slots for p in self.parameters.values()]
        return values + ([torch.zeros(())] if self.updates.counts else [])

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        rest = iter(operands)
        p = {name: next(rest).detach().requires_grad_() for name in self.parameters}
        # Clones, since the module may write to them.
        b = {name: next(rest).clone() for name in self.statistics}
        slots = {slot: {name: next(rest) for name in self.parameters} for slot in self.updates.slots}
        step = next(rest) + 1.0 if self.updates.counts else None
        lr, *data, target = rest
        fresh: dict[str, Tensor] = {}
        with _pure(self.norms, fresh):
            output = functional_call(self.module, {**p, **b, **self.fixed}, tuple(data))
        loss = self.loss(output, target)
        gradients = torch.autograd.grad(loss, list(p.values()), allow_unused=True)
        results, after = [], {slot: [] for slot in slots}
        with torch.no_grad():
            for (name, value), g in zip(p.items(), gradients):
                own = {slot: all_[name] for slot, all_ in slots.items()}
                new = (value.detach().clone(), own)
                if g is not None:
                    new = self.updates.apply(name, value.detach(), g, own, lr, step)
                results.append(new[0])
                for slot in slots:
                    after[slot].append(new[1].get(slot, own[slot]))
        moved = [fresh.get(name, b[name]) for name in self.statistics]
        counted = [step] if step is not None else []
        return (loss.detach(), *results, *moved, *(t for slot in slots for t in after[slot]), *counted)


def _written(module: nn.Module, norms: dict[str, nn.Module], inputs: list[Tensor]) -> list[str]:
    """The buffers that the module writes to as it trains, beside those of batch normalisation."""
    buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _pure(norms, {}):
        functional_call(module, buffers, tuple(inputs))
    return [name for name, b in buffers.items() if b._version]


def _updates_statistics(module: nn.Module) -> bool:
    norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return norm and module.training and module.track_running_stats and module.momentum is not None


@contextlib.contextmanager
def _pure(norms: dict[str, nn.Module], fresh: dict[str, Tensor]):
    """Batch normalisation and dropout without side effects; new running statistics go to `fresh`."""
    names = {id(m): name for name, m in norms.items()}

    def batch_norm(self, x):
        if not self.training and self.running_mean is not None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        if id(self) not in names:
            return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)
        result = aten._native_batch_norm_legit_functional(
            x, self.weight, self.bias, self.running_mean, self.running_var, True, self.momentum, self.eps
        )
        prefix = f"{names[id(self)]}." if names[id(self)] else ""
        fresh[f"{prefix}running_mean"], fresh[f"{prefix}running_var"] = result[3], result[4]
        return result[0]

    def dropout(x, p=0.5, training=True, inplace=False):
        return aten.native_dropout(x, p, True)[0] if training and p > 0 else x

    with (
        unittest.mock.patch.object(nn.modules.batchnorm._BatchNorm, "forward", batch_norm),
        unittest.mock.patch.object(F, "dropout", dropout),
    ):
        yield


def _traced(step: _Step, operands: list[Tensor]) -> torch.fx.GraphModule:
    """The step as a graph of aten operators."""
    with traceable(), torch.backends.mkldnn.flags(enabled=False):
        trace = make_fx(step, lowering.decompositions(), tracing_mode="fake", _allow_non_fake_inputs=True)
        traced = trace(*operands)
    traced.graph.eliminate_dead_code()
    same = (aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default)
    for node in list(traced.graph.nodes):
        if node.op == "call_function" and node.target in same:
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    traced.recompile()
    return traced


def _exported(
    traced: torch.fx.GraphModule, operands: list[Tensor], entries: list[str], results: list[str]
) -> onnx.ModelProto:
    # The exporter's optimizer takes Adam's epsilon for zero, and its time is quadratic.
    program = torch.onnx.export(
        torch.export.export(traced, tuple(operands)),
        (),
        dynamo=True,
        custom_translation_table=lowering.LOWERED,
        input_names=entries,
        output_names=results,
        optimize=False,
        opset_version=18,
        verbose=False,
    )
    clean(program.model)
    give_way(program.model)
    return program.model_proto


def _finish(model: onnx.ModelProto, states: dict[str, Tensor], lr: float) -> None:
    """Gives states and the learning rate their initial values."""
    for name, value in states.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.contiguous().numpy(), name))
    model.metadata_props.add(key="arenic.defaults", value=f"lr={lr!r}")
