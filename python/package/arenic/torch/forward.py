"""From a module to an ONNX file with its forward pass, of which arenic makes the training step that PyTorch would do."""

from __future__ import annotations

import inspect
import json
import os
import re
import unittest.mock
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from onnxscript import ir
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call

from . import from_keras
from .cleaning import clean, extent, give_way
from .tracing import quiet, traceable, training_mode

aten = torch.ops.aten

# Any other version of ONNX that both sides know would do.
_OPSET = 18


def export(
    module: nn.Module,
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
) -> None:
    """Writes a module's forward pass as an ONNX file that trains as the module does.

    `inputs` is an example: a tensor, a sequence of what `forward` takes, or a mapping to its keywords. Inputs of the
    file are called as the parameters of `forward`, or `input_names`; outputs as the keys of what `forward` gives,
    `output` where it gives one tensor, or `output_names`.

    `dynamic` says which sizes are open, as `{"x": {0: "batch"}}`. By default the first axis of every input that has as
    many rows as the first one is `batch`, where the module works for any; `{}` fixes every size.

    A Keras model on the backend torch is taken, too; its parameters are called by their paths in it.

    The file holds the module in training mode, every parameter by its name, and in the property `arenic.parameters`
    which tensors are parameters, which of them are one tensor, and which take no gradient. No gradient passes `detach`
    and `no_grad`. Raises `ValueError` where a file cannot say how the module trains, and torch's own errors where it
    cannot be exported.
    """
    program = exported(module, inputs, input_names=input_names, output_names=output_names, dynamic=dynamic)
    program.save(path, external_data=False)


def exported(
    module: nn.Module,
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
) -> torch.onnx.ONNXProgram:
    """What `export` writes."""
    positional, keywords = _arguments(inputs)
    variance = "unbiased"
    if from_keras.is_keras(module):
        module, variance = from_keras.as_module(module), "population"
    names = _input_names(module, positional, keywords, input_names)
    with training_mode(module), traceable():
        _refuse_momentless(module)
        output = _run(module, positional, keywords)
        _refuse_functions(module, positional, keywords, output)
        sizes = _first_axes([*positional, *keywords.values()], names) if dynamic is None else dynamic
        shapes = _dynamic_shapes(
            [*positional, *keywords.values()], names, sizes, Dim.AUTO if dynamic is None else Dim.DYNAMIC
        )
        with quiet():
            by_argument = dict(zip(keywords, shapes)) if keywords else _by_parameter(module, shapes)
            program = torch.export.export(module, positional, keywords, dynamic_shapes=by_argument)
            _refuse_unregistered(module, program)
            _stop_gradients(program)
            # Nobody calls the program, and torch does not always find what these read: of `*args` in 2.9, of sizes in 2.15.
            program._guards_code = []
            onnx_program = torch.onnx.export(
                program, (), dynamo=True, optimize=False, opset_version=_OPSET, verbose=False
            )
        model = onnx_program.model
        _warn_of_moving_buffers(module, onnx_program.exported_program)
    clean(model)
    _name_sizes(model, names, sizes)
    _name_entries(model, names, output_names or _output_names(output), chosen=output_names is not None)
    parameters = _parameters(module, model)
    give_way(model)
    said = {"parameters": parameters, "stop_gradients": _stopped(model), "bn_variance": variance}
    model.metadata_props["arenic.parameters"] = json.dumps(said)
    return onnx_program


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}


def _input_names(module: nn.Module, positional: tuple, keywords: dict, wanted: Sequence[str] | None) -> list[str]:
    """A name for each argument."""
    count = len(positional) + len(keywords)
    if wanted is not None:
        if len(wanted) != count:
            raise ValueError(f"{len(wanted)} input_names for {count} inputs")
        return list(wanted)
    if keywords:
        return list(keywords)
    bound = inspect.signature(module.forward).bind(*positional).arguments
    names: list[str] = []
    for name, value in bound.items():
        several = isinstance(value, tuple) and len(bound) < count
        names += [f"{name}_{i}" for i in range(len(value))] if several else [name]
    return names


def _by_parameter(module: nn.Module, shapes: list[Any]) -> tuple[Any, ...]:
    """What is said of each argument, as `forward` takes them: those of `*args` are one."""
    kinds = [p.kind for p in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return tuple(shapes)
    first = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*shapes[:first], tuple(shapes[first:]))


def _first_axes(values: list[Any], names: list[str]) -> dict[str, dict[int, str]]:
    tensors = {n: v for n, v in zip(names, values) if isinstance(v, Tensor) and v.dim()}
    rows = next((len(v) for v in tensors.values()), 0)
    return {n: {0: "batch"} for n, v in tensors.items() if len(v) == rows}


