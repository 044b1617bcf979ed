"""Trains networks in planned memory: compile a model to a step, then train with it batch by batch.

    import arenic

    step = arenic.compile("model.onnx", dim={"batch": 32}, loss="cross_entropy", optimizer="adamw", device_memory="2GiB")
    trainer = arenic.Trainer(step)
    for x, y in loader:
        out = trainer.step({"x": x, "target": y, "lr": 1e-3})    # {"loss": 0.31}
    trainer.save("weights.safetensors")

`arenic.torch` goes from a PyTorch module to a trainer in one call.
"""

from ._native import (
    CompileError,
    DataError,
    DeviceError,
    Error,
    InternalError,
    NonFiniteError,
    __version__,
)
from ._step import Step, Tensor, compile, export, load
from ._trainer import States, Trainer

__all__ = [
    "CompileError",
    "DataError",
    "DeviceError",
    "Error",
    "InternalError",
    "NonFiniteError",
    "States",
    "Step",
    "Tensor",
    "Trainer",
    "__version__",
    "compile",
    "export",
    "load",
]
