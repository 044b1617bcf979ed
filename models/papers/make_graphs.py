#!/usr/bin/env python3
"""Writes training steps of the papers' experiments as ONNX files without weights, for `--plan-only`.

    models/papers/make_graphs.py FOLDER [NAME …]
    models/papers/make_graphs.py --for-gpu FOLDER [NAME …]

Without names all are made. With --for-gpu those of `benches/gpu/benchmarks.py` are, whose constants have
their data, so that they can be run. Needs the packages of requirements.txt.
"""

import argparse
import pathlib
import time

import onnx
import torch

import networks
import step


def images(batch, size, pixels=False):
    """Images and a class for each of them, or for each pixel."""
    targets = batch * size * size if pixels else batch
    return lambda: (torch.empty(batch, 3, size, size), "x", torch.zeros(targets, dtype=torch.int64))


def texts(batch, times):
    """Texts and the next token after each of theirs."""
    return lambda: (torch.zeros(batch, times, dtype=torch.int64), "ids", torch.zeros(batch * times, dtype=torch.int64))


NETWORKS = {
    "vgg11_cifar_b100": (lambda: networks.vgg_cifar(11), images(100, 32)),
    "vgg13_cifar_b100": (lambda: networks.vgg_cifar(13), images(100, 32)),
    "vgg16_cifar_b100": (lambda: networks.vgg_cifar(16), images(100, 32)),
    "vgg19_cifar_b100": (lambda: networks.vgg_cifar(19), images(100, 32)),
    "resnet20_cifar_b100": (lambda: networks.resnet_cifar([3, 3, 3], 16, False), images(100, 32)),
    "resnet50_cifar_b100": (lambda: networks.resnet_cifar([3, 4, 6, 3], 64, True), images(100, 32)),
    "vgg16_b256": (networks.vgg16_imagenet, images(256, 224)),
    "vgg16_b512": (networks.vgg16_imagenet, images(512, 224)),
    "resnet50_b32": (networks.resnet50_imagenet, images(32, 224)),
    "unet_b8": (networks.UNet, images(8, 256, pixels=True)),
    "lstm_b50": (networks.CharLstm, texts(50, 50)),
    "gpt2_small_b4": (networks.Gpt, texts(4, 1024)),
    "vit_b_16_b32": (networks.Vit, images(32, 224)),
}

# Constants of these have data up to so many bytes: GPT's mask is 4 MiB.
FOR_GPU_KEPT_BYTES = 8 << 20

FOR_GPU = {
    "resnet50_b64": (networks.resnet50_imagenet, images(64, 224)),
    "resnet50_b256": (networks.resnet50_imagenet, images(256, 224)),
    "vit_b_16_b64": (networks.Vit, images(64, 224)),
    "gpt2_124m_b8": (networks.Gpt, texts(8, 1024)),
    "unet_b8": (networks.UNet, images(8, 256, pixels=True)),
    "tiny": (networks.tiny, images(4, 16)),
}


def k_means(path, points=100_000, axes=128, clusters=1000):
    """One step of Lloyd's algorithm: every point goes to its nearest centroid, every centroid to the
    mean of its points (and stays where it has none)."""
    text = """
    <ir_version: 10, opset_import: ["" : 18]>
    k_means (float[POINTS, AXES] x, float[CLUSTERS, AXES] centroids)
         => (float loss, float[CLUSTERS, AXES] out_centroids)
    <float zero = {0.0}, float one = {1.0}, float two = {2.0}, int64[1] axis0 = {0}, int64[1] axis1 = {1}>
    {
        turned = Transpose <perm = [1, 0]> (centroids)
        products = MatMul (x, turned)
        doubled = Mul (products, two)
        squares = Mul (centroids, centroids)
        norms = ReduceSum <keepdims = 0> (squares, axis1)
        distances = Sub (norms, doubled)
        nearest = ReduceMin <keepdims = 1> (distances, axis1)
        chosen = Equal (distances, nearest)
        members = Cast <to = 1> (chosen)
        counts = ReduceSum <keepdims = 0> (members, axis0)
        by_cluster = Transpose <perm = [1, 0]> (members)
        sums = MatMul (by_cluster, x)
        some = Max (counts, one)
        column = Unsqueeze (some, axis1)
        means = Div (sums, column)
        is_empty = Equal (counts, zero)
        empty = Unsqueeze (is_empty, axis1)
        out_centroids = Where (empty, centroids, means)
        loss = ReduceMean <keepdims = 0> (nearest)
    }
    """
    for name, extent in [("POINTS", points), ("AXES", axes), ("CLUSTERS", clusters)]:
        text = text.replace(name, str(extent))
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--for-gpu", action="store_true", help=", ".join(FOR_GPU))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*NETWORKS, "kmeans"]))
    args = parser.parse_args()
    names = list(FOR_GPU) if args.for_gpu else [*NETWORKS, "kmeans"]
    unknown = set(args.names) - set(names)
    if unknown:
        parser.error(f"no graph is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names or names:
        start = time.monotonic()
        path = args.folder / f"{name}.onnx"
        if name == "kmeans":
            k_means(path)
        elif args.for_gpu:
            step.export(*FOR_GPU[name], path, FOR_GPU_KEPT_BYTES)
        else:
            step.export(*NETWORKS[name], path)
        print(f"{path}: {path.stat().st_size} bytes, {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
