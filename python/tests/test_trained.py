"""What was trained goes where models are used: the user's own file, which onnxruntime runs."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import arenic


def network(training, external=False):
    """Convolution, batch normalisation, dropout and a linear layer, as it trains or as it is after training."""
    random = np.random.default_rng(1)
    weights = {
        "conv.weight": random.standard_normal((4, 1, 3, 3), np.float32) * 0.3,
        "norm.weight": np.ones(4, np.float32),
        "norm.bias": np.zeros(4, np.float32),
        "norm.running_mean": np.zeros(4, np.float32),
        "norm.running_var": np.ones(4, np.float32),
        "head.weight": random.standard_normal((5, 4 * 36), np.float32) * 0.1,
        "head.bias": np.zeros(5, np.float32),
    }
    norm = ["conv", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]
    statistics = ["mean", "var"] if training else []
    flags = [numpy_helper.from_array(np.array(0.5, np.float32), "ratio"), numpy_helper.from_array(np.array(training), "mode")]
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight"], ["conv"]),
        helper.make_node("BatchNormalization", norm, ["norm", *statistics], training_mode=int(training)),
        helper.make_node("Relu", ["norm"], ["relu"]),
        helper.make_node("Flatten", ["relu"], ["flat"]),
        helper.make_node("Dropout", ["flat", "ratio", "mode"], ["dropped"]),
        helper.make_node("Gemm", ["dropped", "head.weight", "head.bias"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])],
        [*(numpy_helper.from_array(w, name) for name, w in weights.items()), *flags],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="mine")
    helper.set_model_props(model, {"author": "somebody"})
    return model


@pytest.fixture(params=[False, True], ids=["inline", "external"])
def model(request, tmp_path):
    path = tmp_path / "model" / "network.onnx"
    path.parent.mkdir()
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 256} if request.param else {}
    onnx.save(network(training=True), path, **options)
    return path


def trained(model):
    step = arenic.compile(model, dim={"batch": 8}, loss="cross_entropy", optimizer="momentum")
    trainer = arenic.Trainer(step)
    random = np.random.default_rng(2)
    x = random.standard_normal((8, 1, 8, 8), np.float32)
    for _ in range(20):
        trainer.step({"x": x, "target": np.arange(8) % 5, "lr": 0.05})
    return trainer, x


def expected(model, trainer, x):
    """The outputs of the model after training, by arenic."""
    step = arenic.compile(model, dim={"batch": 8}, inference=True)
    weights = {name: w for name, w in trainer.state_dict().items() if not name.endswith(".momentum")}
    return arenic.Trainer(step, init=weights).step({"x": x})["y"]


def run(path, x):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_onnxruntime_gives_what_evaluation_sees(model, tmp_path):
    trainer, x = trained(model)
    out = tmp_path / "trained.onnx"
    trainer.export(out)
    onnx.checker.check_model(str(out))
    ours, theirs = expected(model, trainer, x), run(out, x)
    assert np.allclose(theirs, ours, rtol=1e-4, atol=1e-5)
    assert not np.allclose(theirs, run_before(model, x), atol=1e-2)
    accuracy = trainer.evaluate({"x": x, "target": np.arange(8) % 5})["accuracy"]
    assert accuracy == np.mean(theirs.argmax(1) == np.arange(8) % 5)


def run_before(model, x):
    trainer = arenic.Trainer(arenic.compile(model, dim={"batch": 8}, inference=True))
    return trainer.step({"x": x})["y"]


def test_names_order_metadata_and_external_data_stay(model, tmp_path):
    trainer, _ = trained(model)
    out = tmp_path / "out" / "trained.onnx"
    out.parent.mkdir()
    trainer.export(out)
    before, after = (onnx.load(path, load_external_data=False) for path in (model, out))
    names = lambda m: [t.name for t in m.graph.initializer]
    assert names(before) == names(after) and before.metadata_props == after.metadata_props
    assert before.graph.input == after.graph.input and before.graph.output == after.graph.output
    assert [n.op_type for n in before.graph.node] == [n.op_type for n in after.graph.node]
    assert (before.producer_name, before.ir_version) == (after.producer_name, after.ir_version)
    external = lambda m: [t.name for t in m.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    assert external(before) == external(after)
    assert (out.parent / "trained.onnx.data").exists() == bool(external(before))
    states = trainer.state_dict()
    loaded = {t.name: numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}
    assert all((loaded[name] == states[name]).all() for name in states if name in loaded)
    assert (loaded["norm.running_mean"] != 0).all()


def test_the_command_writes_the_same_file(model, tmp_path):
    from arenic import _native

    trainer, _ = trained(model)
    trainer.export(tmp_path / "ours.onnx")
    trainer.save(tmp_path / "w.safetensors")
    arguments = ["arenic", "export", str(model), "--init", str(tmp_path / "w.safetensors"), "-o"]
    assert _native.main([*arguments, str(tmp_path / "theirs.onnx")]) == 0
    ours, theirs = (onnx.load(tmp_path / f"{name}.onnx") for name in ("ours", "theirs"))
    assert ours == theirs


def test_weights_of_another_model_are_refused(model, tmp_path):
    with pytest.raises(arenic.DataError, match="none of the 1 tensors"):
        arenic.export(model, {"other": np.zeros(3, np.float32)}, tmp_path / "out.onnx")
    with pytest.raises(arenic.DataError, match="`head.bias` is f32\\[5\\]"):
        arenic.export(model, {"head.bias": np.zeros(3, np.float32)}, tmp_path / "out.onnx")
    step = arenic.compile(model, dim={"batch": 8}, loss="cross_entropy", optimizer="sgd")
    step.save("step.arenic")
    loaded = arenic.Trainer(arenic.load("step.arenic"))
    with pytest.raises(arenic.CompileError, match="name it"):
        loaded.export(tmp_path / "out.onnx")
    loaded.export(tmp_path / "out.onnx", model=model)
    assert not list(tmp_path.glob("*.tmp*"))
