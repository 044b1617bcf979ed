"""Training in the process: batch by batch, equal to the command, with errors that name what is wrong."""

import gc
import json
import logging
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import arenic


@pytest.fixture(scope="module")
def step(root):
    return arenic.compile(root / "models/digits/digits_step.onnx", dim={"batch": 32})


def forward(root, network="small_cnn", **options):
    options = {"loss": "cross_entropy", "optimizer": "momentum", "momentum": 0.9, "dim": {"batch": 8}, **options}
    return arenic.compile(root / f"models/forward/{network}.onnx", **options)


def batch(step, seed=0):
    """A batch for any step: numbers for floats, small classes for integers."""
    random = np.random.default_rng(seed)
    made = {}
    for name, kind in step.inputs.items():
        if name == "lr":
            made[name] = 0.01
        elif kind.dtype == np.float32:
            made[name] = random.standard_normal(kind.shape, np.float32)
        else:
            made[name] = random.integers(0, 5, kind.shape).astype(kind.dtype)
    return made


def test_a_step_says_what_it_needs_and_takes(step):
    assert 0 < step.lower_bound_bytes <= step.live_peak_bytes <= step.arena_bytes
    assert step.inputs["x"] == arenic.Tensor((32, 1, 8, 8), np.dtype(np.float32), "f32")
    assert step.inputs["target"].dtype == np.int64 and step.inputs["lr"].shape == ()
    assert step.states["fc.weight"].shape == (10, 512) if "fc.weight" in step.states else step.states
    assert list(step.outputs) == ["loss", "accuracy"] and step.targets == ["cpu"]


