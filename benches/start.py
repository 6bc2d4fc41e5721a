"""Measures how long `import uform` takes, and how long processes take from their start to a formed mesh.

Run it as `python benches/start.py`. Counts other than 1, 2, 8 and 32 are given as arguments.
"""

import os
import statistics
import subprocess
import sys
import time
from array import array

ROUNDS = 5
IMPORT = "import time; start = time.perf_counter(); import uform; print(time.perf_counter() - start)"


def seconds_since_process_start() -> float:
    """The age of this process, in steps of the kernel's clock tick."""
    with open("/proc/self/stat") as file:
        start_ticks = int(file.read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")


def member() -> None:
    """One process of a run: forms a mesh, and index 0 prints the largest age of all members then."""
    import uform

    with uform.Mesh.bootstrap(None, None) as mesh:
        age = array("d", [seconds_since_process_start()])
        mesh.all_reduce(age, uform.ReduceOp.MAX)
        if mesh.index == 0:
            print(age[0])


def output(command: list[str]) -> str:
    """What a command prints, without the prefix that the launcher puts before each line."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]


def main() -> None:
    """Prints one line for each measure: the median and all rounds."""
    counts = [int(word) for word in sys.argv[1:]] or [1, 2, 8, 32]
    imports = [float(output([sys.executable, "-c", IMPORT])) for _ in range(ROUNDS)]
    report("import uform", imports)
    uform = os.path.join(os.path.dirname(sys.executable), "uform")
    for count in counts:
        command = [uform, "launch", "--processes", str(count), os.path.abspath(__file__), "member"]
        report(f"mesh of {count}", [float(output(command)) for _ in range(ROUNDS)])


def report(name: str, seconds: list[float]) -> None:
    """Prints the median and the rounds of one measure in milliseconds."""
    rounds = " ".join(f"{1000 * value:.1f}" for value in seconds)
    print(f"{name:<14} {1000 * statistics.median(seconds):8.1f} ms  (rounds: {rounds})", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["member"]:
        member()
    else:
        main()
