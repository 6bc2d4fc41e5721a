"""The `uform` command, as `python -m uform` and as the console script; a script's name runs that script instead."""

import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from uform import _uform


def main() -> NoReturn:
    """Run the command of this process's arguments and exit with its code."""
    # The command waits for signals itself; Python's handler would only note one and never run.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_uform.run_command(["uform", *sys.argv[1:]], sys.executable or None))


def run_script(arguments: list[str]) -> None:
    """Run a script, or with -m a module, as Python would; end this process at once when it raises.

    Threads and exit handlers that wait for other members do not keep it: those learn of its end as of any other.
    """
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            # As `python -m` does, and not the folder of a script.
            sys.path[0] = str(Path.cwd())
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path[0] = str(Path(arguments[0]).resolve().parent)
            runpy.run_path(arguments[0], run_name="__main__")
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, the process ends here
        traceback.print_exc()
        index = os.environ.get("UFORM_INDEX")
        who = "this process" if index is None else f"index {index}"
        print(f"uform: {who} (pid {os.getpid()}) ends: {type(error).__name__}: {error}", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                # Nobody reads it any more, or the script closed it.
                continue
        os._exit(1)


def is_script(arguments: list[str]) -> bool:
    """Tell whether the arguments name a script or a module, and not a command."""
    if not arguments:
        return False
    return arguments[0].endswith(".py") or (arguments[0] == "-m" and len(arguments) > 1)


if __name__ == "__main__":
    if is_script(sys.argv[1:]):
        run_script(sys.argv[1:])
    else:
        main()
