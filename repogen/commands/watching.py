"""`repogen sync --watch`: sync again whenever a source changes, until somebody ends it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType

from repogen.console import Console
from repogen.errors import RepogenError

_SETTLED = 1.0  # seconds in which a source does not change
_PATIENCE = 30


def watching(manifest: Path, interval: float, sync: Callable[[], int], console: Console) -> int:
    """Call `sync` now and after every change; 0 when SIGINT or SIGTERM ends it.

    What fails is told once and tried again at every look: a store comes back, a lock is given back.
    """
    from repogen.watch import signature

    failure = ""
    with _ending(console) as over:
        while not over.is_set():
            before = signature(manifest)
            last, failure = failure, _tried(sync, failure, console)
            if not failure or failure != last:
                console.note(f"looking for changed sources every {interval:g} s; Ctrl-C ends it")
            while not over.wait(interval):
                if failure or signature(manifest) != before:
                    _settle(partial(signature, manifest), over, min(interval, _SETTLED))
                    break
    console.note("ended: nothing is watched any more")
    return 0


def _settle(look: Callable[[], str], over: threading.Event, pause: float) -> None:
    """Wait until two looks agree: what is still being written is no source yet. What never rests is not waited for."""
    seen = look()
    for _ in range(_PATIENCE):
        if over.wait(pause) or seen == (seen := look()):
            return


def _tried(sync: Callable[[], int], last: str, console: Console) -> str:
    """Return why a sync failed, "" where it did not. One that fails as the last one did says nothing."""
    failure = ""
    with console.held() if last else nullcontext(lambda: None) as release:
        try:
            sync()
        except RepogenError as error:
            if (failure := str(error)) == last:
                return failure
            release()
            console.error(error)
        release()
    return failure


@contextmanager
def _ending(console: Console) -> Iterator[threading.Event]:
    """Give an event that SIGINT and SIGTERM set: the sync that runs comes to its end. A second one interrupts it."""
    over = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        if over.is_set():
            raise KeyboardInterrupt
        over.set()
        console.note("ending, after the sync that runs")

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
