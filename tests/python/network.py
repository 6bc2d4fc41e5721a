"""Hosts of our own: network namespaces that a bridge joins, and that end with the `with` block."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_NUMBERS = itertools.count()

needs_network = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2"
)


def ip(words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words.split()], check=True, timeout=30)


@contextmanager
def network(count: int) -> Iterator[list[str]]:
    """Give the names of namespaces that reach each other; the first has the address 10.77.0.1."""
    # The Rust tests remove what begins so and has lost its process.
    base = f"uform-test-{os.getpid()}-py{next(_NUMBERS)}"
    names = [f"{base}-{number}" for number in range(1, count + 1)]
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
