"""The example as a user starts it: alone, by launchers, and from a checkpoint of another number of processes."""

import re
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
from harness import DIGITS, Member, Members, torchrun_variables

STEPS = 60


def losses_of(file: Path) -> list[float]:
    return [float(line.split()[1]) for line in file.read_text().splitlines()]


def finish(*members: Member) -> str:
    for member in members:
        assert member.wait(300) == 0, member.text()
    return "".join(member.text() for member in members)


def launched(members: Members, count: int, *arguments: str) -> str:
    """Run the example by `uform launch` and give what it printed."""
    command = [sys.executable, "-m", "uform", "launch", "--processes", str(count), str(DIGITS), *arguments]
    return finish(members.start(command))


def test_the_loss_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    curves = []
    with Members(tmp_path) as members:
        for count in (1, 2, 3):
            arguments = (
                "--steps",
                str(STEPS),
                "--losses",
                f"losses-{count}",
                "--directory",
                f"checkpoint-{count}",
            )
            if count == 1:
                finish(members.start([sys.executable, str(DIGITS), *arguments]))
            else:
                launched(members, count, *arguments)
            curves.append(losses_of(tmp_path / f"losses-{count}"))
    assert [len(curve) for curve in curves] == [STEPS] * 3
    assert curves[0][-1] < curves[0][0] / 3
    for curve in curves[1:]:
        np.testing.assert_allclose(curve, curves[0], rtol=1e-5)


def test_it_resumes_with_another_number_of_processes(tmp_path: Path) -> None:
    half = STEPS // 2
    with Members(tmp_path) as members:
        finish(members.start([sys.executable, str(DIGITS), "--steps", str(STEPS), "--losses", "whole"]))
        launched(members, 2, "--steps", str(half), "--losses", "first", "--directory", "halves")
        launched(members, 3, "--steps", str(STEPS), "--losses", "second", "--directory", "halves", "--resume")
    both = losses_of(tmp_path / "first") + losses_of(tmp_path / "second")
    np.testing.assert_allclose(both, losses_of(tmp_path / "whole"), rtol=1e-5)


def test_it_runs_under_the_variables_of_torchrun(tmp_path: Path) -> None:
    job = uuid.uuid4().hex
    (tmp_path / "meeting").mkdir(mode=0o700)
    with Members(tmp_path) as members:
        command = [sys.executable, str(DIGITS), "--steps", "20"]
        started = [
            members.start(command, torchrun_variables(index, 2, tmp_path / "meeting", job))
            for index in range(2)
        ]
        finish(*started)
        assert "held-out accuracy" in started[0].text()
        assert "held-out accuracy" not in started[1].text()


@pytest.mark.parametrize("count", [2])
def test_it_learns_and_says_what_the_mesh_looked_like(count: int, tmp_path: Path) -> None:
    with Members(tmp_path) as members:
        output = launched(members, count)
    accuracy = re.search(r"held-out accuracy (0\.\d{4}|1\.0000)\b", output)
    assert accuracy, output
    assert float(accuracy[1]) >= 0.95
    for word in ("loss", "steps/s", "communication"):
        assert word in output
    assert (tmp_path / "checkpoints" / "digits").is_dir()
    # One line for each process, in the tree at the end.
    tail = output[output.index("go on with --resume") :]
    assert "pid" in tail or "index" in tail
