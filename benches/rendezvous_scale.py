"""Counts what members do together who meet in a directory, by their number, and draws it.

It runs the protocol in its simulated world, where every operation is counted:
`python benches/rendezvous_scale.py [FILE.svg]`.
"""

import math
import re
import subprocess
import sys
from pathlib import Path

COMMAND = ["cargo", "test", "--release", "--locked", "--quiet", "--package", "uform", "--lib", "--"]
COMMAND += ["rendezvous::directory::simulation::scale", "--exact", "--ignored", "--nocapture"]
COLOURS = {
    "created": "#0072b2",
    "opened": "#d55e00",
    "listings": "#009e73",
    "entries": "#cc79a7",
    "written_bytes": "#e69f00",
    "read_bytes": "#5a5a5a",
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 520, 90, 190, 30, 60


def measure() -> dict[int, dict[str, float]]:
    """Run the simulation and give the counts of every number of members."""
    text = subprocess.run(COMMAND, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for count, seconds, rest in re.findall(r"^scale (\d+) ([\d.]+) Counts \{(.*)\}", text, re.MULTILINE):
        fields = {name: float(value) for name, value in re.findall(r"(\w+): (\d+)", rest)}
        found[int(count)] = {**fields, "seconds": float(seconds)}
    return found


def draw(found: dict[int, dict[str, float]]) -> str:
    """Give a picture with a line for each kind of operation, both axes logarithmic."""
    top = math.ceil(math.log10(max(values[name] for values in found.values() for name in COLOURS)))
    bottom = math.floor(math.log10(min(values[name] for values in found.values() for name in COLOURS)))
    first, last = math.log2(min(found)), math.log2(max(found))

    def across(count: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(count) - first) / (last - first)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(value) - bottom) / (top - bottom)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="14">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for power in range(bottom, top + 1):
        y = up(10**power)
        lines.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{10**power:,}</text>')
    for count in found:
        x = across(count)
        lines.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{count:,}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text x="{middle:.1f}" y="{HEIGHT - 12}" text-anchor="middle">members</text>')
    lowest = 0.0
    names = sorted(COLOURS, key=lambda name: -found[max(found)][name])
    for name in names:
        points = " ".join(f"{across(count):.1f},{up(values[name]):.1f}" for count, values in found.items())
        colour = COLOURS[name]
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        # Names of lines that end close to each other stand one below the other.
        lowest = max(lowest + 18, up(found[max(found)][name]) + 5)
        words = name.replace("_", " ")
        lines.append(f'<text x="{WIDTH - RIGHT + 10}" y="{lowest:.1f}" fill="{colour}">{words}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Print the counts, and write the picture where it is asked for."""
    found = measure()
    names = [*COLOURS, "seconds"]
    print("members " + " ".join(f"{name:>14}" for name in names))
    for count, values in found.items():
        print(f"{count:>7} " + " ".join(f"{values[name]:>14,.10g}" for name in names))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(draw(found), encoding="utf-8")


if __name__ == "__main__":
    main()
