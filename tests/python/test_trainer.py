"""The trainer between real processes, against the same steps in NumPy."""

import errno
from pathlib import Path

import numpy as np
import pytest
import uform
from harness import run

STEPS = """
import numpy as np, uform

def gradients_of(member, step):
    generator = np.random.default_rng([member, step])
    return {name: generator.normal(size=shape) for name, shape in SHAPES.items()}

SHAPES = {"weight": (5, 3), "bias": (3,), "scale": (), "none": (0, 2)}
START = {name: np.random.default_rng(7).normal(size=shape) for name, shape in SHAPES.items()}

def mean_gradients(count, step):
    # Member m counts m + 1 samples.
    weights = np.arange(1, count + 1) / (count * (count + 1) / 2)
    every = [gradients_of(member, step) for member in range(count)]
    return {name: sum(weight * every[m][name] for m, weight in enumerate(weights)) for name in SHAPES}

def sgd(count, steps):
    values = {name: value.copy() for name, value in START.items()}
    moments = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(steps):
        for name, gradient in mean_gradients(count, step).items():
            gradient = gradient + 0.01 * values[name]
            moments[name] = gradient if step == 0 else 0.9 * moments[name] + gradient
            values[name] = values[name] - 0.1 * moments[name]
    return values

with uform.Mesh.bootstrap(None, None) as mesh:
    # The values of index 0 count.
    start = {name: np.asarray(value + 0.0 * mesh.index) for name, value in START.items()}
    optimizer = uform.SGD(0.1, momentum=0.9, weight_decay=0.01)
    trainer = uform.Trainer(mesh, start, optimizer)
    parameters = {name: np.asarray(array) for name, array in trainer.parameters.items()}
    gradients = {name: np.asarray(array) for name, array in trainer.gradients.items()}
    assert list(parameters) == list(SHAPES)
    assert all(not view.flags.writeable for view in parameters.values())
    for step in range(5):
        for name, gradient in gradients_of(mesh.index, step).items():
            gradients[name][...] = gradient
        report = trainer.step(weight=mesh.index + 1)
        assert report.step == step + 1 and not report.skipped
        assert report.weight == mesh.count * (mesh.count + 1) / 2
        assert report.gradient_norm is None
        assert 0 <= report.communication_seconds <= report.seconds
    expected = sgd(mesh.count, 5)
    for name, view in parameters.items():
        np.testing.assert_allclose(view, expected[name], rtol=1e-12, atol=1e-14)

    with trainer.edit() as edited:
        views = {name: np.asarray(array) for name, array in edited.items()}
        if mesh.index == 0:
            views["weight"][...] = 5.0
    assert (parameters["weight"] == 5.0).all()
    mesh.barrier()
    try:
        with trainer.edit():
            raise LookupError
    except LookupError:
        pass

    trainer.save("checkpoint", step=5)
    with trainer.edit() as edited:
        np.asarray(edited["weight"])[...] = 6.0
    assert (parameters["weight"] == 6.0).all()
    mesh.barrier()
    assert trainer.load("checkpoint") == 5
    assert (parameters["weight"] == 5.0).all()
    mesh.barrier()

    gradients["bias"][...] = np.nan if mesh.index == mesh.count - 1 else 1.0
    before = parameters["bias"].copy()
    assert trainer.step().skipped
    np.testing.assert_array_equal(parameters["bias"], before)
    mesh.barrier()
    print("done")
"""


@pytest.mark.parametrize("count", [1, 2, 3])
def test_steps_are_those_of_numpy(count: int, tmp_path: Path) -> None:
    for output in run(count, STEPS, tmp_path):
        assert "done" in output


def test_different_parameters_are_named(tmp_path: Path) -> None:
    program = """
import numpy as np, uform
with uform.Mesh.bootstrap(None, None) as mesh:
    try:
        uform.Trainer(mesh, {"weight": np.zeros(3 + mesh.index)}, uform.SGD(0.1))
    except uform.DisagreedError as error:
        print("disagreed", error)
"""
    for output in run(2, program, tmp_path):
        assert "disagreed" in output
        assert "weight" in output


