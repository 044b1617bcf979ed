"""Training with a step, batch by batch."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import _native
from ._arrays import Tensor, on_gpu, packed, tensor, to_array, trimmed
from ._native import DataError
from ._step import PathLike, Step


# Stands for a value that is copied from the GPU's memory.
LENT = object()


class _Port:
    """An input or an output: its type, and an array over its bytes where it has some."""

    __slots__ = ("array", "name", "tensor")

    def __init__(self, name: str, kind: str, shape: list[int], memory: _native.Memory | None):
        self.name, self.tensor = name, tensor(kind, shape)
        self.array = None if memory is None else np.asarray(memory)


def _ports(given: list[tuple[str, str, list[int], _native.Memory | None]]) -> dict[str, _Port]:
    return {name: _Port(name, kind, shape, memory) for name, kind, shape, memory in given}


class Trainer:
    """States under training, and the arena that a step runs in.

    `device` is `cpu` or `cuda:N`. `threads` are those of kernels; 0 takes one per core, and the results do not depend on
    it. `seed` is that of random operators (by default the one saved with `init`, else 0). `init` has values for states,
    and for constants to be replaced: a path to a `.safetensors` or `.npz` file, or arrays by name. States whose names
    match a pattern in `zeros` begin at zero where nothing gives a value; names in `init` that match one in `skip` are
    passed over. On a GPU, `deterministic` takes only what gives the same bits in every run, and `trust_gpu_code` runs
    the code that the artifact holds.

    With `dynamic`, a batch of a size that the step was not compiled for is no error: a step of its size is compiled
    when it first comes, within the arena that there is, and kept beside the artifact where that is a file. One that does
    not fit raises `CompileError`, which says how large an arena it needs; the states are as they were, and training goes
    on with other batches. Sizes are those of the dimensions that `dim` named.

    Another thread may use a trainer meanwhile: it waits for its turn.
    """

    def __init__(
        self,
        step: Step,
        *,
        device: str = "cpu",
        threads: int = 0,
        seed: int | None = None,
        init: PathLike | Mapping[str, Any] | None = None,
        zeros: Sequence[str] = (),
        skip: Sequence[str] = (),
        deterministic: bool = False,
        trust_gpu_code: bool = False,
        dynamic: bool = False,
    ):
        path, tensors = None, {}
        if isinstance(init, Mapping):
            kinds = step.states
            for name, value in init.items():
                known = kinds.get(name)
                tensors[name] = packed(f"the state `{name}`", value, known.kind if known else None)
        elif init is not None:
            path = os.fspath(init)
        self._step = step
        self._native = _native.Trainer(
            step._native, device, threads, seed, path, tensors, list(skip), list(zeros), deterministic, trust_gpu_code, dynamic
        )
        self._dynamic = dynamic
        self._defaults = step.defaults
        self._moves = self._native.moves()
        self._kinds = {name: tensor(kind, shape) for name, kind, shape in self._native.states()}
        # From feeding a batch to reading the outputs, no other thread may feed.
        self._turn = threading.RLock()
        # A step that Ctrl-C left is still running.
        self._is_left = False
        # What the next step reads of the GPU's memory must be there until it has ended.
        self._lent: list[object] = []
        self._is_on_gpu = device != "cpu"
        # Weights may change without our knowing.
        self._has_views = False
        self._evaluations: dict[int, tuple[dict[str, _Port], dict[str, _Port]]] = {}
        self._variants = self._known()
        self._chosen = 0
        self._bind()

    def _known(self) -> list[tuple[str, dict[str, tuple[int, ...]]]]:
        """Names of the variants, and the shapes that each takes."""
        variants = self._native.variants()
        return [(name, {port: tuple(shape) for port, _, shape in inputs}) for name, inputs in variants]

    def _bind(self) -> None:
        self._inputs, self._outputs = _ports(self._native.inputs()), _ports(self._native.outputs())
        self._scalars, self._arrays = _divided(self._outputs)

    @property
    def variants(self) -> list[str]:
        """The names of the steps that share the states; one that is empty where there is one step alone."""
        return [name for name, _ in self._variants]

    def _choose(self, batch: Mapping[str, Any], variant: str | None = None, *, evaluates: bool = False) -> None:
        """Chooses a variant by its name, or the first whose inputs the batch fits; else one that is compiled for it, or the
        last one, which says what does not fit."""
        shapes = {name: np.shape(value) for name, value in batch.items()}
        known = self._variants[: self._native.compiled()] if evaluates else self._variants
        fitting = [
            i
            for i, (_, inputs) in enumerate(known)
            if all(name in inputs and trimmed(inputs[name]) == trimmed(shape) for name, shape in shapes.items())
        ]
        if variant is not None:
            named = [i for i, (name, _) in enumerate(known) if name == variant]
            fitting = [i for i in fitting if i in named] or (named if not self._dynamic else [])
        chosen = fitting[0] if fitting else None
        if chosen is None and self._dynamic and not evaluates:
            shaped = {name: list(shape) for name, shape in shapes.items() if shape}
            chosen = self._native.grow(variant, shaped)
            self._variants = self._known()
        if chosen is None and variant is not None:
            if variant not in self.variants:
                raise DataError(f"`{variant}` is no variant; there are {', '.join(self.variants)}")
            chosen = self.variants.index(variant)
        if chosen is None:
            chosen = self._chosen if self._chosen < len(known) else 0
        if chosen != self._chosen:
            self._native.choose(chosen)
            self._chosen = chosen
            self._bind()

    def step(self, batch: Mapping[str, Any], *, variant: str | None = None) -> dict[str, Any]:
        """Runs one step; gives its outputs: floats for scalars, arrays for others.

        `batch` has a value for every input, by name: anything with the buffer protocol, `__array__` or DLPack, which is
        written straight into the arena, and Python's numbers for inputs of one element. Of several variants it is that of
        this name, else the first whose shapes the batch has.

        Raises `DataError` where an input is missing, unknown, or of another shape or type, `NonFiniteError` after a step
        whose loss is NaN or infinite, and `CompileError` where a `dynamic` trainer has no room for a batch of this size.
        """
        with self._turn:
            return self._step_of(batch, variant)

    def _step_of(self, batch: Mapping[str, Any], variant: str | None) -> dict[str, Any]:
        if self._is_left:
            self._native.settle()
            self._is_left = False
            self._lent.clear()
        if len(self._variants) > 1 or variant is not None or self._dynamic:
            self._choose(batch, variant)
        if self._moves:
            self._bind()
        _feed(self._inputs, self._lend(self._inputs, batch, evaluates=False), self._defaults)
        self._is_left = True
        values = self._native.run()
        self._is_left = False
        self._lent.clear()
        out: dict[str, Any] = dict(zip(self._scalars, values))
        if self._arrays:
            if self._moves:
                self._bind()
            out.update((name, self._outputs[name].array.copy()) for name in self._arrays)
        return out

    def _lend(self, ports: dict[str, _Port], batch: Mapping[str, Any], *, evaluates: bool) -> Mapping[str, Any]:
        """A batch whose tensors in the memory of the trainer's GPU are lent to the next step, if they have the inputs'
        types."""
        given = self._native.stream(evaluates) if self._is_on_gpu else None
        if given is None:
            return batch
        gpu, stream = given
        self._lent.clear()
        rest = dict(batch)
        for name in [name for name in batch if name in ports]:
            capsule = on_gpu(batch[name], gpu, stream)
            if capsule is not None and self._native.lend(evaluates, name, capsule):
                self._lent.append(capsule)
                rest[name] = LENT
        return rest

    def evaluate(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The loss on a batch, for classes the accuracy, and other outputs, by the model as it is after training.

        For steps made of forward models. The states stay as they are. A batch has as many rows as one of `step`.
        """
        with self._turn:
            return self._evaluation_of(batch)

    def _evaluation_of(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        if self._has_views:
            self._native.touch()
        if len(self._variants) > 1:
            self._choose({name: x for name, x in batch.items() if name in self._inputs}, evaluates=True)
        if self._chosen not in self._evaluations or self._moves:
            inputs, outputs = self._native.evaluation()
            self._evaluations[self._chosen] = _ports(inputs), _ports(outputs)
        else:
            self._native.evaluation()
        inputs, outputs = self._evaluations[self._chosen]
        batch = {name: x for name, x in batch.items() if name in inputs or name not in self._inputs}
        _feed(inputs, self._lend(inputs, batch, evaluates=True), self._defaults)
        out: dict[str, Any] = dict(self._native.evaluate())
        self._lent.clear()
        _, arrays = _divided(outputs)
        if arrays and self._moves:
            outputs = _ports(self._native.evaluation()[1])
        out.update((name, outputs[name].array.copy()) for name in arrays)
        return out

    @property
    def state(self) -> States:
        """Parameters, statistics and the optimizer's states, by name."""
        return States(self)

    @property
    def steps(self) -> int:
        """Steps done so far, with those behind a state that was loaded."""
        return self._native.steps()

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena."""
        return self._native.arena_bytes()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all states, by name, as they are between two steps."""
        with self._turn:
            return {name: self.state[name] for name in self._kinds}

    def load_state_dict(self, states: Mapping[str, Any], *, strict: bool = True) -> None:
        """Replaces states by arrays of their names. With `strict` there must be one for each, and no others."""
        if strict:
            missing = [name for name in self._kinds if name not in states]
            unknown = [name for name in states if name not in self._kinds]
            if missing:
                raise DataError(f"no value for the states {', '.join(missing)}; strict=False goes without")
            if unknown:
                raise DataError(f"there are no states {', '.join(unknown)}; strict=False leaves them out")
        with self._turn:
            for name in self._kinds:
                if name in states:
                    self.state[name] = states[name]

    def save(self, path: PathLike) -> None:
        """Writes the states as a safetensors file, with the number of steps and the seed."""
        self._native.save(os.fspath(path))

    def restore(self, path: PathLike) -> None:
        """Goes on from what `save` or the command `arenic run --save` wrote."""
        self._native.restore(os.fspath(path))

    def export(self, path: PathLike, *, model: Any = None) -> None:
        """Writes the forward model that the step was compiled from, with the weights as they are now. `model` is the
        model of a step that was loaded. See `arenic.export`."""
        self._step.export(self.state_dict(), path, model=model)

    def __repr__(self) -> str:
        return f"<arenic.Trainer after {self.steps} steps: arena {self.arena_bytes} bytes>"


class States(Mapping[str, np.ndarray]):
    """A trainer's states by name. Reading one copies it; writing one checks shape and type."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    def __getitem__(self, name: str) -> np.ndarray:
        kind = self._kind(name)
        return np.frombuffer(bytearray(self._trainer._native.read_state(name)), kind.dtype).reshape(kind.shape)

    def __setitem__(self, name: str, value: Any) -> None:
        kind = self._kind(name)
        array = _fitting("state", name, kind, to_array(f"the state `{name}`", value))
        self._trainer._native.write_state(name, packed(f"the state `{name}`", array, kind.kind))

    def view(self, name: str) -> np.ndarray:
        """An array over the state's bytes in the arena, which every step changes, and which keeps the trainer alive."""
        self._kind(name)
        memory = self._trainer._native.state_memory(name)
        if memory is None:
            raise DataError(f"the state `{name}` does not lie in one piece in this process's memory; read a copy")
        self._trainer._has_views = True
        return np.asarray(memory)

    def _kind(self, name: str) -> Tensor:
        kind = self._trainer._kinds.get(name)
        if kind is None:
            raise KeyError(name)
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._trainer._kinds)

    def __len__(self) -> int:
        return len(self._trainer._kinds)

    def __repr__(self) -> str:
        return f"<arenic.States: {', '.join(f'{name} {kind}' for name, kind in self._trainer._kinds.items())}>"


