"""Members of a run as real processes: each test in its own folder, every wait with an end, no process left."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "train_digits.py"
LAUNCHER_PREFIXES = ("UFORM_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_")
TORCH_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def clean_environment() -> dict[str, str]:
    """Give this process's variables without those of any launcher."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(LAUNCHER_PREFIXES) and name not in TORCH_NAMES
    }


def uform_variables(index: int, count: int, folder: Path, job: str) -> dict[str, str]:
    """Give the variables that `uform launch` sets."""
    numbers = {"INDEX": index, "COUNT": count, "LOCAL_INDEX": index, "LOCAL_COUNT": count, "TIMEOUT": 60}
    named = {f"UFORM_{name}": str(number) for name, number in numbers.items()}
    return named | {"UFORM_DIRECTORY": str(folder), "UFORM_JOB": job}


def torchrun_variables(index: int, count: int, folder: Path, job: str) -> dict[str, str]:
    """Give the variables that torchrun sets on one host, and our directory."""
    numbers = {"RANK": index, "WORLD_SIZE": count, "LOCAL_RANK": index, "LOCAL_WORLD_SIZE": count}
    numbers |= {"GROUP_WORLD_SIZE": 1, "GROUP_RANK": 0, "TORCHELASTIC_RESTART_COUNT": 0, "MASTER_PORT": 29500}
    named = {name: str(number) for name, number in numbers.items()}
    return named | {
        "TORCHELASTIC_RUN_ID": job,
        "MASTER_ADDR": "localhost",
        "UFORM_DIRECTORY": str(folder),
    }


@dataclass
class Member:
    """One process, the leader of a process group of its own, and the file that it writes to."""

    process: subprocess.Popen[bytes]
    output: Path

    def text(self) -> str:
        """Give what it has written."""
        return self.output.read_text(errors="replace")

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        """Wait until it has written something."""
        end = time.monotonic() + seconds
        while text not in self.text():
            if self.process.poll() is not None and text not in self.text():
                raise AssertionError(f"ended with {self.process.returncode} before {text!r}:\n{self.text()}")
            if time.monotonic() > end:
                raise AssertionError(f"no {text!r} in {seconds} s:\n{self.text()}")
            time.sleep(0.01)

    def wait(self, seconds: float = 120.0) -> int:
        """Wait for its end and give its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.text()}") from None

    def kill(self) -> None:
        """End its whole group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass
class Members:
    """Processes that end with the `with` block, whatever happens in it."""

    folder: Path
    all: list[Member] = field(default_factory=list)

    def start(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> Member:
        """Start one more."""
        output = self.folder / f"output-{len(self.all)}-{uuid.uuid4().hex[:8]}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                # Whoever starts the tests in the background may ignore the signal, and that is inherited.
                ["env", "--default-signal=INT", *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=clean_environment() | dict(variables or {}),
                cwd=self.folder,
                start_new_session=True,
            )
        self.all.append(Member(process, output))
        return self.all[-1]

    def start_run(self, count: int, source: str) -> list[Member]:
        """Start the members of a run, each with the source as its program."""
        job, program = f"test-{uuid.uuid4().hex}", self.folder / "program.py"
        program.write_text(source)
        meeting = self.folder / "meeting"
        meeting.mkdir(mode=0o700, exist_ok=True)
        return [
            self.start([sys.executable, str(program)], uform_variables(index, count, meeting, job))
            for index in range(count)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for member in self.all:
            member.kill()


def run(count: int, source: str, folder: Path, seconds: float = 120.0) -> list[str]:
    """Run a source in so many members, all of which must succeed, and give their outputs."""
    with Members(folder) as members:
        started = members.start_run(count, source)
        end = time.monotonic() + seconds
        for index, member in enumerate(started):
            code = member.wait(max(end - time.monotonic(), 0.1))
            assert code == 0, f"index {index} ended with {code}:\n{member.text()}"
        return [member.text() for member in started]
