"""Forward files of modules say what is trained, and train as PyTorch does."""

import json
import warnings

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import arenic
import arenic.torch

BATCH, STEPS = 4, 3


def said(model):
    (text,) = [p.value for p in model.metadata_props if p.key == "arenic.parameters"]
    return json.loads(text)


def parameters(model):
    return {row.pop("name"): row for row in said(model)["parameters"]}


def exported(module, inputs, tmp_path, **options):
    arenic.torch.export(module, inputs, tmp_path / "model.onnx", **options)
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model)
    return model


def producer(model, name):
    (node,) = [node for node in model.graph.node if name in node.output]
    return node


class Everything(nn.Module):
    """A scalar, a tie, a buffer, a parameter without gradient, one that is not used, and parts without gradients."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.first, self.second = nn.LayerNorm(6), nn.LayerNorm(6)
        self.inner = nn.Linear(6, 6)
        self.temperature = nn.Parameter(torch.tensor(0.3))
        self.fixed = nn.Parameter(torch.rand(6), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("frequencies", torch.rand(6))

    def forward(self, ids):
        x = self.first(self.embedding(ids)) * self.frequencies + self.fixed
        with torch.no_grad():
            teacher = self.inner(x).tanh()
        y = self.second(self.inner(x)) * self.temperature.exp()
        y = y + teacher + (y * y).detach()
        return {"logits": self.head(y), "hidden": y}


def test_the_file_says_what_is_trained(tmp_path):
    module = Everything().eval()
    model = exported(module, torch.randint(0, 7, (BATCH, 5)), tmp_path)
    rows = parameters(model)
    assert list(rows) == [name for name, _ in module.named_parameters()]
    assert rows["embedding.weight"] == {"ties": ["head.weight"]}
    assert rows["fixed"] == {"requires_grad": False}
    assert rows["unused"] == {"used": False}
    assert rows["temperature"] == rows["first.weight"] == {}
    values = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    for name, parameter in module.named_parameters():
        if name != "unused":
            np.testing.assert_array_equal(values[name], parameter.detach().numpy())
    assert {"frequencies", "first.weight", "second.weight"} <= set(values) and "head.weight" not in values
    assert not module.training and not module.first.training
    assert module.embedding.weight.grad is None


def test_inputs_outputs_and_sizes_have_names(tmp_path):
    model = exported(Everything(), torch.randint(0, 7, (BATCH, 5)), tmp_path)
    (ids,) = model.graph.input
    assert ids.name == "ids" and [d.dim_param or d.dim_value for d in ids.type.tensor_type.shape.dim] == ["batch", 5]
    assert [o.name for o in model.graph.output] == ["logits", "hidden"]
    reference = onnx.reference.ReferenceEvaluator(model)
    assert reference.run(None, {"ids": np.zeros((2, 5), np.int64)})[0].shape == (2, 5, 7)

    model = exported(
        nn.Linear(3, 2),
        torch.zeros(4, 5, 3),
        tmp_path,
        input_names=["x"],
        output_names=["y"],
        dynamic={"x": {1: "times"}},
    )
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [4, "times", 3]
    assert [d.dim_param or d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [4, "times", 2]
    model = exported(nn.Linear(3, 2), torch.zeros(4, 3), tmp_path, dynamic={})
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [4, 3]


def test_a_size_that_is_fixed_is_told(tmp_path):
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Parameter(torch.rand(4, 3))

        def forward(self, x):
            return x * self.rows

    with pytest.warns(UserWarning, match="no other `batch` than 4"):
        exported(Fixed(), torch.zeros(4, 3), tmp_path)
    with pytest.raises(Exception, match="(?i)constraint|specializ"):
        exported(Fixed(), torch.zeros(4, 3), tmp_path, dynamic={"x": {0: "batch"}})


def test_no_gradient_passes_detach_and_no_grad(tmp_path):
    model = exported(Everything(), torch.randint(0, 7, (BATCH, 5)), tmp_path)
    stopped = said(model)["stop_gradients"]
    sources = set()
    for name in stopped:
        node = producer(model, name)
        while node.op_type == "Identity":
            node = producer(model, node.input[0])
        sources.add(node.op_type)
    assert sources == {"Tanh", "Mul"}
    (readers,) = [n for n in model.graph.node if "tanh" in n.input]
    assert readers.op_type == "Identity" and readers.output[0] in stopped


def test_parameters_may_be_called_as_operators_are(tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.exp, self.mul = nn.Parameter(torch.rand(3)), nn.Parameter(torch.rand(3))

        def forward(self, add):
            return (add * self.mul).exp() * self.exp + add

    model = exported(Named(), torch.rand(4, 3), tmp_path)
    (product,) = onnx.reference.ReferenceEvaluator(model).run(None, {"add": np.zeros((4, 3), np.float32)})
    values = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    np.testing.assert_allclose(product, np.broadcast_to(values["exp"], (4, 3)), rtol=1e-6)


def test_nothing_names_a_path(tmp_path):
    exported(Everything(), torch.randint(0, 7, (BATCH, 5)), tmp_path)
    written = (tmp_path / "model.onnx").read_bytes()
    for trace in (b".py", b"stack_trace", str(tmp_path).encode()):
        assert trace not in written


def test_normalisation_trains_unless_it_is_frozen(tmp_path):
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    assert [n.op_type for n in exported(module.eval(), torch.rand(2, 2, 5, 5), tmp_path).graph.node].count(
        "BatchNormalization"
    ) == 2
    module.train()
    module[1].eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    model = exported(module, torch.rand(2, 2, 5, 5), tmp_path)
    assert [n.op_type for n in model.graph.node].count("BatchNormalization") == 1
    assert module[3].training and not module[1].training
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), f"exporting changed {key}"


def test_convolutions_without_bias_have_none(tmp_path):
    model = exported(nn.Conv3d(2, 3, 3, bias=False), torch.rand(2, 2, 4, 4, 4), tmp_path)
    (conv,) = [n for n in model.graph.node if n.op_type == "Conv"]
    assert len([i for i in conv.input if i]) == 2


class Step(torch.autograd.Function):
    """A step whose gradient passes straight through."""

    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


class Cube(torch.autograd.Function):
    """The gradient that is written by hand is the cube's."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


