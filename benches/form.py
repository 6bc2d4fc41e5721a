"""Forms a mesh; index 0 prints the largest age in seconds that any member's process had by then."""

import os
import time
from array import array

import uform


def seconds_since_process_start() -> float:
    """Return the age of this process, in steps of the kernel's clock tick."""
    with open("/proc/self/stat") as file:
        start_ticks = int(file.read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")


with uform.Mesh.bootstrap(None, None) as mesh:
    age = array("d", [seconds_since_process_start()])
    mesh.all_reduce(age, uform.ReduceOp.MAX)
    if mesh.index == 0:
        print(age[0])