def _dynamic_shapes(
    values: list[Any], names: list[str], sizes: Mapping[str, Mapping[int, str]], hint: Any
) -> list[Any]:
    unknown = [name for name in sizes if name not in names]
    if unknown:
        raise ValueError(f"dynamic: no input is called {', '.join(unknown)}; {', '.join(names)} are")
    return [
        {axis: hint for axis in sizes.get(name, ())} if isinstance(value, Tensor) else None
        for name, value in zip(names, values)
    ]


def _run(module: nn.Module, positional: tuple, keywords: dict) -> Any:
    """The module's output, with nothing changed in it; the same numbers are drawn each time."""
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        return functional_call(module, buffers, positional, keywords)


def _refuse_momentless(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training and part.momentum is None:
            raise ValueError(
                f"`{name}` averages its statistics over all steps (momentum=None), which ONNX has no operator for"
            )


def _refuse_functions(module: nn.Module, positional: tuple, keywords: dict, output: Any) -> None:
    """A forward pass says nothing of gradients that somebody wrote by hand, unless they are those of their forward pass."""
    found = _functions(output)
    if not found:
        return

    def forward_alone(cls, *operands):
        context = () if cls.setup_context is not torch.autograd.Function.setup_context else (unittest.mock.MagicMock(),)
        return cls.forward(*context, *operands)

    by_hand = _gradients(module, output)
    with unittest.mock.patch.object(torch.autograd.Function, "apply", classmethod(forward_alone)):
        without = _gradients(module, _run(module, positional, keywords))
    if any(not torch.allclose(g, w, rtol=1e-3, atol=1e-4 * float(g.abs().max())) for g, w in zip(by_hand, without)):
        raise ValueError(
            f"gradients of {', '.join(sorted(found))} are written by hand (autograd.Function), and are others than those of "
            "their forward pass, which is all that the file would say; training_step exports them"
        )


def _functions(output: Any) -> set[str]:
    """The names of every `autograd.Function` that was called for an output."""
    waiting = [t.grad_fn for t in _tensors(output).values() if t.grad_fn is not None]
    seen = set(waiting)
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found.add(f"`{type(node).__name__.removesuffix('Backward')}`")
        following = [n for n, _ in node.next_functions if n is not None and n not in seen]
        seen.update(following)
        waiting += following
    return found


def _gradients(module: nn.Module, output: Any) -> list[Tensor]:
    """The parameters' gradients of a sum of the output with weights that differ."""
    weighed = [
        t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).reshape(t.shape)
        for t in _tensors(output).values()
        if t.requires_grad
    ]
    parameters = [p for p in module.parameters() if p.requires_grad]
    total = sum(t.sum() for t in weighed) + 0.0 * sum(p.sum() for p in parameters)
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients)]


def _refuse_unregistered(module: nn.Module, program: ExportedProgram) -> None:
    """A parameter of the module that `forward` reads from anywhere else is a constant to the exporter."""
    names = {p.data_ptr(): name for name, p in module.named_parameters() if p.numel()}
    for constant in program.constants.values():
        if isinstance(constant, Tensor) and constant.data_ptr() in names:
            raise ValueError(
                f"the parameter {names[constant.data_ptr()]} would be a constant in the file: `forward` reads it from "
                "elsewhere than the module, where it has to be an attribute or in an nn.ParameterList"
            )


