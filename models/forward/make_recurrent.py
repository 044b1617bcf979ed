#!/usr/bin/env python3
"""Writes forward models with recurrent layers, and five steps of training them in PyTorch.

    models/forward/make_recurrent.py

char_lstm.onnx  two bidirectional layers of LSTM over embeddings, logits of every step
char_gru.onnx   one layer of GRU, logits of the last step
char_rnn.onnx   one layer of a tanh RNN with the batch first, logits of every step

They are exported in training mode with weights inside, as users have them. ../../tests/runs/recurrent has for each the
data, the losses and the final parameters of five steps of SGD with momentum 0.9, in float32 on a CPU. Needs the
packages of ../papers/requirements.txt.
"""

import io
import json
import pathlib

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn

HERE = pathlib.Path(__file__).parent
RUNS = HERE.parent.parent / "tests" / "runs" / "recurrent"
BATCH, TIMES, VOCABULARY, WIDTH, HIDDEN, STEPS, LR = 4, 9, 24, 10, 12, 5, 0.1


class CharLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.LSTM(WIDTH, HIDDEN, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * HIDDEN, VOCABULARY)

    def forward(self, ids):
        y, _ = self.rnn(self.wte(ids))
        return self.head(y).reshape(-1, VOCABULARY)


class CharGru(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.GRU(WIDTH, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, ids):
        _, h = self.rnn(self.wte(ids))
        return self.head(h[0])


class CharRnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.RNN(WIDTH, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, ids):
        y, _ = self.rnn(self.wte(ids))
        return self.head(y).reshape(-1, VOCABULARY)


NETWORKS = {"char_lstm": CharLstm, "char_gru": CharGru, "char_rnn": CharRnn}


def main():
    RUNS.mkdir(parents=True, exist_ok=True)
    for seed, (name, network) in enumerate(NETWORKS.items()):
        torch.manual_seed(seed)
        network = network().train()
        ids = torch.randint(VOCABULARY, (STEPS * BATCH, TIMES))
        rows = network(ids[:1]).shape[0]
        target = torch.randint(VOCABULARY, (STEPS * BATCH * rows,))
        export(network, ids[:BATCH], HERE / f"{name}.onnx")
        losses = train(network, ids.split(BATCH), target.split(BATCH * rows))
        np.savez(RUNS / f"{name}.data.npz", ids=ids.numpy(), target=target.numpy())
        final = {f"p.{key}": p.detach().numpy() for key, p in network.named_parameters()}
        np.savez(RUNS / f"{name}.final.npz", **final)
        run = {"loss": losses, "set": {"lr": LR}}
        (RUNS / f"{name}.json").write_text(json.dumps(run) + "\n")


def train(network, batches, targets):
    """Trains for one step with each batch; the losses."""
    optimizer = torch.optim.SGD(network.parameters(), lr=LR, momentum=0.9)
    losses = []
    for ids, target in zip(batches, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(ids), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def export(network, example, path):
    """Writes a forward model in training mode with a batch of any size."""
    file = io.BytesIO()
    torch.onnx.export(
        network,
        (example,),
        file,
        input_names=["ids"],
        output_names=["logits"],
        dynamic_axes={"ids": {0: "batch"}},
        opset_version=17,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        dynamo=False,
    )
    model = onnx.load_from_string(file.getvalue())
    for node in model.graph.node:
        node.ClearField("doc_string")
    onnx.save(model, path)
    print(f"{path.name}: {len(model.graph.node)} nodes")


if __name__ == "__main__":
    main()
