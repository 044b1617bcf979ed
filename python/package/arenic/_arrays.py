"""Arrays as arenic has them: element types by name, anything array-like to NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ._native import DataError

# NumPy has no bf16: its bits are shown as 16-bit integers.
DTYPES = {
    "bool": np.dtype(np.bool_),
    "u8": np.dtype(np.uint8),
    "i8": np.dtype(np.int8),
    "u16": np.dtype(np.uint16),
    "i16": np.dtype(np.int16),
    "u32": np.dtype(np.uint32),
    "i32": np.dtype(np.int32),
    "u64": np.dtype(np.uint64),
    "i64": np.dtype(np.int64),
    "bf16": np.dtype(np.uint16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}

# DLPack's numbers of CUDA's memory, and of what CUDA moves itself.
_ON_GPU = (2, 13)

_NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "bf16"}


class Tensor(NamedTuple):
    """The shape and the element type of an input, an output or a state."""

    shape: tuple[int, ...]
    dtype: np.dtype
    """As NumPy has it; bf16, which NumPy lacks, is `uint16`."""
    kind: str
    """The element type's name in arenic, for example `f32`."""

    def __str__(self) -> str:
        return f"{self.kind}[{','.join(map(str, self.shape))}]"


def tensor(kind: str, shape: list[int]) -> Tensor:
    """A tensor's description from what the native module says."""
    return Tensor(tuple(shape), DTYPES[kind], kind)


def to_array(what: str, value: Any) -> np.ndarray:
    """A NumPy array over the memory of `value`, or a copy where that cannot be had. `what` names it in errors."""
    if isinstance(value, np.ndarray):
        return value
    detach = getattr(value, "detach", None)
    if detach is not None:
        value = detach()
        if str(getattr(value, "dtype", "")) == "torch.bfloat16":
            import torch

            value = value.view(torch.uint16)
        if getattr(value, "is_cuda", False):
            value = value.cpu()
    try:
        if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
            value = np.from_dlpack(value)
        return np.asarray(value)
    except Exception as error:
        raise DataError(f"{what} is no array: {error}") from error


def on_gpu(value: Any, gpu: int, stream: int) -> object | None:
    """DLPack's capsule of a tensor in the memory of the GPU of this number, whose bytes are there in the order of the
    stream; `None` for anything else."""
    where = getattr(value, "__dlpack_device__", None)
    if where is None or tuple(map(int, where())) not in [(kind, gpu) for kind in _ON_GPU]:
        return None
    if hasattr(value, "detach"):
        value = value.detach().contiguous()
    return value.__dlpack__(stream=stream)


def packed(what: str, value: Any, kind: str | None = None) -> tuple[str, list[int], bytes]:
    """Element type, shape and bytes, as the native module takes a tensor; `kind` where it is known."""
    array = to_array(what, value)
    name = _NAMES.get(array.dtype)
    if kind == "bf16" and name == "u16":
        name = "bf16"
    if name is None:
        raise DataError(f"{what} has elements of {array.dtype}, which arenic does not have; convert it with .astype")
    return name, list(array.shape), np.ascontiguousarray(array).tobytes()


def trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without axes of one element at its end, which hold nothing."""
    end = len(shape)
    while end and shape[end - 1] == 1:
        end -= 1
    return shape[:end]
