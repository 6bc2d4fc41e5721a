"""Measures all_reduce of float32 arrays against a memcpy of the same bytes in the same run.

Run it as `uform launch --processes 2 benches/collectives.py`. All members copy, and all members reduce, at the same time.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import uform

SIZES = {"8 B": (8, 2000), "64 KiB": (64 << 10, 1000), "64 MiB": (64 << 20, 15)}


def median_seconds(mesh: uform.Mesh, rounds: int, call: Callable[[], None]) -> float:
    """The median time of a call, each started together by all members; a tenth of the rounds warms up."""
    seconds = []
    for _ in range(rounds + max(rounds // 10, 2)):
        mesh.barrier()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[-rounds:])


def main() -> None:
    """Prints one line for each size: memcpy, private arrays, arena arrays, and both ratios."""
    with uform.Mesh.bootstrap(None, None) as mesh:
        if mesh.index == 0:
            print(f"{'bytes':>8} {'memcpy':>12} {'all_reduce':>12} {'ratio':>8} {'in arena':>12} {'ratio':>8}")
        for name, (byte_count, rounds) in SIZES.items():
            source = np.full(byte_count // 4, mesh.index + 1, dtype=np.float32)
            target = np.empty_like(source)
            shared = np.asarray(mesh.arena(byte_count).array((byte_count // 4,)))
            shared[:] = 0
            copy = median_seconds(mesh, rounds, lambda target=target, source=source: np.copyto(target, source))
            # A sum would overflow after some rounds: zeros stay zeros.
            target[:] = 0
            private = median_seconds(mesh, rounds, lambda target=target: mesh.all_reduce(target))
            arena = median_seconds(mesh, rounds, lambda shared=shared: mesh.all_reduce(shared))
            if mesh.index == 0:
                cells = [f"{1e6 * copy:9.1f} us", f"{1e6 * private:9.1f} us", f"{private / copy:8.2f}"]
                cells += [f"{1e6 * arena:9.1f} us", f"{arena / copy:8.2f}"]
                print(f"{name:>8} {' '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