class ByHand(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(3, 3), function

    def forward(self, x):
        return self.function.apply(self.linear(x))


def test_what_a_file_cannot_say_is_refused(tmp_path):
    with pytest.raises(ValueError, match="gradients of `Step` are written by hand"):
        exported(ByHand(Step), torch.rand(4, 3), tmp_path)
    assert "Mul" in [n.op_type for n in exported(ByHand(Cube), torch.rand(4, 3), tmp_path).graph.node]
    with pytest.raises(ValueError, match="`1` averages its statistics"):
        exported(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=None)), torch.rand(4, 3), tmp_path)
    with pytest.raises(ValueError, match="2 input_names for 1 inputs"):
        exported(nn.Linear(3, 3), torch.rand(4, 3), tmp_path, input_names=["x", "y"])
    with pytest.raises(ValueError, match="2 output_names for 1 outputs"):
        exported(nn.Linear(3, 3), torch.rand(4, 3), tmp_path, output_names=["x", "y"])
    with pytest.raises(ValueError, match="no input is called z; input are"):
        exported(nn.Linear(3, 3), torch.rand(4, 3), tmp_path, dynamic={"z": {0: "batch"}})
    moving = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    with pytest.warns(UserWarning, match="the module changes parametrizations.weight.0._u"):
        exported(moving, torch.rand(4, 3), tmp_path)


def ids(generator):
    return torch.randint(0, 7, (STEPS * BATCH, 5), generator=generator)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding, self.recurrent, self.head = nn.Embedding(7, 6), kind(6, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, ids):
        return self.head(self.recurrent(self.embedding(ids))[0][:, -1])


