"""Compiling models to steps."""

from __future__ import annotations

import functools
import html
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from . import _native
from ._arrays import Tensor, packed, tensor
from ._native import CompileError

PathLike = str | os.PathLike[str]

_log = logging.getLogger("arenic")


def compile(
    model: Any = None, *, progress: Callable[[str, int, int], None] | None = None, **options: Any
) -> Step:
    """Compiles a whole training step, or a forward model with `loss` and `optimizer`.

    `model` is a path, the bytes of an ONNX model, or an `onnx.ModelProto`. Options are those of the command
    `arenic compile` with underscores for dashes: `dim={"batch": 32}`, `device_memory="2GiB"`, `nesterov=True`,
    `freeze=["embed.*"]`. Mappings give `NAME=VALUE` options, lists repeatable ones, `True` sets a flag.
    `dim={"seq": [16, 32]}` compiles a variant for each size, of which a trainer takes the one that a batch fits.

    `progress(method, bytes, bound)` is called for every better plan. What the command would print goes to the logger
    `arenic`. Ctrl-C ends the search, and the best plan so far is kept.

    Raises `CompileError` where the model cannot be read or compiled, or an option is wrong.
    """
    if model is None and "ort" not in options:
        raise TypeError("compile() needs a model, or `ort`, a folder of ONNX Runtime's training artifacts")
    source = None if model is None else _source(model)
    native = _native.compile(source, _arguments(options), _note, progress)
    return Step(native, source)


def load(path: PathLike) -> Step:
    """Reads an artifact that `Step.save` or the command `arenic compile` wrote."""
    return Step(_native.load(os.fspath(path)), None)


def export(model: Any, weights: Mapping[str, Any], path: PathLike) -> None:
    """Writes a forward model with these weights and running statistics in their places, as it is after training.

    Names, order, metadata and external data stay as they are. Names in `weights` that the model does not have, as those
    of an optimizer's states, are left out.
    """
    tensors = {name: packed(f"the weight `{name}`", value) for name, value in weights.items()}
    for note in _native.export(_source(model), tensors, os.fspath(path)):
        _note(f"note: {note}")


def _source(model: Any) -> str | bytes:
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    serialize = getattr(model, "SerializeToString", None)
    return serialize() if serialize is not None else os.fspath(model)


def _note(line: str) -> None:
    """Logs a line of the command."""
    level = logging.WARNING if line.startswith("warning: ") else logging.INFO
    _log.log(level, "%s", line.removeprefix("warning: ").removeprefix("note: "))


def _arguments(options: Mapping[str, Any]) -> list[str]:
    """Keywords as the command line has them."""
    arguments: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "class_weights" and not isinstance(value, (str, os.PathLike)):
            value = ",".join(repr(float(x)) for x in value)
        if isinstance(value, Mapping):
            value = [f"{key}={_listed(each)}" for key, each in value.items()]
        for each in value if isinstance(value, (list, tuple, set)) else [value]:
            if each is True:
                arguments.append(flag)
            elif each is not None and each is not False:
                arguments.append(f"{flag}={os.fspath(each) if isinstance(each, os.PathLike) else each}")
    return arguments


def _listed(value: Any) -> Any:
    """Several sizes as the command line has them."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


class Step:
    """A compiled step: a program for each target, which a checker has proved to implement the model.

    It does not change: several trainers may share it.
    """

    def __init__(self, native: _native.Step, source: str | bytes | None):
        self._native, self._source = native, source

    @functools.cached_property
    def figures(self) -> dict[str, float]:
        """All figures about the plan of the first target, in bytes and seconds; those that `arenic compile --json` prints."""
        return {
            name: int(x) if x == int(x) and not name.endswith("seconds") else x
            for name, x in self._native.figures().items()
        }

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena."""
        return self._native.arena_bytes()[0]

    @property
    def host_arena_bytes(self) -> int:
        """Bytes of the arena in host memory, where tensors are moved to."""
        return self._native.arena_bytes()[1]

    @property
    def live_peak_bytes(self) -> int:
        """The most bytes that are alive at once."""
        return self._native.plan_bytes()[0]

    @property
    def lower_bound_bytes(self) -> int:
        """What no order of the operators needs less than."""
        return self._native.plan_bytes()[1]

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters, statistics and the optimizer's states."""
        return self._native.plan_bytes()[2]

    @property
    def search_cut(self) -> bool:
        """True where a time limit or Ctrl-C ended a search: another run may give another plan."""
        return self._native.is_cut()

    @property
    def targets(self) -> list[str]:
        """What there are programs for: `cpu`, `cuda`."""
        return self._native.targets()

    @functools.cached_property
    def inputs(self) -> dict[str, Tensor]:
        """What is fed before every step, by name."""
        return {name: tensor(kind, shape) for name, kind, shape in self._native.inputs()}

    @functools.cached_property
    def outputs(self) -> dict[str, Tensor]:
        """What a step gives, by name."""
        return {name: tensor(kind, shape) for name, kind, shape in self._native.outputs()}

    @functools.cached_property
    def states(self) -> dict[str, Tensor]:
        """What is carried from step to step, by name."""
        return {name: tensor(kind, shape) for name, kind, shape in self._native.states()}

    @functools.cached_property
    def defaults(self) -> dict[str, float]:
        """Values of inputs where a batch gives none."""
        return self._native.defaults()

    def save(self, path: PathLike) -> None:
        """Writes the artifact, which `arenic.load` and the command `arenic run` read."""
        self._native.save(os.fspath(path))

    def report(self, path: PathLike) -> None:
        """Writes a page for the browser that shows what lies where in the arena, and when."""
        page = self._native.report()
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)

    def export(self, weights: Mapping[str, Any], path: PathLike, *, model: Any = None) -> None:
        """Writes the forward model that this was compiled from with these weights. See `arenic.export`."""
        source = self._source if model is None else _source(model)
        if source is None:
            raise CompileError("a step that was loaded does not hold its model; name it: model=\"model.onnx\"")
        export(source, weights, path)

    def _repr_html_(self) -> str:
        page = html.escape(self._native.report(), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 640px; border: 0"></iframe>'

    def __repr__(self) -> str:
        return f"<arenic.Step of {self._native.model()}: arena {self.arena_bytes} bytes, {', '.join(self.targets)}>"
