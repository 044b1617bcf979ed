"""From a module to a trainer in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._step import compile
from .._trainer import Trainer
from .forward import exported
from .joint import training_step
from .updates import of_optimizer

# What `Trainer` takes; all else is for `compile`.
_RUNNING = ("device", "threads", "seed", "deterministic", "trust_gpu_code")


class TorchTrainer(Trainer):
    """A trainer of a module's parameters and running statistics.

    Where a batch has no `lr`, it is that of the optimizer which `trainer` was given, so that a scheduler of
    `torch.optim.lr_scheduler` sets it by its `step`.
    """

    _optimizer: torch.optim.Optimizer | None = None

    def step(self, batch: Mapping[str, Any], *, variant: str | None = None) -> dict[str, Any]:
        if self._optimizer is not None and "lr" not in batch and "lr" in self._inputs:
            batch = {**batch, "lr": float(self._optimizer.param_groups[0]["lr"])}
        return super().step(batch, variant=variant)

    def sync(self, module: nn.Module) -> None:
        """Copies parameters and running statistics to a module of the same structure."""
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if name in self._kinds:
                    tensor.copy_(torch.from_numpy(self.state[name]))


def trainer(
    module: nn.Module,
    example_inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    loss: str | Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer | str,
    **options: Any,
) -> TorchTrainer:
    """Exports a module, compiles its training step for batches of the example's size, and makes a trainer of it.

    `loss` is one that `arenic compile --loss` knows, of the module's output and the input `target`; or a function of
    both, for which `example_target` says what a target is. `optimizer` is one of `torch.optim`, with its settings, or a
    name. Inputs are called as the parameters of `forward`, or `input_names`. Other options are those of `arenic.compile`
    (`device_memory="2GiB"`) and of `arenic.Trainer` (`device`, `threads`, `seed`).

    The module stays as it is; `sync` brings what was trained back. Raises `ValueError` where a module, a loss or an
    optimizer cannot be exported, and torch's own errors.
    """
    running = {name: options.pop(name) for name in _RUNNING if name in options}
    input_names, example_target = options.pop("input_names", None), options.pop("example_target", None)
    settings = _settings(module, optimizer)
    if isinstance(loss, str) and settings is not None:
        program = exported(module, example_inputs, input_names=input_names)
        model = program.model_proto
        options = {**settings, "loss": loss, **options}
        options.setdefault("dim", _sizes(model, example_inputs))
    else:
        if isinstance(example_inputs, Mapping):
            input_names, example_inputs = input_names or list(example_inputs), list(example_inputs.values())
        model = training_step(
            module, example_inputs, loss, optimizer, example_target=example_target, input_names=input_names
        )
    made = TorchTrainer(compile(model, **options), **running)
    if isinstance(optimizer, torch.optim.Optimizer):
        made._optimizer = optimizer
    return made


def _sizes(model: Any, example_inputs: Any) -> dict[str, int] | None:
    """The size of the open dimension `batch`, where the file has one."""
    open_sizes = {
        size.dim_param
        for value in model.graph.input
        for size in value.type.tensor_type.shape.dim
        if size.HasField("dim_param")
    }
    values = example_inputs.values() if isinstance(example_inputs, Mapping) else example_inputs
    values = [example_inputs] if isinstance(example_inputs, Tensor) else list(values)
    rows = next((len(x) for x in values if isinstance(x, Tensor) and x.dim()), None)
    return {"batch": rows} if "batch" in open_sizes and rows is not None else None


def _settings(module: nn.Module, optimizer: torch.optim.Optimizer | str) -> dict[str, Any] | None:
    """An optimizer as options of `compile`; `None` where its groups have what these cannot say."""
    if isinstance(optimizer, str):
        return {"optimizer": optimizer}
    updates = of_optimizer(optimizer, dict(module.named_parameters()))
    groups = list(updates.groups.values())
    first = groups[0]
    same = all(
        (g.rate, g.momentum, g.nesterov, g.betas) == (1.0, first.momentum, first.nesterov, first.betas) for g in groups
    )
    if not same or len(updates.groups) < sum(p.requires_grad for p in module.parameters()):
        return None
    options: dict[str, Any] = {"optimizer": updates.kind, "lr": updates.lr}
    if updates.kind == "sgd":
        options.update(momentum=first.momentum or None, nesterov=first.nesterov)
    else:
        options.update(beta1=first.betas[0], beta2=first.betas[1], epsilon=updates.eps)
    decays = {g.weight_decay for g in groups}
    if len(decays) == 1:
        options["weight_decay"] = [first.weight_decay]
    else:
        options["weight_decay"] = {_exactly(name): g.weight_decay for name, g in updates.groups.items()}
    return options


def _exactly(name: str) -> str:
    """A pattern that fits a name alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
