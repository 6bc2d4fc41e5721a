"""The `uform` command, as `python -m uform` and as the console script."""

import signal
import sys
from typing import NoReturn

from uform import _uform


def main() -> NoReturn:
    """Run the command of this process's arguments and exit with its code."""
    # The command waits for signals itself; Python's handler would only note one and never run.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_uform.run_command(["uform", *sys.argv[1:]], sys.executable or None))


if __name__ == "__main__":
    main()
