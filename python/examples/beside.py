"""What the examples share: the time of steps, and the memory that they take, beside eager PyTorch's."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclass
class Run:
    """A training: losses, seconds of each step, and bytes."""

    name: str
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory: int = 0

    def step(self, function: Callable[[], float]) -> None:
        """Runs a step that gives its loss."""
        start = time.perf_counter()
        self.losses.append(function())
        self.seconds.append(time.perf_counter() - start)


def _status(name: str) -> int:
    """A figure of this process, in bytes; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def resident(run: Run) -> Iterator[None]:
    """Measures by how much the memory of this process rises at most."""
    with contextlib.suppress(OSError):
        # Begins the peak anew.
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    yield
    run.memory = max(_status("VmHWM") - before, 0)


def table(*runs: Run) -> None:
    """Prints what the runs took."""
    print(f"\n{'':<24} {'first loss':>11} {'last losses':>12} {'ms a step':>10} {'MiB':>9}")
    for run in runs:
        last = sum(run.losses[-20:]) / len(run.losses[-20:])
        median = sorted(run.seconds)[len(run.seconds) // 2]
        print(f"{run.name:<24} {run.losses[0]:>11.4f} {last:>12.4f} {median * 1e3:>10.2f} {run.memory / 2**20:>9.2f}")
    print("MiB: for arenic the arena, which holds all tensors; for PyTorch what the process grew by while it trained")
