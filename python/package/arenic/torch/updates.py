"""Updates of parameters as functions without side effects, by the formulas of torch.optim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Group:
    """Settings of some parameters."""

    # Of the input `lr`.
    rate: float = 1.0
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass
class Updates:
    """An optimizer: its kind, and a group for each parameter."""

    kind: str
    groups: dict[str, Group]
    lr: float
    eps: float = 1e-8
    slots: list[str] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        """True where updates depend on the number of the step."""
        return self.kind in ("adam", "adamw")

    def apply(
        self, name: str, p: Tensor, g: Tensor, state: dict[str, Tensor], lr: Tensor, step: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The next value of a parameter and of its states; `step` counts from 1."""
        group = self.groups[name]
        rate = lr * group.rate if group.rate != 1.0 else lr
        if group.weight_decay and self.kind == "adamw":
            p = p * (1.0 - rate * group.weight_decay)
        elif group.weight_decay:
            g = g + p * group.weight_decay
        if self.kind == "sgd":
            if not group.momentum:
                return p - rate * g, state
            v = state["momentum"] * group.momentum + g
            return p - rate * (g + v * group.momentum if group.nesterov else v), {"momentum": v}
        beta1, beta2 = group.betas
        m = state["m"] + (g - state["m"]) * (1 - beta1)
        v = state["v"] * beta2 + g * g * (1 - beta2)
        first, second = 1.0 - beta1**step, 1.0 - beta2**step
        divisor = torch.sqrt(v) / torch.sqrt(second) + self.eps
        return p - (rate / first) * m / divisor, {"m": m, "v": v}


_KINDS = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}

_REFUSED = {"amsgrad": False, "maximize": False, "dampening": 0}


def of_optimizer(optimizer: torch.optim.Optimizer | str, parameters: dict[str, Tensor]) -> Updates:
    """The updates that an optimizer of torch does, or one of its name does with default settings."""
    if isinstance(optimizer, str):
        made = {
            "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
            "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
            "adam": torch.optim.Adam,
            "adamw": torch.optim.AdamW,
        }
        if optimizer not in made:
            raise ValueError(f"no optimizer is called `{optimizer}`; {', '.join(made)} are")
        optimizer = made[optimizer](list(parameters.values()))
    kind = _KINDS.get(type(optimizer))
    if kind is None:
        known = ", ".join(k.__name__ for k in _KINDS)
        raise ValueError(f"{type(optimizer).__name__} is not supported; {known} are")
    names = {id(p): name for name, p in parameters.items()}
    first: dict[str, Any] = optimizer.param_groups[0]
    groups: dict[str, Group] = {}
    for settings in optimizer.param_groups:
        for name, wanted in _REFUSED.items():
            if settings.get(name, wanted) not in (wanted, None):
                raise ValueError(f"{type(optimizer).__name__} with {name} is not supported")
        if settings.get("eps", first.get("eps")) != first.get("eps"):
            raise ValueError("groups with different eps are not supported")
        group = Group(
            rate=float(settings["lr"]) / float(first["lr"]),
            weight_decay=float(settings["weight_decay"]),
            momentum=float(settings.get("momentum", 0.0)),
            nesterov=bool(settings.get("nesterov", False)),
            betas=tuple(float(b) for b in settings.get("betas", (0.9, 0.999))),
        )
        groups.update((names[id(p)], group) for p in settings["params"] if id(p) in names)
    momentum = kind == "sgd" and any(g.momentum for g in groups.values())
    slots = ["m", "v"] if kind != "sgd" else ["momentum"] if momentum else []
    return Updates(kind, groups, float(first["lr"]), float(first.get("eps", 1e-8)), slots)
