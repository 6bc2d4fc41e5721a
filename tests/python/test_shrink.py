"""Training that goes on after a process was killed, in the mesh of those that are left."""

import signal
from pathlib import Path

import pytest
import uform
from harness import Members

TRAINING = """
import os, time
import numpy as np, uform

def trainer_on(mesh):
    trainer = uform.Trainer(mesh, {"weights": np.zeros(3)}, uform.SGD(0.1, momentum=0.9))
    return trainer, np.asarray(trainer.parameters["weights"]), np.asarray(trainer.gradients["weights"])

def expected(steps):
    # All members have the same gradients, so that their count does not matter.
    values, moment = np.zeros(3), None
    for _ in range(steps):
        gradient = 2 * (values - TARGET)
        moment = gradient if moment is None else 0.9 * moment + gradient
        values = values - 0.1 * moment
    return values

TARGET = np.array([1.0, -2.0, 3.0])
mesh = uform.Mesh.bootstrap(None, None)
index = mesh.index
trainer, weights, gradients = trainer_on(mesh)
for step in range(5):
    gradients[:] = 2 * (weights - TARGET)
    trainer.step()
trainer.save("checkpoint", step=5)
print("saved", flush=True)
try:
    while True:
        gradients[:] = 2 * (weights - TARGET)
        trainer.step()
except uform.LostError as error:
    print("lost", error.index, flush=True)
try:
    trainer.step()
except uform.ClosedError as error:
    print("closed:", error)
try:
    mesh.barrier()
except (uform.LostError, uform.ClosedError):
    # A trainer that failed may have closed the group, so that no other member waits for this one.
    pass
survivors = mesh.shrink()
assert mesh.closed and not survivors.closed
assert survivors.executor is mesh.executor
print("went on as", survivors.index, "of", survivors.count, flush=True)
names = survivors.exchange(str(index).encode())
assert names == [str(one).encode() for one in range(3) if one != VICTIM], names
trainer, weights, gradients = trainer_on(survivors)
assert trainer.load("checkpoint") == 5
np.testing.assert_allclose(weights, expected(5), rtol=1e-12)
survivors.barrier()
for step in range(5):
    gradients[:] = 2 * (weights - TARGET)
    trainer.step()
np.testing.assert_allclose(weights, expected(10), rtol=1e-12)
survivors.barrier()
survivors.close()
print("trained", flush=True)
"""


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_training_goes_on_without_a_killed_process(victim: int, tmp_path: Path) -> None:
    with Members(tmp_path) as members:
        started = members.start_run(3, TRAINING.replace("VICTIM", str(victim)))
        for member in started:
            member.wait_for("saved")
        started[victim].process.send_signal(signal.SIGKILL)
        left = [member for index, member in enumerate(started) if index != victim]
        for place, member in enumerate(left):
            assert member.wait() == 0, member.text()
            assert f"lost {victim}" in member.text()
            assert "closed: " in member.text()
            assert f"went on as {place} of 2" in member.text()
            assert "trained" in member.text()


def test_a_lone_mesh_shrinks_to_an_equal_one() -> None:
    with uform.Mesh.bootstrap(None, None) as mesh:
        with mesh.shrink() as survivors:
            assert (survivors.index, survivors.count) == (0, 1)
            survivors.barrier()
        with pytest.raises(uform.ClosedError):
            mesh.barrier()
        with pytest.raises(uform.ClosedError):
            mesh.shrink()
