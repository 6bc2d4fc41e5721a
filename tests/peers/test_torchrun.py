"""The real torchrun: on one host, on several with and without a shared directory, and with members that fail."""

import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness import DIGITS, Member, Members
from network import needs_network, network
from test_digits import losses_of

STEPS = 40
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
# torchrun warns without the first.
VARIABLES = {"OMP_NUM_THREADS": "1", "UFORM_TIMEOUT": "60", "UFORM_SILENCE": "2"}

SHOW = """
import uform
with uform.Mesh.bootstrap(None, None) as mesh:
    print(mesh.topology())
"""

FAIL = """
import os, signal, sys
from array import array
import uform
# torchrun may be about to end those that have not failed: they are to speak first.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with uform.Mesh.bootstrap(None, None) as mesh:
    numbers = array("d", [1.0])
    mesh.all_reduce(numbers)
    if mesh.index == 1:
        if sys.argv[1] == "raise":
            raise RuntimeError("no such file of digits")
        os.kill(os.getpid(), signal.SIGKILL)
    mesh.all_reduce(numbers)
"""


def write(folder: Path, source: str) -> str:
    """Give a file with this program in it."""
    program = folder / f"program-{uuid.uuid4().hex}.py"
    program.write_text(source)
    return str(program)


def free_port() -> int:
    """Give a port that nobody has."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def finish(*members: Member) -> str:
    """Give what all wrote, once they have succeeded."""
    for member in members:
        assert member.wait() == 0, member.text()
    return "".join(member.text() for member in members)


def test_two_processes_form_and_train_as_one_does(tmp_path: Path) -> None:
    arguments = ["--steps", str(STEPS), "--directory", "saved"]
    with Members(tmp_path) as members:
        finish(members.start([sys.executable, str(DIGITS), *arguments, "--losses", "alone"], VARIABLES))
        command = [*TORCHRUN, "--nproc-per-node", "2", str(DIGITS), *arguments, "--losses", "two"]
        output = finish(members.start(command, VARIABLES))
    assert "2 processes, 1 host" in output, output
    losses = losses_of(tmp_path / "two")
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, losses_of(tmp_path / "alone"), rtol=1e-5)


def test_a_chosen_id_is_the_name_of_the_run(tmp_path: Path) -> None:
    options = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "chosen"]
    with Members(tmp_path) as members:
        output = finish(
            members.start([*TORCHRUN, *options, "--nproc-per-node", "2", write(tmp_path, SHOW)], VARIABLES)
        )
    assert output.count("run chosen-restart-0, attempt ") == 2, output


def test_two_jobs_of_the_default_id_do_not_meet(tmp_path: Path) -> None:
    program = write(tmp_path, SHOW)
    with Members(tmp_path) as members:
        started = [
            members.start(
                [*TORCHRUN, "--master-port", str(free_port()), "--nproc-per-node", str(count), program],
                VARIABLES | {"UFORM_DIRECTORY": str(tmp_path)},
            )
            for count in (2, 3)
        ]
        for count, member in zip((2, 3), started, strict=True):
            output = finish(member)
            assert "run none-" in output, output
            assert f"{count} processes, 1 host" in output, output


# torchrun tells by whole seconds which process ended first, and among those of one second names the lowest. What the
# members say is exact.
@pytest.mark.parametrize(("how", "own"), [("kill", "exitcode  : -9"), ("raise", "no such file of digits")])
def test_a_member_that_fails_ends_the_job_and_is_named(how: str, own: str, tmp_path: Path) -> None:
    with Members(tmp_path) as members:
        command = [*TORCHRUN, "--nproc-per-node", "3", write(tmp_path, FAIL), how]
        job = members.start(command, VARIABLES)
        assert job.wait() == 1, job.text()
    output = job.text()
    assert own in output, output
    assert "Root Cause" in output, output
    assert output.count("uform.LostError: lost index 1 (host ") == 2, output
    assert output.count("LostError: lost index") == 2, output


def test_a_restart_is_a_new_attempt_which_trains_on(tmp_path: Path) -> None:
    source = """
import os, signal
import uform
with uform.Mesh.bootstrap(None, None) as mesh:
    mesh.barrier()
    if mesh.index == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    mesh.barrier()
    print(mesh.topology())
"""
    with Members(tmp_path) as members:
        command = [*TORCHRUN, "--max-restarts", "1", "--nproc-per-node", "2", write(tmp_path, source)]
        output = finish(members.start(command, VARIABLES))
    assert output.count("-restart-1, attempt ") == 2, output
    assert "-restart-0, attempt " not in output, output


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Give the names of two network namespaces that reach each other."""
    with network(2) as names:
        yield names


def start(members: Members, hosts: list[str], command: list[str], variables: dict[str, str]) -> list[Member]:
    """Start torchrun on every host, two processes each."""
    started = []
    for number, host in enumerate(hosts, 1):
        own = ["--nnodes", str(len(hosts)), "--nproc-per-node", "2", "--local-addr", f"10.77.0.{number}"]
        meeting = ["--rdzv-backend", "c10d", "--rdzv-id", "peers", "--rdzv-endpoint", "10.77.0.1:29400"]
        # All have one host name here, by which torchrun would find out who serves.
        meeting += ["--rdzv-conf", f"is_host={int(number == 1)}"]
        entered = ["ip", "netns", "exec", host, *TORCHRUN, *own, *meeting, *command]
        started.append(members.start(entered, VARIABLES | variables))
    return started


@needs_network
def test_hosts_form_in_a_shared_directory_and_train(hosts: list[str], tmp_path: Path) -> None:
    arguments = ["--steps", str(STEPS), "--directory", "saved"]
    meeting = tmp_path / "meeting"
    meeting.mkdir(mode=0o700)
    with Members(tmp_path) as members:
        finish(members.start([sys.executable, str(DIGITS), *arguments, "--losses", "alone"], VARIABLES))
        command = [str(DIGITS), *arguments, "--losses", "hosts"]
        output = finish(*start(members, hosts, command, {"UFORM_DIRECTORY": str(meeting)}))
    assert "run peers-restart-0, attempt " in output, output
    assert "4 processes, 2 hosts" in output, output
    np.testing.assert_allclose(losses_of(tmp_path / "hosts"), losses_of(tmp_path / "alone"), rtol=1e-5)
    assert not list(meeting.iterdir())


@needs_network
def test_hosts_without_a_shared_directory_hear_what_to_name(hosts: list[str], tmp_path: Path) -> None:
    with Members(tmp_path) as members:
        started = start(members, hosts, [write(tmp_path, SHOW)], {})
        for member in started:
            assert member.wait() == 1, member.text()
            lines = [line for line in member.text().splitlines() if "uform.InvalidError: directory" in line]
            assert lines, member.text()
            for line in lines:
                assert "UFORM_DIRECTORY" in line, line
                assert "2 hosts" in line, line
