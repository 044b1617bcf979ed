"""Writes the demo beside this script: a small CNN on scikit-learn's handwritten digits.

    pip install -r requirements.txt
    python make_digits.py            # writes the four files
    python make_digits.py --check    # writes nothing; compares the gradients in
                                     # digits_step.onnx with finite differences

digits_step.onnx     one whole training step: forward, loss, backward, SGD with momentum
digits_forward.onnx  the forward half alone, with the loss and the accuracy
train.npz, test.npz  the data: x is float32 [n,1,8,8] in 0..1, target is int64 [n]

Both models leave the batch size open, as the dimension `batch`.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent
SEED = 2
OPSET = 18
IR_VERSION = 9
CLASSES = 10
MOMENTUM = 0.9
TRAIN_ROWS = 1440  # 45 batches of 32; the other 357 images are for the test


def parameters():
    """He initialisation: normal with variance 2 / fan-in; biases are zero."""
    rng = np.random.default_rng(SEED)

    def he(*shape):
        fan_in = np.prod(shape[1:])
        return (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)

    def zeros(n):
        return np.zeros(n, np.float32)

    return {
        "conv1.weight": he(16, 1, 3, 3),
        "conv1.bias": zeros(16),
        "conv2.weight": he(32, 16, 3, 3),
        "conv2.bias": zeros(32),
        "fc.weight": he(CLASSES, 32 * 4 * 4),
        "fc.bias": zeros(CLASSES),
    }


class Builder:
    """Collects the nodes of a graph; every value gets the name it is asked for."""

    def __init__(self):
        self.nodes = []
        self.initializers = []

    def __call__(self, op, name, inputs, outputs=None, **attributes):
        outputs = outputs or [name]
        self.nodes.append(helper.make_node(op, inputs, outputs, name=f"{op}.{name}", **attributes))
        return outputs[0]

    def const(self, name, array):
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def forward(self):
        """Adds everything up to the loss and the accuracy."""
        add = self
        conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        add("Conv", "z1", ["x", "conv1.weight", "conv1.bias"], **conv)
        add("Relu", "a1", ["z1"])
        add("Conv", "z2", ["a1", "conv2.weight", "conv2.bias"], **conv)
        add("Relu", "a2", ["z2"])
        window = {"kernel_shape": [2, 2], "strides": [2, 2]}
        add("MaxPool", "pool", ["a2"], ["pooled", "pooled_at"], **window)
        add("Flatten", "features", ["pooled"], axis=1)
        add("Gemm", "logits", ["features", "fc.weight", "fc.bias"], transB=1)

        add.const("last", np.array([1], np.int64))
        add("Unsqueeze", "target_column", ["target", "last"])
        add("LogSoftmax", "log_p", ["logits"], axis=1)
        add("GatherElements", "log_p_target", ["log_p", "target_column"], axis=1)
        add("ReduceMean", "mean_log_p", ["log_p_target"], keepdims=0)
        add("Neg", "loss", ["mean_log_p"])

        # An image is recognised where the target's logit is the largest.
        add("ReduceMax", "best", ["logits", "last"], keepdims=1)
        add("GatherElements", "logit_target", ["logits", "target_column"], axis=1)
        add("Equal", "hit", ["best", "logit_target"])
        add("Cast", "hit_as_float", ["hit"], to=TensorProto.FLOAT)
        add("ReduceMean", "accuracy", ["hit_as_float"], keepdims=0)

    def backward(self):
        """Adds the gradients; returns them by parameter name."""
        add = self
        # d loss / d logits = (softmax − one-hot) / batch
        add("Exp", "p", ["log_p"])
        add.const("classes", np.arange(CLASSES, dtype=np.int64)[None, :])
        add("Equal", "is_target", ["target_column", "classes"])
        add("Cast", "one_hot", ["is_target"], to=TensorProto.FLOAT)
        add("Sub", "p_minus_one_hot", ["p", "one_hot"])
        add("Shape", "batch_shape", ["target"])
        add("Cast", "batch_float", ["batch_shape"], to=TensorProto.FLOAT)
        add("Div", "d.logits", ["p_minus_one_hot", "batch_float"])

        # The linear layer.
        add.const("axis0", np.array([0], np.int64))
        add("Gemm", "d.fc.weight", ["d.logits", "features"], transA=1)
        add("ReduceSum", "d.fc.bias", ["d.logits", "axis0"], keepdims=0)
        add("MatMul", "d.features", ["d.logits", "fc.weight"])

        # Max-pool: each gradient goes to the position that MaxPool's indices name.
        add.const("flat", np.array([-1], np.int64))
        add("Reshape", "d.pooled", ["d.features", "flat"])
        add("Reshape", "pooled_at_flat", ["pooled_at", "flat"])
        add("Shape", "a2_shape", ["a2"])
        add("ReduceProd", "a2_size", ["a2_shape"], keepdims=1)
        zero = numpy_helper.from_array(np.zeros(1, np.float32))
        add("ConstantOfShape", "a2_zeros", ["a2_size"], value=zero)
        scattered = ["a2_zeros", "pooled_at_flat", "d.pooled"]
        add("ScatterElements", "d.a2_flat", scattered, axis=0, reduction="add")
        add("Reshape", "d.a2", ["d.a2_flat", "a2_shape"])

        self.relu_backward("2")
        # A convolution's input gradient is the transposed convolution with its weights.
        add("ConvTranspose", "d.a1", ["d.z2", "conv2.weight"], kernel_shape=[3, 3], pads=[1] * 4)
        self.conv_parameters_backward("conv2", "a1", "d.z2")
        self.relu_backward("1")
        self.conv_parameters_backward("conv1", "x", "d.z1")
        return {name: f"d.{name}" for name in parameters()}

    def relu_backward(self, k):
        if "zero" not in [i.name for i in self.initializers]:
            self.const("zero", np.zeros((), np.float32))
        self("Greater", f"positive{k}", [f"z{k}", "zero"])
        self("Where", f"d.z{k}", [f"positive{k}", f"d.a{k}", "zero"])

    def conv_parameters_backward(self, layer, x, dz):
        """The weight gradient is a convolution with batch and channels exchanged: x as
        [in, batch, h, w] with dz as [out, batch, h, w] gives [in, out, 3, 3]."""
        if "space" not in [i.name for i in self.initializers]:
            self.const("space", np.array([0, 2, 3], np.int64))
        swap = [1, 0, 2, 3]
        self("Transpose", f"{layer}.x_swapped", [x], perm=swap)
        self("Transpose", f"{layer}.dz_swapped", [dz], perm=swap)
        swapped = [f"{layer}.x_swapped", f"{layer}.dz_swapped"]
        self("Conv", f"{layer}.dw_swapped", swapped, pads=[1, 1, 1, 1])
        self("Transpose", f"d.{layer}.weight", [f"{layer}.dw_swapped"], perm=swap)
        self("ReduceSum", f"d.{layer}.bias", [dz, "space"], keepdims=0)

    def update(self, gradients):
        """SGD with momentum: m ← 0.9·m + d, then w ← w − lr·m."""
        self.const("momentum", np.array(MOMENTUM, np.float32))
        for name, d in gradients.items():
            self("Mul", f"kept.{name}", [f"m.{name}", "momentum"])
            self("Add", f"out_m.{name}", [f"kept.{name}", d])
            self("Mul", f"move.{name}", [f"out_m.{name}", "lr"])
            self("Sub", f"out_{name}", [name, f"move.{name}"])


def value(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(builder, name, inputs, outputs, initializers, doc):
    graph = helper.make_graph(
        builder.nodes, name, inputs, outputs, builder.initializers + initializers, doc
    )
    opset = [helper.make_opsetid("", OPSET)]
    m = helper.make_model(
        graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="make_digits.py"
    )
    onnx.checker.check_model(m, full_check=True)
    return m


DATA = [value("x", ["batch", 1, 8, 8]), value("target", ["batch"], TensorProto.INT64)]
FIGURES = [value("loss", []), value("accuracy", [])]


def step_model():
    """The training step. Results `out_X` are the next values of `X`."""
    states = parameters()
    states |= {f"m.{name}": np.zeros_like(array) for name, array in states.items()}
    b = Builder()
    b.forward()
    b.update(b.backward())
    return model(
        b,
        "digits_step",
        [value(n, a.shape) for n, a in states.items()] + [value("lr", [])] + DATA,
        FIGURES + [value(f"out_{n}", a.shape) for n, a in states.items()],
        [numpy_helper.from_array(a, n) for n, a in states.items()],
        "One training step of a CNN on 8x8 digits: forward, backward, SGD with momentum.",
    )


def forward_model():
    """The forward half, to evaluate trained parameters."""
    b = Builder()
    b.forward()
    initializers = [numpy_helper.from_array(a, n) for n, a in parameters().items()]
    doc = "Loss and accuracy of a CNN on 8x8 digits."
    return model(b, "digits_forward", DATA, FIGURES, initializers, doc)


def data():
    """Training and test data, shuffled once: {"x", "target"} each."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = (digits.images / 16).astype(np.float32)[:, None]
    target = digits.target.astype(np.int64)
    rows = np.random.default_rng(SEED).permutation(len(x))
    train, test = rows[:TRAIN_ROWS], rows[TRAIN_ROWS:]
    return [{"x": x[r], "target": target[r]} for r in (train, test)]


