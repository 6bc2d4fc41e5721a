"""Measures what the check of a call and its record add to a call of two processes: `make bench-check`.

The same calls, by the library as it is and by a build of it without check, record and call sites, in turns.
Each round of a build is one run of `benches/latency.rs`; the figure is the median over the rounds of what the two
builds of one round differ by.
"""

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

LINE = re.compile(r"^\s*(?P<call>[a-z_].*?): (?P<microseconds>[0-9.]+) us$")
UNCHECKED = "--cfg uform_unchecked"


def latencies(target: Path, flags: str) -> dict[str, float]:
    """Give the nanoseconds of each call, by a build of its own."""
    command = ["cargo", "bench", "--quiet", "--locked", "--bench", "latency"]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target), "RUSTFLAGS": flags}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = [match for line in done.stdout.splitlines() if (match := LINE.match(line))]
    return {match["call"]: 1e3 * float(match["microseconds"]) for match in found}


def main() -> None:
    """Build twice, measure in turns, and print what they differ by."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target")).absolute()
    given = os.environ.get("RUSTFLAGS", "")
    with_check: dict[str, list[float]] = {}
    without: dict[str, list[float]] = {}
    # The first round builds, and is not counted.
    for turn in range(rounds + 1):
        for found, folder, flags in [
            (with_check, target, given),
            (without, target / "unchecked", f"{given} {UNCHECKED}".strip()),
        ]:
            for call, nanoseconds in latencies(folder, flags).items():
                if turn > 0:
                    found.setdefault(call, []).append(nanoseconds)
    print(f"nanoseconds, medians of {rounds} rounds in turns; quartiles of the difference in brackets")
    for call, times in with_check.items():
        differences = [one - other for one, other in zip(times, without[call], strict=True)]
        low, _, high = statistics.quantiles(differences, n=4) if rounds > 1 else [differences[0]] * 3
        print(
            f"{call:>24}: {statistics.median(times):.0f}, without {statistics.median(without[call]):.0f}, "
            f"check and record {statistics.median(differences):.0f} [{low:.0f} to {high:.0f}]"
        )


if __name__ == "__main__":
    main()
