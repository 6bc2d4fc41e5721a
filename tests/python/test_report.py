"""Records of calls made from Python, as `uform report` shows them."""

import json
import subprocess
import sys
from pathlib import Path

from harness import Members, clean_environment

PROGRAM = """
import asyncio, os
os.environ["UFORM_RECORD"] = os.path.abspath("records")
import numpy as np, uform

async def later(mesh):
    await mesh.deferred().all_reduce(np.ones(3))

with uform.Mesh.bootstrap(None, None) as mesh:
    mesh.all_reduce(np.ones(2))
    mesh.barrier()
    assert mesh.exchange(b"x") == [b"x"] * 2
    mesh.arena(64)
    with mesh.split(0) as part:
        part.broadcast(np.ones(1))
    asyncio.run(later(mesh))
    if mesh.index == 1:
        os.kill(os.getpid(), 9)
    try:
        mesh.all_reduce(np.ones(4))
    except uform.LostError as error:
        print(error)
"""


def line_of(text: str) -> int:
    """Give the number of the line of the program that has this text."""
    return next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if text in line)


def test_calls_are_recorded_with_their_lines_of_python(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    with Members(tmp_path) as members:
        survivor, killed = members.start_run(2, PROGRAM)
        assert killed.wait() == -9
        assert survivor.wait() == 0, survivor.text()
        assert f"see: uform report {records}" in survivor.text()
    ended = subprocess.run(
        [sys.executable, "-m", "uform", "report", "--json", str(records)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, second = json.loads(ended.stdout)["runs"][0]["members"]
    assert (first["has_failed"], second["state"]) == (True, "died")
    expected = [
        ("all_reduce", "mesh.all_reduce(np.ones(2))"),
        ("barrier", "mesh.barrier()"),
        ("exchange", "mesh.exchange("),
        ("arena", "mesh.arena("),
        ("split", "mesh.split("),
        ("broadcast", "part.broadcast("),
        ("all_reduce", "mesh.deferred()"),
    ]
    wanted = [(verb, f"program.py:{line_of(text)}") for verb, text in expected]
    for member in (first, second):
        found: list[tuple[str, str]] = []
        for call in member["calls"]:
            one = (call["verb"], Path(call["site"]).name)
            # An exchange and a split are made of several.
            if not found or found[-1] != one:
                found.append(one)
        assert found[:7] == wanted
    last = first["calls"][-1]
    assert (last["outcome"], last["site"].endswith(f":{line_of('np.ones(4)')}")) == ("Lost", True)
