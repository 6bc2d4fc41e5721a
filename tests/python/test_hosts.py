"""Several hosts as network namespaces: the example trains over them as on one host, and goes on after a crash."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness import DIGITS, Members, uform_variables
from test_digits import losses_of

HOSTS = 3
_NUMBERS = itertools.count()

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2"
)


def ip(words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words.split()], check=True, timeout=30)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Give the names of network namespaces that reach each other."""
    # The Rust tests remove what begins so and has lost its process.
    base = f"uform-test-{os.getpid()}-py{next(_NUMBERS)}"
    names = [f"{base}-{number}" for number in range(1, HOSTS + 1)]
    try:
        ip(f"netns add {base}-hub")
        ip(f"-n {base}-hub link add br0 type bridge stp_state 0 forward_delay 0")
        ip(f"-n {base}-hub link set br0 up")
        for number, name in enumerate(names, 1):
            ip(f"netns add {name}")
            ip(f"-n {base}-hub link add v{number} type veth peer name eth0 netns {name}")
            ip(f"-n {base}-hub link set v{number} master br0 up")
            ip(f"-n {name} link set lo up")
            ip(f"-n {name} addr add 10.77.0.{number}/24 dev eth0")
            ip(f"-n {name} link set eth0 up")
        yield names
    finally:
        for name in [*names, f"{base}-hub"]:
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=30, stderr=subprocess.DEVNULL)


def start(members: Members, places: list[str], job: str, *arguments: str) -> None:
    """Start one process of the example at each place."""
    for index, place in enumerate(places):
        command = ["ip", "netns", "exec", place, sys.executable, str(DIGITS), *arguments]
        meeting = members.folder / "meeting"
        # Of the launcher's numbers only those of the run: a place in the host is not said.
        variables = uform_variables(index, len(places), meeting, job)
        del variables["UFORM_LOCAL_INDEX"], variables["UFORM_LOCAL_COUNT"]
        members.start(command, variables)


def test_hosts_train_as_one_and_go_on_after_a_crash(hosts: list[str], tmp_path: Path) -> None:
    steps, half = 40, 20
    with Members(tmp_path) as members:
        alone = members.start([sys.executable, str(DIGITS), "--steps", str(steps), "--losses", "alone"])
        assert alone.wait(300) == 0, alone.text()
    with Members(tmp_path) as members:
        start(members, hosts, "first", "--steps", str(half), "--losses", "first", "--directory", "saved")
        for member in members.all:
            assert member.wait(300) == 0, member.text()
    with Members(tmp_path) as members:
        # Two of them on one host now, and one of those dies.
        arguments = ("--steps", "1000000", "--losses", "lost", "--directory", "saved", "--resume")
        start(members, [*hosts, hosts[2]], "second", *arguments)
        members.all[0].wait_for("loss")
        members.all[3].kill()
        for member in members.all[:3]:
            assert member.wait(300) == 1, member.text()
            assert "LostError: lost index 3" in member.text(), member.text()
    with Members(tmp_path) as members:
        start(
            members,
            hosts,
            "third",
            "--steps",
            str(steps),
            "--losses",
            "third",
            "--directory",
            "saved",
            "--resume",
        )
        for member in members.all:
            assert member.wait(300) == 0, member.text()
    both = losses_of(tmp_path / "first") + losses_of(tmp_path / "third")
    np.testing.assert_allclose(both, losses_of(tmp_path / "alone"), rtol=1e-5)