def test_clipping_reports_the_norm() -> None:
    with uform.Mesh.bootstrap(None, None) as mesh:
        trainer = uform.Trainer(mesh, {"x": np.zeros(2, dtype=np.float32)}, uform.SGD(1.0), clip_norm=1.0)
        np.asarray(trainer.gradients["x"])[...] = (3.0, 4.0)
        report = trainer.step()
        assert report.gradient_norm == pytest.approx(5.0)
        np.testing.assert_allclose(np.asarray(trainer.parameters["x"]), (-0.6, -0.8), rtol=1e-5)
        assert "gradient_norm=5.0" in repr(report)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with uform.Mesh.bootstrap(None, None) as mesh:
        good = {"x": np.zeros(2)}
        with pytest.raises(uform.InvalidError, match="mesh"):
            uform.Trainer(None, good, uform.SGD(0.1))  # type: ignore[arg-type]
        with pytest.raises(uform.InvalidError, match="parameters"):
            uform.Trainer(mesh, [1], uform.SGD(0.1))  # type: ignore[arg-type]
        with pytest.raises(uform.InvalidError, match="optimizer"):
            uform.Trainer(mesh, good, "sgd")  # type: ignore[arg-type]
        with pytest.raises(uform.InvalidError, match="clip_norm"):
            uform.Trainer(mesh, good, uform.SGD(0.1), clip_norm=-1.0)
        with pytest.raises(uform.InvalidError, match="contiguous"):
            uform.Trainer(mesh, {"x": np.zeros((4, 4))[:, 0]}, uform.SGD(0.1))
        with pytest.raises(uform.UformError):
            uform.Trainer(mesh, {"x": np.zeros(2, dtype=np.int32)}, uform.SGD(0.1))
        trainer = uform.Trainer(mesh, good, uform.AdamW(0.1))
        with pytest.raises(uform.InvalidError, match="weight"):
            trainer.step(weight=float("nan"))
        with pytest.raises(uform.InvalidError, match="weight"):
            trainer.step(weight=-1.0)
        with pytest.raises(uform.InvalidError, match="weight"):
            trainer.step(weight=0.0)
        with pytest.raises(uform.InvalidError, match="step"):
            trainer.save(tmp_path, step=-1)
        with pytest.raises(uform.IoError) as caught:
            trainer.load(tmp_path / "nothing here")
        assert isinstance(caught.value, OSError)
        assert caught.value.errno == errno.ENOENT
        assert caught.value.filename == str(tmp_path / "nothing here")
        assert caught.value.operation
        with pytest.raises(uform.UnsupportedError, match="not in this version"):
            trainer.ready("x")
        with pytest.raises(TypeError):
            trainer.parameters["y"] = trainer.parameters["x"]  # type: ignore[index]


def test_parameters_are_read_only_outside_of_edit() -> None:
    with uform.Mesh.bootstrap(None, None) as mesh:
        trainer = uform.Trainer(mesh, {"x": np.zeros(2)}, uform.SGD(0.1))
        parameter = trainer.parameters["x"]
        assert parameter.read_only
        with pytest.raises(uform.InvalidError, match="read-only"):
            mesh.all_reduce(parameter)
        with pytest.raises(ValueError, match="read-only"):
            np.asarray(parameter)[0] = 1.0
        with trainer.edit() as edited:
            kept = edited["x"]
            assert not kept.read_only
            np.asarray(kept)[...] = 2.0
        assert kept.read_only
        assert np.asarray(parameter).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"momentum": -0.1},
        {"nesterov": True},
        {"weight_decay": float("nan")},
        {"nesterov": "yes", "momentum": 0.9},
    ],
)
def test_wrong_numbers_of_sgd_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(uform.InvalidError):
        uform.SGD(0.1, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"beta1": 1.0}, {"beta2": -1.0}, {"epsilon": -1e-8}])
def test_wrong_numbers_of_adamw_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(uform.InvalidError):
        uform.AdamW(1e-3, **arguments)


def test_optimizers_show_their_numbers() -> None:
    assert repr(uform.SGD(0.1)) == "SGD(0.1, momentum=0.0, nesterov=False, weight_decay=0.0)"
    adam = uform.AdamW(0.1)
    assert (adam.learning_rate, adam.beta1, adam.beta2, adam.epsilon, adam.weight_decay) == (
        0.1,
        0.9,
        0.999,
        1e-8,
        0.01,
    )
