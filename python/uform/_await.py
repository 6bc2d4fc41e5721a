"""How awaiting a Deferred works: one eventfd for each executor and loop, no thread and no polling.

This is Python and not Rust, since a daemon thread may be awaiting when the interpreter ends. That ends the thread with
all its frames, and frames of Rust cannot be ended.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from uform._uform import Deferred, Executor, _Bell

_T = TypeVar("_T")


class _Watch:
    """What one loop awaits of one executor; it is there while something is awaited."""

    def __init__(self, executor: "Executor", loop: "AbstractEventLoop", bell: "_Bell") -> None:
        self.executor = executor
        self.loop = loop
        self.bell = bell
        self.waiting: dict[Future[None], Deferred[Any]] = {}

    def add(self, deferred: "Deferred[Any]") -> "Future[None]":
        """Give a future that is done when the call is."""
        if not self.waiting:
            self.loop.add_reader(self.bell.fileno(), self._hear)
        future = self.loop.create_future()
        self.waiting[future] = deferred
        deferred._ring(self.bell)
        return future

    def remove(self, future: "Future[None]") -> None:
        """Forget a future; without any the loop does not listen."""
        self.waiting.pop(future, None)
        # A closed loop has forgotten its readers, and says so if it is asked.
        if not self.waiting and not self.loop.is_closed():
            self.loop.remove_reader(self.bell.fileno())

    def _hear(self) -> None:
        self.bell.hear()
        for future, deferred in list(self.waiting.items()):
            if deferred.done() and not future.done():
                future.set_result(None)


# Held by those that await: with the last of them a watch goes and closes its descriptor, also where a loop was closed
# under them.
_watches: "WeakValueDictionary[tuple[int, int], _Watch]" = WeakValueDictionary()


def _watch_of(deferred: "Deferred[Any]", loop: "AbstractEventLoop") -> _Watch:
    executor = deferred._executor
    key = (id(executor), id(loop))
    watch = _watches.get(key)
    # A number may be that of an object which is gone.
    if watch is None or watch.loop is not loop or watch.executor is not executor:
        watch = _watches[key] = _Watch(executor, loop, deferred._bell())
    return watch


def awaiting(deferred: "Deferred[_T]") -> Generator[Any, Any, _T]:
    """Wait for a call within a running loop, and give its result; this is Deferred.__await__."""
    if not deferred.done():
        from asyncio import get_running_loop  # noqa: PLC0415 - importing uform stays quick

        watch = _watch_of(deferred, get_running_loop())
        future = watch.add(deferred)
        try:
            yield from future
        finally:
            watch.remove(future)
            # An exception keeps this frame: not what the loop listened to.
            del watch, future
    try:
        return deferred._result()
    finally:
        # Nor the Deferred, which keeps the exception.
        del deferred