class Distances(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.centres = nn.Embedding(7, 6), nn.Parameter(torch.randn(5, 6))

    def forward(self, ids):
        return -torch.cdist(self.embedding(ids).mean(1), self.centres)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 8), nn.Linear(8, 5)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True)

    def forward(self, ids):
        x = self.embedding(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.transformer(x, x, tgt_mask=mask).mean(1))


class Head(nn.Module):
    """The logits of `Everything`, whose first position is classified."""

    def __init__(self):
        super().__init__()
        self.whole = Everything()

    def forward(self, ids):
        return self.whole(ids)["logits"][:, 0]


MODULES = {
    "everything": Head,
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM),
    "distances": Distances,
    "translator": Translator,
}


@pytest.mark.parametrize("name", MODULES)
def test_three_steps_equal_pytorch(name, tmp_path):
    torch.manual_seed(0)
    module, generator = MODULES[name](), torch.Generator().manual_seed(1)
    x, target = ids(generator), torch.randint(0, 5, (STEPS * BATCH,), generator=generator)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        exported(module, x[:BATCH], tmp_path)
    options = {"dim": {"batch": BATCH}, "loss": "cross_entropy", "optimizer": "momentum"}
    ours = arenic.Trainer(arenic.compile(tmp_path / "model.onnx", **options))
    losses, theirs = [], []
    for k in range(STEPS):
        rows = slice(k * BATCH, (k + 1) * BATCH)
        losses.append(ours.step({"ids": x[rows], "target": target[rows], "lr": 0.1})["loss"])
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x[rows]), target[rows])
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    np.testing.assert_allclose(losses, theirs, rtol=0, atol=1e-5)
    states = ours.state_dict()
    for key, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.grad is not None:
            np.testing.assert_allclose(states[key], parameter.detach().numpy(), rtol=0, atol=1e-5, err_msg=key)
        else:
            assert f"{key}.momentum" not in states


def test_a_parameter_that_is_read_from_elsewhere_is_refused(tmp_path):
    hidden = [nn.Parameter(torch.rand(6))]

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.extra = nn.Linear(6, 6), hidden[0]

        def forward(self, x):
            return self.linear(x) * hidden[0]

    with pytest.raises(ValueError, match="extra would be a constant"):
        arenic.torch.export(Around(), torch.rand(BATCH, 6), tmp_path / "model.onnx")


def test_arguments_may_be_any_number(tmp_path):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, *parts):
            return self.linear(parts[0]) + parts[1]

    model = exported(Sum(), (torch.rand(BATCH, 6), torch.rand(BATCH, 6)), tmp_path)
    assert [value.name for value in model.graph.input] == ["parts_0", "parts_1"]
    assert {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim[:1]} == {"batch"}


def test_a_language_model_is_exported(root, tmp_path, monkeypatch):
    """The example's: torch 2.15 guards sizes of it by values that its own decomposition then does not have."""
    monkeypatch.syspath_prepend(root / "python/examples")
    import gpt

    ids = torch.zeros(BATCH, gpt.CONTEXT, dtype=torch.int64)
    model = exported(gpt.Gpt(20), ids, tmp_path)
    trained = {name for name, row in parameters(model).items() if row.get("used", True)}
    assert trained == {name for name, _ in gpt.Gpt(20).named_parameters()}


@pytest.fixture
def keras(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras")


def test_a_keras_model_has_its_own_names(keras, tmp_path):
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, use_bias=False, name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(2, name="head"),
        ],
        name="net",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        file = exported(model, torch.rand(BATCH, 8, 8, 3), tmp_path)
    names = ["conv/kernel", "norm/gamma", "norm/beta", "head/kernel", "head/bias"]
    assert parameters(file) == {f"net/{name}": {} for name in names}
    assert said(file)["bn_variance"] == "population"
    kinds = [node.op_type for node in file.graph.node]
    assert kinds.count("BatchNormalization") == kinds.count("Dropout") == 1
    values = {i.name: onnx.numpy_helper.to_array(i) for i in file.graph.initializer}
    for variable in model.trainable_variables:
        np.testing.assert_array_equal(values[variable.path], variable.numpy())