def _divided(outputs: dict[str, _Port]) -> tuple[list[str], list[str]]:
    """Names of scalar outputs, and of others."""
    scalars = [name for name, port in outputs.items() if int(np.prod(port.tensor.shape)) == 1]
    return scalars, [name for name in outputs if name not in scalars]


def _feed(ports: dict[str, _Port], batch: Mapping[str, Any], defaults: Mapping[str, float]) -> None:
    """Writes a batch to the inputs."""
    for name in batch:
        if name not in ports:
            known = ", ".join(f"`{port.name}` {port.tensor}" for port in ports.values())
            raise DataError(f"`{name}` is no input; the inputs are {known}")
    for name, port in ports.items():
        if name in batch:
            value = batch[name]
        elif name in defaults:
            value = defaults[name]
        elif port.array is None:
            continue
        else:
            raise DataError(f"no value for the input `{name}` {port.tensor}")
        if value is LENT:
            continue
        to = port.array
        if to is not None and to.size == 1 and isinstance(value, (float, int)):
            try:
                to[...] = value
                continue
            except (OverflowError, ValueError, TypeError) as error:
                raise DataError(f"the input `{name}` takes {port.tensor}: {error}") from error
        array = to_array(f"the input `{name}`", value)
        if array.dtype != port.tensor.dtype or array.shape != port.tensor.shape:
            is_list = isinstance(value, (list, tuple, float, int))
            array = _fitting("input", name, port.tensor, array, any_number=is_list)
        if to is not None:
            np.copyto(to, array, casting="no")


def _fitting(what: str, name: str, wanted: Tensor, array: np.ndarray, *, any_number: bool = False) -> np.ndarray:
    """An array of the shape and type that an input or a state takes, where `array` says the same."""
    # Indices are often of 32 bits, and lists of numbers have no type of their own.
    widens = (array.dtype, wanted.dtype) == (np.dtype(np.int32), np.dtype(np.int64))
    if widens or (any_number and np.can_cast(array.dtype, wanted.dtype, "same_kind")):
        array = array.astype(wanted.dtype)
    if array.dtype != wanted.dtype:
        raise DataError(
            f"the {what} `{name}` takes {wanted}, not {array.dtype} of shape {list(array.shape)}; convert it with .astype"
        )
    if array.shape != wanted.shape:
        if trimmed(array.shape) != trimmed(wanted.shape):
            raise DataError(f"the {what} `{name}` takes {wanted}, not the shape {list(array.shape)}")
        array = array.reshape(wanted.shape)
    return array
