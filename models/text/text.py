#!/usr/bin/env python3
"""Makes what the demo of a language model needs of a novel.

    models/text/text.py data FOLDER     train.npz and test.npz: windows of characters, and the next ones
    models/text/text.py entropy         the entropy of a character whose predecessor is known, in nats
    models/text/text.py model           gpt.onnx beside this file, by PyTorch (../papers/requirements.txt)

The novel is Jane Austen's "Pride and Prejudice" (1813), which is in the public domain. Its last tenth is the test.
"""

import math
import pathlib
import sys
from collections import Counter

HERE = pathlib.Path(__file__).parent
TIMES = 64


def text():
    """The novel as numbers of characters, and how many characters there are."""
    novel = (HERE / "pride_and_prejudice.txt").read_text()
    known = sorted(set(novel))
    numbers = {character: i for i, character in enumerate(known)}
    return [numbers[character] for character in novel], len(known)


def data(folder):
    import numpy as np

    characters = np.array(text()[0], dtype=np.int64)
    cut = len(characters) * 9 // 10
    for name, part in [("train", characters[:cut]), ("test", characters[cut:])]:
        windows = (len(part) - 1) // TIMES
        ids = part[: windows * TIMES].reshape(windows, TIMES)
        target = part[1 : windows * TIMES + 1]
        np.savez(folder / f"{name}.npz", ids=ids, target=target)
        print(f"{name}.npz: {windows} windows of {TIMES} characters")


def entropy():
    characters, _ = text()
    before, pairs = Counter(characters[:-1]), Counter(zip(characters, characters[1:]))
    total = len(characters) - 1
    print(f"{-sum(n / total * math.log(n / before[a]) for (a, _), n in pairs.items()):.3f}")


def model():
    sys.path.insert(0, str(HERE.parent / "forward"))
    import make_forward
    import torch

    torch.manual_seed(0)
    network = make_forward.GptTiny(text()[1], TIMES, 64, 4, 3).train()
    for parameter in network.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    make_forward.export(network, torch.zeros(2, TIMES, dtype=torch.int64), "ids", HERE / "gpt.onnx", 17)


match sys.argv[1:]:
    case ["data", folder]:
        data(pathlib.Path(folder))
    case ["entropy"]:
        entropy()
    case ["model"]:
        model()
    case _:
        sys.exit(__doc__)
