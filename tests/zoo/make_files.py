#!/usr/bin/env python3
"""Writes the files of this folder: small networks as PyTorch exports them, and the losses of PyTorch's own training.

    tests/zoo/make_files.py [NAME ...]

Packages: ../../models/zoo/requirements.txt.
"""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import sys
import warnings
from typing import Any

import numpy as np
import onnx
import torch
import torchvision

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "models" / "zoo"))

import networks  # noqa: E402
import transformers as hf  # noqa: E402
import zoo  # noqa: E402

LLAMA = {**networks.LLAMA, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
# A layer with a sliding window and one without.
GEMMA = {**networks.GEMMA, "hidden_size": 16, "intermediate_size": 24, "head_dim": 4}
BERT = {**networks.BERT, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "max_position_embeddings": 8}


def bert() -> torch.nn.Module:
    return networks.Text(hf.BertForMaskedLM(hf.BertConfig(**BERT)))


def vit() -> torch.nn.Module:
    kept = {k: v for k, v in BERT.items() if k not in ("vocab_size", "pad_token_id", "max_position_embeddings")}
    return networks.Output(hf.ViTForImageClassification(hf.ViTConfig(image_size=8, patch_size=4, **kept)), "logits")


def gpt2() -> torch.nn.Module:
    config = hf.GPT2Config(
        vocab_size=networks.VOCABULARY, n_positions=8, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return networks.Text(hf.GPT2LMHeadModel(config))


def t5() -> torch.nn.Module:
    config = hf.T5Config(
        vocab_size=networks.VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0,
        use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip
    return networks.Translation(hf.T5ForConditionalGeneration(config))


BLOOM = {"vocab_size": networks.VOCABULARY, "hidden_size": 16, "n_layer": 1, "n_head": 2, "use_cache": False}
BLOOM |= {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def swin(**block: Any) -> torch.nn.Module:
    # Of the second block the windows are shifted.
    return torchvision.models.SwinTransformer(
        [4, 4], 16, [2], [2], [2, 2], mlp_ratio=1.5, num_classes=5, stochastic_depth_prob=0.0, **block
    )  # fmt: skip


def swin_v2() -> torch.nn.Module:
    return swin(block=torchvision.models.swin_transformer.SwinTransformerBlockV2)


class EinsumAttention(torch.nn.Module):
    """Products by `einsum`, whose operands keep their heads behind, and a bias for each head and pair."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(networks.VOCABULARY, 16)
        self.qkv = torch.nn.Linear(16, 48)
        self.bias = torch.nn.Parameter(torch.randn(2, 6, 6))
        self.head = torch.nn.Linear(16, networks.VOCABULARY)

    def forward(self, input_ids):
        q, k, v = self.qkv(self.embedding(input_ids)).unflatten(-1, (3, 2, 8)).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / 8**0.5 + self.bias
        y = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        return self.head(y.flatten(2)).transpose(1, 2)


SMALL = {
    "einsum_attention": networks.Network(EinsumAttention, networks.texts(6)),
    "bilstm_attention": networks.Network(lambda: networks.Attentive(layers=1), networks.texts(6)),
    "unet_nearest": networks.Network(lambda: networks.UNet("nearest"), networks.images(8)),
    "tv_swin": networks.Network(swin, networks.images(16)),
    "tv_swin_v2": networks.Network(swin_v2, networks.images(16)),
    "hf_t5": networks.Network(t5, networks.texts(6, decoder_input_ids=4)),
    "hf_bloom": networks.Network(networks.causal("Bloom", **BLOOM), networks.texts(6)),
    "hf_bert": networks.Network(bert, networks.texts(6)),
    "hf_gemma2": networks.Network(networks.causal("Gemma2", **GEMMA), networks.texts(6)),
    "hf_gpt2": networks.Network(gpt2, networks.texts(6)),
    "hf_llama": networks.Network(networks.causal("Llama", **LLAMA), networks.texts(6)),
    "hf_qwen3": networks.Network(networks.causal("Qwen3", **LLAMA, head_dim=4), networks.texts(6)),
    "hf_vit": networks.Network(vit, networks.images(8)),
}
NAMES = [
    "bilstm_attention", "contrastive_temperature", "dcgan_generator", "einsum_attention", "fourier_features",
    "hf_bert", "hf_bloom", "hf_gemma2", "hf_gpt2", "hf_llama", "hf_qwen3", "hf_t5", "hf_vit", "mixture_topk",
    "pointnet", "spectral_norm", "student_no_grad", "tied_gru", "tv_swin", "tv_swin_v2", "unet_nearest",
    "vqvae_detach", "wavenet_weight_norm",
]  # fmt: skip
# Nothing in the file of PyTorch's exporter says that a part of it was under `no_grad`, or that buffers move.
UNTOLD = {"student_no_grad": ["default", "plain"], "spectral_norm": ["plain", "arenic"]}
KINDS = {"default": "default", "plain": "optimize=False", "arenic": "arenic.torch"}
# Notes that a reader needs: of which operator of the module a node is, which says what became of parameters and which of
# them are one tensor. The rest names paths.
OPERATOR = "pkg.torch.onnx.fx_node"
KEPT = {
    "default": (OPERATOR, "pkg.torch.onnx.name_scopes", "pkg.onnxscript.rewriter.rule_name"),
    "plain": (OPERATOR,),
    "arenic": (),
}


def stripped(path: pathlib.Path, kind: str) -> None:
    model = onnx.load(path)
    for part in [*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output]:
        kept = [p for p in part.metadata_props if p.key in KEPT[kind]]
        del part.metadata_props[:]
        part.metadata_props.extend(kept)
        part.doc_string = ""
    del model.graph.value_info[:]
    onnx.save(model, path)


def main(names: list[str]) -> None:
    listing = HERE / "zoo.json"
    written = json.loads(listing.read_text()) if listing.exists() else {"made_with": {}, "networks": {}}
    entries = written["networks"]
    for name in names or NAMES:
        network = SMALL.get(name) or networks.NETWORKS[name]
        one = zoo.case(network)
        files = {}
        for kind, export in KINDS.items():
            path = HERE / f"{name}.{kind}.onnx"
            if kind in UNTOLD.get(name, ()):
                continue
            try:
                with warnings.catch_warnings(action="ignore"):
                    zoo.EXPORTS[export](one, path)
            except Exception as error:  # It is PyTorch's exporter that has no ONNX for the network.
                print(f"{path.name}: {type(error).__name__}")
                continue
            stripped(path, kind)
            files[kind] = path.name
        np.savez_compressed(HERE / f"{name}.npz", **one.data)
        entries[name] = {
            "loss": network.loss, "lr": one.lr, "momentum": zoo.MOMENTUM, "rows": network.rows, "data": f"{name}.npz",
            "files": files, "losses": one.losses,
        }  # fmt: skip
        print(name, sum(path.stat().st_size for path in HERE.glob(f"{name}.*")), "bytes")
    packages = ["torch", "transformers", "onnx", "onnxscript"]
    made = written["made_with"] | {package: importlib.metadata.version(package) for package in packages}
    listing.write_text(json.dumps({"made_with": made, "networks": dict(sorted(entries.items()))}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
