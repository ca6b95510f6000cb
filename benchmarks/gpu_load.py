"""Ask a served model as fast as it answers: a closed loop of batch-1 requests over gRPC, and every answer checked.

Prints one JSON line. The requests are serialised once: what is measured is the server, not the client.
"""

import argparse
import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

import numpy as np

_METHOD = "/inference.GRPCInferenceService/ModelInfer"


def request_bytes(model, inputs, output):
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model)
    for name, value in inputs.items():
        kind = {"int32": "INT32", "int64": "INT64", "float32": "FP32"}[str(value.dtype)]
        request.inputs.add(name=name, datatype=kind, shape=[1, *value.shape])
        request.raw_input_contents.append(value.tobytes())
    request.outputs.add(name=output)
    return request.SerializeToString()


def client(address, requests, wanted, threads, seconds, tolerance, begin, results):
    import grpc
    from tritonclient.grpc import service_pb2

    options = [("grpc.use_local_subchannel_pool", 1)]
    latencies, wrong, failed = [[] for _ in range(threads)], [0] * threads, [0] * threads

    def loop(number):
        channel = grpc.insecure_channel(address, options=options)
        call = channel.unary_unary(_METHOD)
        place = number * 7 % len(requests)
        begin.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            sent = time.perf_counter()
            try:
                raw = call(requests[place], timeout=30)
            except grpc.RpcError:
                failed[number] += 1
                continue
            latencies[number].append((time.perf_counter() - sent) * 1000)
            if len(latencies[number]) % 16 == 1:
                content = service_pb2.ModelInferResponse.FromString(raw).raw_output_contents[0]
                answer = np.frombuffer(content, np.float32)
                away = np.linalg.norm(answer - wanted[place]) / np.linalg.norm(wanted[place])
                wrong[number] += not away < tolerance
            place = (place + 1) % len(requests)

    running = [threading.Thread(target=loop, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    results.put((sum(latencies, []), sum(wrong), sum(failed)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    data, reference = np.load(asked.inputs), np.load(asked.reference)
    output = reference.files[0]
    rows = min(64, len(reference[output]))
    requests = [
        request_bytes(asked.model, {name: data[name][row] for name in data.files}, output) for row in range(rows)
    ]
    context = multiprocessing.get_context("spawn")
    threads = asked.concurrency // asked.processes
    begin, results = context.Barrier(asked.concurrency), context.Queue()
    common = (os.environ["REPOGEN_URL"], requests, reference[output][:rows], threads, asked.seconds, asked.tolerance)
    children = [context.Process(target=client, args=(*common, begin, results)) for _ in range(asked.processes)]
    for child in children:
        child.start()
    found = [results.get(timeout=asked.seconds + 120) for _ in children]
    for child in children:
        child.join()
    latencies = np.array(sum((row[0] for row in found), []))
    asked.json.write_text(json.dumps({
        "per_second": len(latencies) / asked.seconds,
        "p50_ms": float(np.percentile(latencies, 50)),
        "p99_ms": float(np.percentile(latencies, 99)),
        "wrong": sum(row[1] for row in found),
        "failed": sum(row[2] for row in found),
        "concurrency": asked.concurrency,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
