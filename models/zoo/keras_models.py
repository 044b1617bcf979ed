#!/usr/bin/env python3
"""Exports Keras models (backend torch) by `arenic.torch.export`, trains them with arenic, and compares with Keras's own training.

    models/zoo/keras_models.py [--arenic PATH] [--write FOLDER]

Three steps of SGD with momentum on the same batches as `train_on_batch`; the figure is the largest relative difference of a
loss. `--write tests/zoo` writes the files of the tests there, and their entries in zoo.json. Packages: requirements.txt and
keras. The table is Markdown, on standard output.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable

os.environ["KERAS_BACKEND"] = "torch"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from keras import layers  # noqa: E402

import arenic.torch  # noqa: E402

STEPS, ROWS, MOMENTUM, LR, CLASSES, TOLERANCE = 3, 4, 0.9, float(np.float32(0.05)), 5, 1e-4


def cnn() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(8, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(8, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.0),
            layers.Dense(CLASSES),
        ]
    )


def gru() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            layers.Embedding(11, 8),
            layers.Bidirectional(layers.GRU(8)),
            layers.Dense(CLASSES),
        ]
    )


def lstm() -> keras.Model:
    return keras.Sequential(
        [keras.Input((7,), dtype="int32"), layers.Embedding(11, 8), layers.LSTM(8), layers.Dense(CLASSES)]
    )


def transformer() -> keras.Model:
    x = keras.Input((7,), dtype="int32")
    h = layers.Embedding(11, 8)(x)
    h = layers.LayerNormalization()(h + layers.MultiHeadAttention(2, 4)(h, h))
    f = layers.Dense(8)(layers.Dense(16, activation="gelu")(h))
    h = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(h + f))
    return keras.Model(x, layers.Dense(CLASSES)(h))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "keras_cnn": cnn,
    "keras_gru": gru,
    "keras_lstm": lstm,
    "keras_transformer": transformer,
}


def batches(name: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    count = STEPS * ROWS
    images = name == "keras_cnn"
    x = random.normal(size=(count, 12, 12, 3)).astype(np.float32) if images else random.integers(0, 11, (count, 7), np.int32)
    return {"inputs": x, "target": random.integers(0, CLASSES, count)}


def by_keras(model: keras.Model, data: dict[str, np.ndarray]) -> list[float]:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(LR, momentum=MOMENTUM), loss=loss)
    losses = []
    for k in range(STEPS):
        rows = slice(k * ROWS, (k + 1) * ROWS)
        model.reset_metrics()
        losses.append(float(model.train_on_batch(data["inputs"][rows], data["target"][rows])))
    return losses


def by_arenic(arenic: str, model: pathlib.Path, data: pathlib.Path) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        step = f"{folder}/step.arenic"
        options = ["--loss", "cross_entropy", "--optimizer", "momentum", "--momentum", str(MOMENTUM), "--dim", f"batch={ROWS}"]
        subprocess.run([arenic, "compile", model, *options, "-o", step], check=True, capture_output=True)
        command = [arenic, "run", step, "--data", data, "--set", f"lr={LR!r}", "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line["loss"] for line in lines if "loss" in line]


def stripped(path: pathlib.Path) -> None:
    """Takes out what names paths."""
    import onnx

    model = onnx.load(path)
    for part in [*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output]:
        del part.metadata_props[:]
        part.doc_string = ""
    onnx.save(model, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train Keras models beside Keras.")
    parser.add_argument("--arenic", default="target/release/arenic")
    parser.add_argument("--write", type=pathlib.Path, help="keep files and losses there, as tests/zoo has them")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    rows, entries = [], {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = settings.write or pathlib.Path(temporary)
        for name, build in MODELS.items():
            keras.utils.set_random_seed(0)
            model, data = build(), batches(name)
            path = folder / f"{name}.arenic.onnx"
            with warnings.catch_warnings(action="ignore"):
                arenic.torch.export(model, torch.from_numpy(data["inputs"][:ROWS]), path)
            stripped(path)
            np.savez_compressed(folder / f"{name}.npz", **data)
            losses = by_keras(model, data)
            entries[name] = {
                "loss": "cross_entropy", "lr": LR, "momentum": MOMENTUM, "rows": ROWS, "data": f"{name}.npz",
                "files": {"arenic": path.name}, "losses": losses,
            }  # fmt: skip
            ours = by_arenic(settings.arenic, path, folder / f"{name}.npz")
            difference = max(abs(a - b) / abs(b) for a, b in zip(ours, losses, strict=True))
            rows.append(f"| {name} | {'equal' if difference <= TOLERANCE else 'WRONG'} ({difference:.0e}) |")
    if settings.write:
        listing = settings.write / "zoo.json"
        whole = json.loads(listing.read_text())
        whole["made_with"]["keras"] = keras.__version__
        whole["networks"] = dict(sorted((whole["networks"] | entries).items()))
        listing.write_text(json.dumps(whole, indent=1) + "\n")
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("keras", "torch", "onnx", "onnxscript"))
    print(f"{versions}\n\n| model | arenic.torch |\n|---|---|\n" + "\n".join(rows))


if __name__ == "__main__":
    main()
