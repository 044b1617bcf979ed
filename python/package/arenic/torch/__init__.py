"""From PyTorch modules to trainers.

    trainer = arenic.torch.trainer(module, images, "cross_entropy", torch.optim.AdamW(module.parameters(), lr=1e-3))
    for x, y in loader:
        out = trainer.step({"x": x, "target": y})
    trainer.sync(module)

`export` writes a module's forward pass as an ONNX file that trains as the module does; `training_step` gives a whole
training step, with the backward pass that PyTorch traces. Needs `pip install arenic[torch]`.
"""

from .forward import export
from .joint import training_step
from .training import TorchTrainer, trainer

__all__ = ["TorchTrainer", "export", "trainer", "training_step"]
