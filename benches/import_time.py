"""Measures how long `import uform` takes, each time in a new interpreter: `python benches/import_time.py`."""

import statistics
import subprocess
import sys

ROUNDS = 9
IMPORT = "import time; start = time.perf_counter(); import uform; print(time.perf_counter() - start)"


def main() -> None:
    """Print the median and all rounds in milliseconds."""
    command = [sys.executable, "-c", IMPORT]
    printed = [subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout for _ in range(ROUNDS)]
    milliseconds = [1000 * float(text) for text in printed]
    rounds = " ".join(f"{value:.1f}" for value in milliseconds)
    print(f"import uform: {statistics.median(milliseconds):.1f} ms (rounds: {rounds})")


if __name__ == "__main__":
    main()
