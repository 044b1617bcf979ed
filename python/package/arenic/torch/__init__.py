"""From PyTorch modules to trainers.

    trainer = arenic.torch.trainer(module, images, "cross_entropy", torch.optim.AdamW(module.parameters(), lr=1e-3))
    for x, y in loader:
        out = trainer.step({"x": x, "target": y})
    trainer.sync(module)

`export` writes a module's forward pass as an ONNX file that trains as the module does; `training_step` gives a whole
training step, with the backward pass that PyTorch traces. Needs `pip install arenic[torch]`.

`forward` has the first, of a Keras model by `from_keras`; `joint` the second, with `lowering` of operators that the
exporter lacks and `updates` of parameters. Both trace a module by `tracing` and tidy the exporter's file by `cleaning`.
"""

from .forward import export
from .joint import training_step
from .training import TorchTrainer, trainer

__all__ = ["TorchTrainer", "export", "trainer", "training_step"]
