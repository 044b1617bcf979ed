"""What tests of the package share: the repository's models and data."""

import pathlib

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Tests run in a folder of their own, so that what is written by mistake is seen."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def digits():
    """Batches of 32 images, with the learning rate."""
    data = np.load(ROOT / "models/digits/train.npz")
    x, target = data["x"], data["target"]
    return [
        {"x": x[i : i + 32], "target": target[i : i + 32], "lr": 0.02} for i in range(0, len(x) - 31, 32)
    ]
