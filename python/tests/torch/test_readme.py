"""The README's lines, pasted."""

from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[3]


def test_the_readme_trains():
    text = (ROOT / "README.md").read_text("utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    names = {"loader": [(torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))] * 3}
    exec(compile(code, "README.md", "exec"), names)
    assert 0 < names["out"]["loss"] < 10
    weight = names["trainer"].state["0.weight"]
    assert torch.equal(next(names["module"].parameters()), torch.from_numpy(weight))