def test_training_learns_and_equals_the_command(step, digits, tmp_path):
    trainer = arenic.Trainer(step, threads=1)
    losses = [trainer.step(each)["loss"] for each in digits]
    assert isinstance(losses[0], float) and losses[-1] < losses[0] / 3
    assert trainer.steps == len(digits)

    step.save("digits.arenic")
    rows = {name: np.concatenate([each[name] for each in digits]) for name in ("x", "target")}
    np.savez("data.npz", **rows)
    command = [sys.executable, "-m", "arenic", "run", "digits.arenic", "--data", "data.npz", "--set", "lr=0.02", "--json"]
    done = subprocess.run([*command, "--save", "theirs.safetensors"], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    theirs = [line["loss"] for line in lines if "loss" in line]
    assert [np.float32(x) for x in theirs] == [np.float32(x) for x in losses]
    trainer.save("ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_a_trainer_goes_on_from_what_was_saved(step, digits):
    first, second = arenic.Trainer(step), arenic.Trainer(step, threads=1)
    first.step(digits[0])
    first.save("states.safetensors")
    second.restore("states.safetensors")
    third = arenic.Trainer(step, init="states.safetensors")
    fourth = arenic.Trainer(step, init=first.state_dict())
    fifth = arenic.Trainer(step)
    fifth.load_state_dict(first.state_dict())
    assert second.steps == third.steps == 1
    expected = first.step(digits[1])
    assert all(each.step(digits[1]) == expected for each in (second, third, fourth, fifth))


def test_several_trainers_share_a_step(step, digits):
    first, second = arenic.Trainer(step), arenic.Trainer(step)
    expected = [first.step(each) for each in digits[:3]]
    assert [second.step(each) for each in digits[:3]] == expected


def test_what_is_wrong_with_a_batch_is_named(step, digits):
    trainer, good = arenic.Trainer(step), digits[0]
    for name, bad in (
        ("x", {"x": good["x"][:, :, :, :7]}),
        ("x", {"x": good["x"].astype(np.float64)}),
        ("target", {"target": good["target"].astype(np.complex64)}),
        ("target", {"target": [["a"]]}),
        ("nothing", {"nothing": 1.0}),
        ("lr", {"lr": "fast"}),
        ("lr", {"lr": [0.1, 0.2]}),
    ):
        with pytest.raises(arenic.DataError, match=f"`{name}`"):
            trainer.step({**good, **bad})
    with pytest.raises(arenic.DataError, match="`target` i64"):
        trainer.step({"x": good["x"], "lr": 0.1})
    with pytest.raises(arenic.DataError):
        arenic.Trainer(step, init={"no_such_state": np.zeros(3, np.float32)})
    # Nothing of it was trained with.
    assert trainer.steps == 0 and trainer.step(good) == arenic.Trainer(step).step(good)


def test_a_target_that_is_no_class_is_told(root):
    step = forward(root)
    trainer = arenic.Trainer(step)
    bad = batch(step)
    bad["target"][3] = 10
    with pytest.raises(arenic.DataError, match="the target 10 in row 3"):
        trainer.step(bad)


def test_inputs_may_be_strided_small_or_of_other_libraries(step, digits):
    good = digits[0]
    expected = arenic.Trainer(step).step(good)

    class Array:
        def __array__(self, dtype=None, copy=None):
            return good["x"]

    class Capsule:
        def __dlpack__(self, **options):
            return good["x"].__dlpack__()

        def __dlpack_device__(self):
            return good["x"].__dlpack_device__()

    strided = np.repeat(good["x"], 2, axis=-1)[..., ::2]
    assert not strided.flags.c_contiguous
    for x in (strided, np.asfortranarray(good["x"]), Array(), Capsule(), memoryview(good["x"])):
        assert arenic.Trainer(step).step({**good, "x": x}) == expected
    for target in (good["target"].astype(np.int32), good["target"].tolist(), good["target"].reshape(32, 1)):
        assert arenic.Trainer(step).step({**good, "target": target}) == expected
    assert arenic.Trainer(step).step({**good, "lr": np.float32(0.02)}) == expected


def test_threads_take_turns_with_a_trainer(step, digits):
    alone, shared, found = arenic.Trainer(step), arenic.Trainer(step), []

    def work():
        for _ in range(20):
            found.append(shared.step(digits[0])["loss"])
            shared.state_dict()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Whoever stepped, nobody's batch and nobody's loss was another's.
    assert sorted(found, reverse=True) == sorted((alone.step(digits[0])["loss"] for _ in range(60)), reverse=True)
    assert shared.steps == 60


def test_states_are_copies_or_views(step, digits):
    trainer = arenic.Trainer(step)
    name = next(name for name, kind in step.states.items() if len(kind.shape) > 1)
    before, view = trainer.state[name], trainer.state.view(name)
    assert (before == view).all() and set(trainer.state) == set(step.states)
    trainer.step(digits[0])
    assert not (before == view).all() and (trainer.state[name] == view).all()
    trainer.state[name] = before
    assert (view == before).all()
    view[...] = 1.0
    assert (trainer.state[name] == 1.0).all()
    with pytest.raises(arenic.DataError, match=f"`{name}` takes"):
        trainer.state[name] = before[..., :-1]
    with pytest.raises(arenic.DataError, match=f"`{name}` takes"):
        trainer.state[name] = before.astype(np.float64)
    with pytest.raises(KeyError):
        trainer.state["no_such_state"]
    del trainer
    gc.collect()
    assert (view == 1.0).all()


def test_evaluation_sees_the_weights_as_they_are(root):
    step = forward(root)
    trainer, data = arenic.Trainer(step), batch(step)
    figures = ("loss", "accuracy")
    before = trainer.evaluate(data)
    for _ in range(30):
        trainer.step(data)
    after = trainer.evaluate(data)
    assert after["loss"] < before["loss"] and after["accuracy"] == 1.0 and trainer.steps == 30
    again = trainer.evaluate({name: data[name] for name in ("x", "target")})
    assert [again[name] for name in figures] == [after[name] for name in figures]
    logits = next(x for x in again.values() if not isinstance(x, float))
    assert (logits.argmax(1) == data["target"]).all()
    # What is written through a view is seen, too.
    trainer.state.view(next(iter(step.states)))[...] = 0.0
    assert trainer.evaluate(data)["loss"] != after["loss"]


def test_steps_in_rounds(root):
    whole, rounds = forward(root), forward(root, dim={"batch": 4}, accumulate=2)
    auto = forward(root, accumulate="auto", device_memory="75%")
    assert rounds.inputs["x"].shape == whole.inputs["x"].shape == auto.inputs["x"].shape
    data = batch(whole)
    losses = [[arenic_trainer.step(data)["loss"] for _ in range(3)] for arenic_trainer in map(arenic.Trainer, (whole, rounds, auto))]
    assert np.allclose(losses[0], losses[1], rtol=1e-4) and np.allclose(losses[0], losses[2], rtol=1e-4)


def test_a_loss_that_is_not_finite_is_told(step, digits):
    trainer = arenic.Trainer(step)
    with pytest.raises(arenic.NonFiniteError, match="loss"):
        for each in digits:
            trainer.step({**each, "lr": 1e30})


def test_compile_errors_say_what_the_command_says(root):
    with pytest.raises(arenic.CompileError, match="no ONNX model"):
        arenic.compile(b"\xff" * 4000, loss="mse", optimizer="sgd")
    with pytest.raises(arenic.CompileError, match="--dim NAME=SIZE"):
        arenic.compile(root / "models/digits/digits_step.onnx")
    with pytest.raises(arenic.CompileError, match="No such file"):
        arenic.compile("missing.onnx")
    with pytest.raises(arenic.CompileError, match="--no-such-option"):
        arenic.compile(root / "models/digits/digits_step.onnx", no_such_option=1)
    with pytest.raises(arenic.CompileError, match="help: the artifact has the figures"):
        arenic.compile(root / "models/digits/digits_step.onnx", dim={"batch": 2}, json=True)
    with pytest.raises(arenic.CompileError, match="help: --accumulate auto may keep the limit"):
        arenic.compile(root / "models/digits/digits_step.onnx", dim={"batch": 32}, device_memory="half")
    # The output that a loss is of, which is no file.
    with pytest.raises(arenic.CompileError, match="no_such_output"):
        forward(root, output="no_such_output")
    with pytest.raises(arenic.DataError, match="missing.arenic"):
        arenic.load("missing.arenic")
    with pytest.raises(arenic.DeviceError, match="--target cuda"):
        arenic.Trainer(arenic.compile(root / "models/digits/digits_step.onnx", dim={"batch": 2}), device="cuda:0")


class OnGpu:
    """An array that says it is in a GPU's memory."""

    shape = (32, 1, 8, 8)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None):
        raise BufferError("only a GPU can read this")


def test_what_lies_elsewhere_is_refused(step, digits):
    trainer = arenic.Trainer(step)
    with pytest.raises(arenic.DataError, match="`x`.*only a GPU can read this"):
        trainer.step({**digits[0], "x": OnGpu()})
    assert trainer.step(digits[0])["loss"] > 0
    # A tensor that is lent lies in the memory of the trainer's GPU.
    assert not trainer._native.lend(False, "x", np.ascontiguousarray(digits[0]["x"]).__dlpack__())
    with pytest.raises(ValueError, match="PyCapsule"):
        trainer._native.lend(False, "x", datetime_capsule())


def datetime_capsule():
    """A capsule of another name."""
    import datetime

    return datetime.datetime_CAPI


def test_bytes_and_messages_are_models_too(root, digits):
    import onnx

    path = root / "models/digits/digits_step.onnx"
    for model in (path.read_bytes(), onnx.load(path)):
        step = arenic.compile(model, dim={"batch": 32})
        assert arenic.Trainer(step).step(digits[0])["loss"] > 0


def test_notes_are_logged_and_progress_is_told(root, caplog):
    told = []
    with caplog.at_level(logging.INFO, "arenic"):
        forward(root, "tiny_resnet", device_memory="80%", progress=lambda *said: told.append(said))
    assert any("trains" in message for message in caplog.messages)
    assert any("the limit is" in message for message in caplog.messages)
    assert told and all(bound <= found for _, found, bound in told)

    def fails(*_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        forward(root, "tiny_resnet", device_memory="80%", progress=fails)


def test_other_threads_run_while_one_compiles(root):
    ticks, goes_on = [0], threading.Event()

    def tick():
        while not goes_on.wait(0.002):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    arenic.compile(root / "models/structure/joint_vgg16_b32_adamop.onnx", plan_only=True)
    seconds = time.monotonic() - start
    goes_on.set()
    thread.join()
    assert seconds < 0.2 or ticks[0] > 5


def interrupted(root, seconds):
    """A step whose search Ctrl-C ends after so many seconds."""

    def interrupt():
        time.sleep(seconds)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        model = root / "models/structure/joint_vgg16_b32_adamop.onnx"
        return arenic.compile(model, plan_only=True, effort=600, device_memory="85%")
    finally:
        thread.join()


def test_ctrl_c_ends_a_search_and_keeps_its_plan(root):
    # What a shell runs in the background begins with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        try:
            step = interrupted(root, 1)
        except arenic.CompileError as error:
            # A slow machine has no plan yet.
            assert "ended before it found a plan" in str(error)
            step = interrupted(root, 10)
    finally:
        signal.signal(signal.SIGINT, before)
    assert step.search_cut and step.arena_bytes > 0


def test_a_page_shows_the_arena(step, tmp_path):
    step.report(tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text("utf-8").lower()
    assert step._repr_html_().startswith("<iframe")


def test_the_stub_names_what_the_module_has(root):
    import ast

    from arenic import _native

    stub = ast.parse((root / "python/package/arenic/_native.pyi").read_text())
    public = {name for name in vars(_native) if not name.startswith("_")}
    named = {node.name for node in stub.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert named == public
    for node in stub.body:
        if isinstance(node, ast.ClassDef) and node.name in ("Step", "Trainer"):
            methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)} - {"__new__"}
            assert methods == {name for name in vars(getattr(_native, node.name)) if not name.startswith("_")}
