"""Several hosts as network namespaces: the example trains over them as on one host, and goes on after a crash."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness import DIGITS, Members, uform_variables
from network import needs_network, network
from test_digits import losses_of

HOSTS = 3

pytestmark = needs_network


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Give the names of network namespaces that reach each other."""
    with network(HOSTS) as names:
        yield names


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
