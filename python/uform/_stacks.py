"""The stacks of all threads of this interpreter, for reports of calls that failed.

This is Python and not Rust: the thread is a daemon, which the end of the interpreter ends with all its frames, and
frames of Rust cannot be ended.
"""

import _thread
import faulthandler
import os


def _serve(requests: int, answers: int, target: int) -> None:
    while True:
        try:
            count = os.read(requests, 8)
            faulthandler.dump_traceback(target, all_threads=True)
            os.write(answers, count)
        except (OSError, ValueError):
            # In a forked child, which has no such thread, or as the interpreter ends.
            return


def start(requests: int, answers: int, target: int) -> None:
    """Answer every request, an eventfd, by stacks written to target, and then by the other eventfd."""
    _thread.start_new_thread(_serve, (requests, answers, target))


def register(number: int, target: int) -> None:
    """Have a signal write the stacks to target from the thread that gets it, without the interpreter's lock."""
    faulthandler.register(number, target, all_threads=True, chain=False)
