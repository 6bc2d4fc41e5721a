"""Measures how long `import uform` takes, and how long processes take from their start to a formed mesh.

Run it as `python benches/start.py`. Counts other than 1, 2, 8 and 32 are given as arguments.
"""

import os
import statistics
import subprocess
import sys

ROUNDS = 5
IMPORT = "import time; start = time.perf_counter(); import uform; print(time.perf_counter() - start)"


def seconds_printed(command: list[str]) -> float:
    """Run a command and return the last number that it prints, without the launcher's prefix."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def report(name: str, seconds: list[float]) -> None:
    """Print the median and the rounds of one measure in milliseconds."""
    rounds = " ".join(f"{1000 * value:.1f}" for value in seconds)
    print(f"{name:<14} {1000 * statistics.median(seconds):8.1f} ms  (rounds: {rounds})", flush=True)


def main() -> None:
    """Print one line for each measure."""
    counts = sys.argv[1:] or ["1", "2", "8", "32"]
    report("import uform", [seconds_printed([sys.executable, "-c", IMPORT]) for _ in range(ROUNDS)])
    uform = os.path.join(os.path.dirname(sys.executable), "uform")
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "form.py")
    for count in counts:
        command = [uform, "launch", "--processes", count, program]
        report(f"mesh of {count}", [seconds_printed(command) for _ in range(ROUNDS)])


if __name__ == "__main__":
    main()
