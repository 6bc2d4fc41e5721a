"""Measures all_reduce of float32 arrays against a memcpy of the same bytes in the same run.

Run it as `uform launch --processes 2 benches/collectives.py`. All members copy, and all members reduce,
at the same time.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import uform

SIZES = {"8 B": (8, 2000), "64 KiB": (64 << 10, 1000), "64 MiB": (64 << 20, 15)}


def median_microseconds(mesh: uform.Mesh, rounds: int, call: Callable[[], None]) -> float:
    """Return the median time of a call, each started together by all members; some rounds warm up."""
    seconds = []
    for _ in range(rounds + max(rounds // 10, 2)):
        mesh.barrier()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds[-rounds:])


def measure(mesh: uform.Mesh, byte_count: int, rounds: int) -> tuple[float, float, float]:
    """Return the microseconds of a memcpy, of all_reduce of a private array, and of one in an arena."""
    count = byte_count // 4
    source, target = np.ones(count, dtype=np.float32), np.ones(count, dtype=np.float32)
    shared = np.asarray(mesh.arena(byte_count).array((count,)))
    copy = median_microseconds(mesh, rounds, lambda: np.copyto(target, source))
    # A sum would grow from round to round: zeros stay zeros.
    target[:] = 0
    shared[:] = 0
    private = median_microseconds(mesh, rounds, lambda: mesh.all_reduce(target))
    return copy, private, median_microseconds(mesh, rounds, lambda: mesh.all_reduce(shared))


def main() -> None:
    """Print one line for each size."""
    with uform.Mesh.bootstrap(None, None) as mesh:
        for name, (byte_count, rounds) in SIZES.items():
            copy, private, arena = measure(mesh, byte_count, rounds)
            if mesh.index == 0:
                ratios = f"ratio {private / copy:.2f}, in an arena {arena:.1f} us, ratio {arena / copy:.2f}"
                print(f"{name:>7}: memcpy {copy:.1f} us, all_reduce {private:.1f} us, {ratios}", flush=True)


if __name__ == "__main__":
    main()
