"""Where a generator writes down every request: arrays for speed, a log on disk for whatever happens."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from repogen.load import samples
from repogen.load.calls import CANCELLED

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

CAPACITY = 1 << 24
_INTENDED, _SENT, _FIRST, _DONE, _STATUS, _SIZE, _BATCH = range(7)


class Recorder:
    """Instants and outcomes by request number; finished rows are appended to `path` whenever `flush` is called.

    The arrays are as large as they can ever get: the system gives memory only to what was written.
    """

    def __init__(self, path: Path, conditions: samples.Conditions, capacity: int = CAPACITY) -> None:
        import numpy as np

        self.claim = itertools.count().__next__  # atomic: two threads never get one number
        self.capacity = capacity
        self.failures: Counter[str] = Counter()
        self._arrays = [np.zeros(capacity, dtype=np.int64) for _ in samples.COLUMNS]
        views = [memoryview(cast(Any, array)) for array in self._arrays]
        self.intended, self.sent, self.first, self.done, self.status, self.size, self.batch = views
        self._written = np.zeros(capacity, dtype=bool)
        self._low = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb", buffering=0)
        self._file.write(samples.header(conditions))

    def answer(self, number: int, first: int, done: int, code: int, size: int, words: str) -> None:
        """Write down one answer; `done` comes last, since a row that has it is complete."""
        self.first[number] = first
        self.size[number] = size
        if code:
            self.status[number] = code
            self.failures[words] += 1
        self.done[number] = done

    def mark(self, begin: int) -> None:
        """Write down when the measurement began, for those who find nothing but the log."""
        self._file.write(samples.mark(begin))

    def flush(self) -> None:
        """Append the requests that were answered since the last call."""
        import numpy as np

        low, high = self._low, self._high()
        done = self._arrays[_DONE][low:high] != 0
        fresh = low + np.flatnonzero(done & ~self._written[low:high])
        if len(fresh):
            self._file.write(np.stack([array[fresh] for array in self._arrays], axis=1).astype("<i8").tobytes())
            self._written[fresh] = True
            open_ones = np.flatnonzero(~self._written[low:high])
            self._low = low + int(open_ones[0]) if len(open_ones) else high

    def underway(self) -> int:
        """Return how many requests have no answer yet."""
        low, high = self._low, self._high()
        return high - low - int((self._arrays[_DONE][low:high] != 0).sum())

    def is_full(self) -> bool:
        return bool(self._arrays[_SENT][-1])

    def finish(self, now: int) -> tuple[Array, ...]:
        """Give up on what is still under way, write the log's end, and return the columns in order of sending."""
        import numpy as np

        high = self._high()
        lost = np.flatnonzero(self._arrays[_DONE][:high] == 0)
        for number in lost.tolist():
            self.answer(number, now, now, CANCELLED, 0, "still unanswered when the run ended")
        self.flush()
        self._file.close()
        return tuple(array[:high] for array in self._arrays)

    def _high(self) -> int:
        """Return how many requests were sent; whoever claims a number writes its `sent` at once."""
        import numpy as np

        start = self._low
        step = 1024
        sent = self._arrays[_SENT]
        while start < self.capacity and sent[min(start + step, self.capacity) - 1]:
            start += step
        tail = np.flatnonzero(sent[start : start + step] != 0)  # a copy: others write meanwhile
        return start + int(tail[-1]) + 1 if len(tail) else start