def _stop_gradients(program: ExportedProgram) -> None:
    """What a `no_grad` gives is detached, since the exporter writes such a part like any other."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.ops.higher_order.wrap_with_set_grad_enabled:
            continue
        if node.args[0]:
            continue
        for part in list(node.users):
            if not isinstance(part.meta.get("val"), Tensor) or not part.meta["val"].is_floating_point():
                continue
            with graph.inserting_after(part):
                stopped = graph.call_function(aten.detach.default, (part,))
            stopped.meta = {"val": part.meta["val"]}
            part.replace_all_uses_with(stopped, delete_user_cb=lambda user, stopped=stopped: user is not stopped)
            for spec in program.graph_signature.output_specs:
                if getattr(spec.arg, "name", None) == part.name:
                    spec.arg.name = stopped.name
    program.graph_module.recompile()


def _warn_of_moving_buffers(module: nn.Module, program: ExportedProgram) -> None:
    norms = [name for name, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    known = {f"{n}.{s}" if n else s for n in norms for s in ("running_mean", "running_var", "num_batches_tracked")}
    known |= getattr(module, "statistics", set())
    moving = sorted({*program.graph_signature.buffers_to_mutate.values()} - known)
    if moving:
        warnings.warn(
            f"the module changes {', '.join(moving)} as it trains; the file holds them as they are now", stacklevel=3
        )


def _name_sizes(model: ir.Model, names: list[str], sizes: Mapping[str, Mapping[int, str]]) -> None:
    """Symbols of sizes become the names that were asked for."""
    symbols: dict[str, str] = {}
    for name, value in zip(names, model.graph.inputs):
        for axis, size in sizes.get(name, {}).items():
            symbol = extent(value.shape[axis])
            if isinstance(symbol, int):
                warnings.warn(
                    f"the module works for no other `{size}` than {symbol} on axis {axis} of `{name}`, or the example "
                    "does not show it: it should have a size of two or more. The file has that size",
                    stacklevel=4,
                )
            else:
                symbols[symbol] = size
    for value in [*model.graph.inputs, *model.graph.outputs]:
        if value.shape is not None:
            value.shape = ir.Shape([_renamed(extent(size), symbols) for size in value.shape])


def _renamed(size: int | str, symbols: dict[str, str]) -> int | str:
    return size if isinstance(size, int) else re.sub(r"\w+", lambda found: symbols.get(found[0], found[0]), size)


def _tensors(output: Any, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of an output by the keys that lead to them."""
    if isinstance(output, Tensor):
        return {prefix or "output": output}
    items: Any = ()
    if isinstance(output, Mapping):
        items = output.items()
    elif isinstance(output, (tuple, list)):
        fields = getattr(output, "_fields", None)
        items = zip(fields, output) if fields else ((i if prefix else f"output_{i}", v) for i, v in enumerate(output))
    found: dict[str, Tensor] = {}
    for key, value in items:
        found.update(_tensors(value, f"{prefix}_{key}" if prefix else str(key)))
    return found


def _output_names(output: Any) -> list[str]:
    return list(_tensors(output))


def _name_entries(model: ir.Model, inputs: list[str], outputs: Sequence[str], *, chosen: bool) -> None:
    """Names inputs and outputs."""
    graph = model.graph
    if len(outputs) != len(graph.outputs):
        if chosen:
            raise ValueError(f"{len(outputs)} output_names for {len(graph.outputs)} outputs")
        outputs = [value.name or f"output_{i}" for i, value in enumerate(graph.outputs)]
    twice = {name for name in outputs if name in inputs or name in graph.initializers or list(outputs).count(name) > 1}
    if twice:
        if chosen:
            raise ValueError(f"output_names: {', '.join(sorted(twice))} is called so already")
        outputs = [f"{name}_{i}" if name in twice else name for i, name in enumerate(outputs)]
    # An output that is an input or a parameter, or one twice, needs a tensor of its own.
    seen: set[ir.Value] = set()
    for i, value in enumerate(graph.outputs):
        if value.producer() is None or value in seen:
            copy = ir.node("Identity", [value])
            graph.append(copy)
            copy.outputs[0].shape, copy.outputs[0].type = value.shape, value.type
            graph.outputs[i] = copy.outputs[0]
        seen.add(graph.outputs[i])
    for name, value in [*zip(inputs, graph.inputs), *zip(outputs, graph.outputs)]:
        value.name = name


def _stopped(model: ir.Model) -> list[str]:
    """The tensors that take no gradient: the exporter makes an `Identity` of each `detach`, of this name."""
    identities = [n.outputs[0].name or "" for n in model.graph if n.op_type == "Identity"]
    return [name for name in identities if re.fullmatch(r"detach(_\d+)?(\.inner)?", name)]


def _parameters(module: nn.Module, model: ir.Model) -> list[dict[str, Any]]:
    """What `arenic.parameters` says; each parameter is one initializer, called by its first name in the module."""
    names: dict[Tensor, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    rows: list[dict[str, Any]] = []
    initializers = model.graph.initializers
    for parameter, (name, *ties) in names.items():
        present = [initializers.pop(n) for n in (name, *ties) if n in initializers]
        row: dict[str, Any] = {"name": name}
        if not parameter.requires_grad:
            row["requires_grad"] = False
        if ties:
            row["ties"] = ties
        if present:
            kept, *others = present
            kept.name = name
            if kept.const_value is not None:
                kept.const_value.name = name
            for other in others:
                other.replace_all_uses_with(kept, replace_graph_outputs=True)
            initializers[name] = kept
        if not present or not present[0].uses():
            row["used"] = False
        rows.append(row)
    return rows
