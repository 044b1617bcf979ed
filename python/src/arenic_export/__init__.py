"""PyTorch modules for arenic: exported, compiled, and trained from Python.

    import arenic_export as arenic

    step = arenic.training_step(module, (images,), "cross_entropy", torch.optim.AdamW(module.parameters()))
    arenic.compile(step, "step.arenic", device_memory="2GiB")
    trained = arenic.load("step.arenic")
    losses = trained.step({"x": images, "target": labels})
    module.load_state_dict(trained.state_dict(), strict=False)

`export` writes a module's forward pass instead, of which arenic makes the step.
"""

from .forward import export
from .joint import training_step
from .program import ArenicError, Step, compile, load

__all__ = ["ArenicError", "Step", "compile", "export", "load", "training_step"]
