"""Samples made by hand."""

import numpy as np

from repogen.load.samples import Conditions, Samples


def samples_of(latencies, status=None, start=10**9, failures=None, spacing=10_000, **conditions):
    """Requests `spacing` ns apart that took `latencies` ns."""
    count = len(latencies)
    sent = start + np.arange(count, dtype=np.int64) * spacing
    done = sent + np.array(latencies, dtype=np.int64)
    code = np.zeros(count, dtype=np.int64) if status is None else np.array(status, dtype=np.int64)
    ones = np.ones(count, dtype=np.int64)
    told = Conditions(**{"begin": start, "end": start + count * spacing, "ended": "time", **conditions})
    return Samples(sent, sent, done, done, code, ones, ones, failures=failures or {}, conditions=told)