def write():
    for name, m in [("digits_step", step_model()), ("digits_forward", forward_model())]:
        onnx.save(m, HERE / f"{name}.onnx")
    for name, arrays in zip(("train", "test"), data()):
        np.savez(HERE / f"{name}.npz", **arrays)
        print(f"{name}.npz: {len(arrays['target'])} images")


def loss_in_numpy(p, x, target):
    """The loss in float64, written apart from the graph."""

    def conv(x, w, b):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        return np.einsum("nihwkl,oikl->nohw", windows, w) + b[:, None, None]

    a = np.maximum(conv(x, p["conv1.weight"], p["conv1.bias"]), 0)
    a = np.maximum(conv(a, p["conv2.weight"], p["conv2.bias"]), 0)
    n, c, h, w = a.shape
    pooled = a.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))
    logits = pooled.reshape(n, -1) @ p["fc.weight"].T + p["fc.bias"]
    logits = logits - logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -log_p[np.arange(n), target].mean()


def check():
    """Runs the step in ONNX's own reference evaluator and compares."""
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(1)
    step = onnx.load(HERE / "digits_step.onnx")
    x, target = (np.load(HERE / "train.npz")[n][:4] for n in ("x", "target"))
    # Noise everywhere: a bias that is not zero, and no ties in the max-pool, where the loss
    # has no derivative.
    x = x + rng.uniform(0, 0.1, x.shape).astype(np.float32)
    initial = {i.name: numpy_helper.to_array(i) for i in step.graph.initializer}
    p = {n: initial[n] + 0.1 * rng.standard_normal(a.shape) for n, a in parameters().items()}
    p = {n: a.astype(np.float32) for n, a in p.items()}
    m = {f"m.{n}": rng.standard_normal(a.shape).astype(np.float32) for n, a in p.items()}
    lr = np.float32(0.05)
    names = [o.name for o in step.graph.output]
    feeds = {**p, **m, "lr": lr, "x": x, "target": target}
    out = dict(zip(names, ReferenceEvaluator(step).run(None, feeds)))

    exact = {n: a.astype(np.float64) for n, a in p.items()}
    x = x.astype(np.float64)
    loss = loss_in_numpy(exact, x, target)
    errors = [out["loss"] - loss]
    for name, array in exact.items():
        gradient = out[f"out_m.{name}"] - np.float32(MOMENTUM) * m[f"m.{name}"]
        for k in rng.choice(array.size, min(array.size, 40), replace=False):
            at = np.unravel_index(k, array.shape)
            losses = []
            for sign in (1, -1):
                moved = array.copy()
                moved[at] += sign * 1e-6
                losses.append(loss_in_numpy({**exact, name: moved}, x, target))
            errors.append(gradient[at] - (losses[0] - losses[1]) / 2e-6)
        moved = p[name] - lr * out[f"out_m.{name}"]
        errors.extend((out[f"out_{name}"] - moved).ravel())
    worst = np.abs(errors).max()
    print(f"loss, gradients and updates agree within {worst:.1e}")
    if not worst < 2e-6:
        raise SystemExit("digits_step.onnx is wrong")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="check instead of writing")
    check() if arguments.parse_args().check else write()
