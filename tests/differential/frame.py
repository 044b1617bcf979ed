"""What generators are written with: random tensors, cases, and the table of generators.

A generator makes one random case of one row of the importer's table: operands, attributes, and what
is right, computed in long double from the operands' exact values. `Result.units` says how far a
result may be from that, in units of its element type's precision (2^-52, 2^-23, 2^-7) times the
element's magnitude, which is the right result's unless the generator gives a larger one, as for
sums whose terms cancel.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
F64 = np.dtype(np.float64)
I32 = np.dtype(np.int32)
I64 = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)

FLOATS = [F32, F64, BF16]
SIGNED = [np.dtype(f"int{n}") for n in (8, 16, 32, 64)]
UNSIGNED = [np.dtype(f"uint{n}") for n in (8, 16, 32, 64)]
INTEGERS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTEGERS
ALL = NUMBERS + [BOOL]

PRECISION = {BF16: 2.0**-7, F32: 2.0**-23, F64: 2.0**-52}
LARGEST = {
    BF16: float(ml_dtypes.finfo(BF16).max),
    F32: float(np.finfo(F32).max),
    F64: float(np.finfo(F64).max),
}
# Below these a float has fewer digits.
SMALLEST = {BF16: 2.0**-126, F32: 2.0**-126, F64: 2.0**-1022}


def is_float(dtype: np.dtype) -> bool:
    return dtype in PRECISION


def wide(x: np.ndarray) -> np.ndarray:
    """The same numbers in long double; what is no float stays."""
    return x.astype(np.longdouble) if is_float(x.dtype) else x


@dataclass
class Operand:
    """An operand: `fixed` ones are known when the model is compiled."""

    array: np.ndarray
    fixed: bool = False
    # Whether a gradient by it is asked for, where it has floats.
    trained: bool = True


@dataclass
class Result:
    """What is right: floats in long double, all else exactly."""

    array: np.ndarray
    dtype: np.dtype
    units: float = 4
    magnitude: np.ndarray | float = 0.0


@dataclass
class Case:
    """One node, or such as `nodes` says, whose operands are named x0… and results y0…"""

    inputs: list[Operand | None]
    outputs: list[Result | None]
    attributes: dict = field(default_factory=dict)
    nodes: list | None = None


GENERATORS: dict[str, Callable[[Draw], Case]] = {}


def row(*names: str) -> Callable:
    """Says which rows a generator is for; those of other domains have it before the name."""

    def register(generator: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
        for name in names:
            assert name not in GENERATORS, name
            GENERATORS[name] = generator
        return generator

    return register


class Draw:
    """Random choices for one case. A smooth case is one whose gradient is tried: of doubles, all
    apart from each other and from zero, so that no difference steps over an edge."""

    def __init__(self, name: str, seed: int, smooth: bool):
        self.name = name.split(".")[-1]
        self.smooth = smooth
        self.r = np.random.default_rng([seed, zlib.crc32(name.encode()), int(smooth)])
        grid = 0.3 + np.arange(4096) * (1.7 / 4096)
        self.grid = list(self.r.permutation(grid))

    def chance(self, p: float) -> bool:
        return bool(self.r.random() < p)

    def pick(self, choices: Iterable):
        choices = list(choices)
        return choices[int(self.r.integers(len(choices)))]

    def some(self, choices: Iterable) -> list:
        """A part of them, in their order."""
        return [c for c in choices if self.chance(0.5)]

    def int(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(self.r.integers(low, high + 1))

    def dtype(self, choices: Iterable[np.dtype]) -> np.dtype:
        """An element type: f32 oftener than others."""
        choices = list(choices)
        if self.smooth and F64 in choices:
            return F64
        return F32 if F32 in choices and self.chance(0.4) else self.pick(choices)

    def extent(self, low: int = 1) -> int:
        return max(low, self.pick([1, 2, 2, 3, 3, 4, 5, 7]))

    def shape(self, least: int = 0, most: int = 4, zero: bool = True) -> tuple[int, ...]:
        """Some extents are 1, and in one shape of ten one is 0. In smooth cases it is no scalar,
        since an initializer without axes is a literal and no weight."""
        rank = self.int(max(least, 1) if self.smooth else least, most)
        shape = [self.extent() for _ in range(rank)]
        if self.smooth:
            shape = [min(d, 3) for d in shape]
        elif zero and rank and self.chance(0.1):
            shape[self.int(0, rank - 1)] = 0
        return tuple(shape)

    def part(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to this one."""
        part = tuple(1 if self.chance(0.3) else d for d in whole)
        return part[self.int(0, len(part)) if self.chance(0.5) else 0 :]

    def broadcast(self, count: int) -> list[tuple[int, ...]]:
        """Shapes that broadcast with each other."""
        whole = self.shape()
        parts = [whole if self.chance(0.5) else self.part(whole) for _ in range(count)]
        return [whole, *parts[1:]] if self.smooth else parts

    def axis(self, rank: int) -> int:
        """Counted from the start or from the end."""
        return self.int(-rank, rank - 1)

    def axes(self, rank: int) -> list[int]:
        axes = self.some(range(rank))
        self.r.shuffle(axes)
        return [a - rank if self.chance(0.3) else a for a in axes]

    def floats(
        self,
        shape,
        dtype: np.dtype,
        low: float = -3.0,
        high: float = 3.0,
        special: bool = False,
        away: Iterable[float] = (),
    ) -> np.ndarray:
        """Numbers of a type; `special` ones include infinities, NaN, and numbers that are very
        large or small. In smooth cases none is near a number of `away`."""
        n = int(np.prod(shape))
        if self.smooth:
            assert n <= len(self.grid), "a smooth case is too large"
            found = []
            while len(found) < n:
                x = self.grid.pop() * (-1 if low < 0 and self.chance(0.5) else 1)
                if all(abs(x - a) > 1e-3 for a in away):
                    found.append(x)
            return np.array(found, dtype).reshape(shape)
        x = self.r.uniform(low, high, n)
        # Round numbers meet edges and each other.
        coarse = self.r.random(n) < 0.25
        x[coarse] = np.clip(np.round(x[coarse] * 2) / 2, low, high)
        if special and self.chance(0.3):
            odd = [
                v
                for v in (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 1e20, -1e20)
                if not v < min(low, 0)
            ]
            at = self.r.random(n) < 0.3
            x[at] = self.r.choice(odd, int(at.sum()))
        return x.astype(dtype).reshape(shape)

    def tensor(
        self,
        shape,
        dtype: np.dtype,
        low: float = -3.0,
        high: float = 3.0,
        special: bool = False,
        away: Iterable[float] = (),
    ) -> np.ndarray:
        """Numbers of any type; integers are small, and now and then of any size."""
        if is_float(dtype):
            return self.floats(shape, dtype, low, high, special, away)
        if dtype == BOOL:
            return self.r.random(shape) < 0.5
        info = np.iinfo(dtype)
        if special and self.chance(0.3):
            return self.r.integers(info.min, info.max, shape, dtype, endpoint=True)
        least = max(info.min, -9 if low < 0 else int(np.ceil(low)))
        return self.r.integers(least, 9, shape, dtype, endpoint=True)


def fixed(values, dtype=np.int64) -> Operand:
    return Operand(np.asarray(values, dtype), fixed=True, trained=False)


def untrained(array: np.ndarray) -> Operand:
    return Operand(array, trained=False)
