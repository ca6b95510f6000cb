"""A scripted gRPC server as a process of its own: it answers each request after a known time.

`python -m tests.load.oracle LOW_MS HIGH_MS COUNT` prints its address, and when its stdin closes how many seconds
each answer really took, as JSON: on a busy machine it is late itself. Request i, by order of arrival, takes
LOW + (i * STRIDE mod COUNT) / COUNT * (HIGH - LOW): each of COUNT even steps once, in a shuffled order. The answer
is due that long after the request came in, so that what the server itself needs is in it.
"""

import itertools
import json
import sys
import time

import grpc
from tritonclient.grpc import service_pb2

from tests.fake_triton import FakeModel, FakeTriton, identity_config

STRIDE = 7919
"""A prime: any COUNT that is no multiple of it is passed through once."""


def latencies_ms(low: float, high: float, count: int) -> list[float]:
    return [low + (number * STRIDE % count) / count * (high - low) for number in range(count)]


class Oracle(FakeTriton):
    """Knows no protobuf in its answers: bytes in, bytes out, at the due instant."""

    def __init__(self, times: list[float]) -> None:
        self._numbers = itertools.count()
        self._times = times
        self.taken: list[float] = []
        super().__init__(FakeModel(identity_config("echo")), threads=600)

    def _handler(self, name, method):
        return self._raw() if name == "ModelInfer" else super()._handler(name, method)

    def _raw(self):
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, _request: bytes, _context) -> bytes:
        came = time.perf_counter()
        due = came + self._times[next(self._numbers) % len(self._times)] / 1e3
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left - 0.0002 if left > 0.001 else 0)
        self.taken.append(time.perf_counter() - came)
        return service_pb2.ModelInferResponse(model_name="echo").SerializeToString()


def main() -> None:
    low, high, count = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    sys.setswitchinterval(1e-4)
    with Oracle(latencies_ms(low, high, count)) as oracle:
        print(oracle.url, flush=True)  # noqa: T201
        sys.stdin.read()
        print(json.dumps(oracle.taken), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
